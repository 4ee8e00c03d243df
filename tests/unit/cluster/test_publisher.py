"""What this node says to the cluster, while the API server is away, slow, busy, or of another opinion."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.cluster.routed import Routed, failing
from tests.unit.kubeapi.scripted import refuse

from nodeplug import ClusterReport, NodeCondition, PluginError, Pod, TryAgain, hookimpl
from nodeplug.cluster import conditions, publisher, reports
from nodeplug.cluster.publisher import Publisher
from nodeplug.config import ClusterSection
from nodeplug.hosting.call import Call
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.kubeapi.client import Bounds

BUDGETS = dict(publisher.BUDGETS)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what takes seconds take hundredths."""
    monkeypatch.setattr(publisher, "BOUNDS", Bounds(pause=0.01, longest_pause=0.05, request=5))
    monkeypatch.setattr(publisher, "BUDGETS", dict.fromkeys(publisher.BUDGETS, (1000, 0.001)))
    monkeypatch.setattr(publisher, "TURN", 0.05)
    monkeypatch.setattr(publisher, "DEBOUNCE", 0.02)
    monkeypatch.setattr(conditions, "LASTING", 0.0)
    monkeypatch.setattr(reports, "PATIENCE", 0.05)


class Told:
    """Reports what a test says."""

    def __init__(self, value: str = "1", name: str = "a") -> None:
        self.value, self.name = value, name
        self.hanging = threading.Event()
        self.hanging.set()
        self.conditions: tuple[NodeCondition, ...] = ()

    @hookimpl
    def claims(self) -> list[object]:
        return []

    @hookimpl
    def cluster_report(self) -> ClusterReport:
        self.hanging.wait(30)
        return ClusterReport(labels={f"example.com/{self.name}": self.value}, conditions=self.conditions)


class Node:
    """A publisher, its plugins, and the API server that it asks."""

    def __init__(self, folder: Path, **section: object) -> None:
        self.api, self.registry, self.reasons = Routed(), Registry(), dict[str, str]()
        self.folder, self.section = folder, section

    def publisher(self) -> Publisher:
        section = ClusterSection.model_validate({"kubeconfig": self.api.kubeconfig(self.folder), **self.section})
        return Publisher(self.registry, Runner(), "here", section, lambda: self.reasons)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Publisher]:
        async with self.api.server:
            made = self.publisher()
            task = asyncio.create_task(made.run())
            try:
                yield made
                assert not task.done()
            finally:
                task.cancel()
                await asyncio.wait([task])

    def label(self, name: str = "a") -> str | None:
        return self.api.labels.get(f"example.com/{name}")


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


def tell(story: Awaitable[None]) -> None:
    async def whole() -> None:
        await story

    asyncio.run(whole())


def test_a_change_of_a_report_is_written_and_a_report_that_ends_is_removed(tmp_path: Path) -> None:
    async def story() -> None:
        node, plugin = Node(tmp_path), Told()
        node.registry.load("told", plugin, "d")
        async with node.running():
            await until(lambda: node.label() == "1")
            plugin.value = "2"
            node.registry.cluster_news.set()
            await until(lambda: node.label() == "2")
            assert node.api.labels["nodeplug.io/plugin-told"] == "true"
            node.registry.exchange(["told"], [])
            await until(lambda: node.label() is None)

    tell(story())


def test_without_an_api_server_nothing_fails_and_everything_is_written_when_it_is_there(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(tmp_path)
        node.registry.load("told", Told(), "d")

        async def close(writer: asyncio.StreamWriter) -> None:
            writer.close()

        with failing(node.api, close):
            async with node.running() as made:
                await until(lambda: made.trouble.get("node"))
                for number in range(1000):  # nothing waits, and nothing grows without end
                    made.finished(
                        Call("ADD", "cni:x", pod=Pod(f"p{number}", "default", f"u{number}")), TryAgain("not now")
                    )
                status = made.status()
                assert status["events"]["waiting"] + status["events"]["lost"] == 1000
                assert status["events"]["waiting"] <= 200
                node.api.fault = lambda _: None
                await until(lambda: node.label() == "1" and made.status()["events"]["waiting"] == 0)
                assert made.status()["problems"] == []
                assert len(node.api.events) == 200

    tell(story())


@pytest.mark.parametrize(
    "answer",
    [
        refuse(500, "InternalError"),
        refuse(410, "Expired"),
        refuse(409, "Conflict", "the object has been modified"),
        refuse(403, "Forbidden", "no"),
        refuse(504, "Timeout"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot json!",
    ],
    ids=["500", "410", "409", "403", "504", "nonsense"],
)
def test_a_refusal_is_told_and_tried_again(tmp_path: Path, answer: bytes) -> None:
    async def story() -> None:
        node = Node(tmp_path)
        node.registry.load("told", Told(), "d")
        with failing(node.api, answer):
            async with node.running() as made:
                await until(lambda: made.trouble.get("node"))
                node.api.fault = lambda _: None
                await until(lambda: node.label() == "1" and not made.trouble)

    tell(story())


def test_a_busy_server_is_asked_again_when_it_wants_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "BOUNDS", Bounds(pause=0.01, longest_pause=0.02, request=0.5))

    async def story() -> None:
        node = Node(tmp_path)
        node.registry.load("told", Told(), "d")
        loop, pauses = asyncio.get_running_loop(), list[float]()
        slept = asyncio.sleep

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            await slept(min(seconds, 0.01))

        with failing(node.api, refuse(429, "TooManyRequests", Retry_After="30")):
            async with node.running() as made:
                monkeypatch.setattr(asyncio, "sleep", sleep)
                await until(lambda: made.trouble.get("node") and 30.0 in pauses)
                monkeypatch.setattr(asyncio, "sleep", slept)
        assert loop.is_running()

    tell(story())


def test_a_server_that_never_answers_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "BOUNDS", Bounds(pause=0.01, longest_pause=0.02, request=0.2))

    async def hang(_: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        node = Node(tmp_path)
        node.registry.load("told", Told(), "d")
        node.api.fault = lambda _: hang
        async with node.running() as made:
            await until(lambda: "did not" in made.trouble.get("node", ""))
            node.api.fault = lambda _: None
            await until(lambda: node.label() == "1")

    tell(story())


def test_a_node_that_was_deleted_and_made_anew_gets_everything_again(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(tmp_path, resync=0.05)
        node.registry.load("told", Told(), "d")
        async with node.running() as made:
            await until(lambda: node.label() == "1")
            node.api.uid, node.api.labels = "", {}
            await until(lambda: "no node 'here'" in made.trouble.get("node", ""))
            node.api.uid = "u-2"
            await until(lambda: node.label() == "1" and not made.trouble)

    tell(story())


def test_much_news_at_once_is_one_write(tmp_path: Path) -> None:
    async def story() -> None:
        node, plugin = Node(tmp_path), Told()
        node.registry.load("told", plugin, "d")
        async with node.running():
            await until(lambda: node.label() == "1")
            before = node.api.lines.count("PATCH /api/v1/nodes/here")
            for number in range(50):
                plugin.value = f"v{number}"
                node.registry.cluster_news.set()
            await until(lambda: node.label() == "v49")
            assert node.api.lines.count("PATCH /api/v1/nodes/here") <= before + 2

    tell(story())


def test_a_plugin_that_hangs_keeps_its_last_report_and_the_others_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        node, slow, other = Node(tmp_path), Told(), Told(name="b")
        node.registry.load("slow", slow, "d")
        node.registry.load("other", other, "d")
        async with node.running():
            await until(lambda: (node.label(), node.label("b")) == ("1", "1"))
            slow.hanging.clear()
            slow.value = other.value = "2"
            await until(lambda: node.label("b") == "2")
            assert node.label() == "1"
            slow.hanging.set()
            await until(lambda: node.label() == "2")

    tell(story())


def test_a_report_with_wrong_types_inside_takes_nothing_else_along(tmp_path: Path) -> None:
    async def story() -> None:
        node, odd, other = Node(tmp_path), Told(), Told(name="b")
        node.registry.load("odd", odd, "d")
        node.registry.load("other", other, "d")
        async with node.running() as made:
            await until(lambda: (node.label(), node.label("b")) == ("1", "1"))
            odd.value = 7  # type: ignore[assignment] # what a plugin without types may do
            other.value = "2"
            await until(lambda: node.label("b") == "2")
            assert node.label() == "1"
            assert made.trouble == {}

    tell(story())


def test_nothing_that_goes_wrong_here_ends_the_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        node, plugin = Node(tmp_path), Told()
        node.registry.load("told", plugin, "d")
        async with node.running() as made:
            await until(lambda: node.label() == "1")
            made.reasons = lambda: {"told": {"a": "b"}}["other"]  # raises
            plugin.value = "2"
            await until(lambda: "the last of it stays" in caplog.text)
            made.reasons = dict
            await until(lambda: node.label() == "2")

    tell(story())


def test_what_is_not_ready_is_a_condition_until_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(tmp_path)
        node.registry.load("told", Told(), "d")
        async with node.running():
            node.reasons["told"] = "its driver does not answer"
            await until(lambda: node.api.conditions)
            (found,) = node.api.conditions
            assert (found["type"], found["status"]) == ("nodeplug.io/told-not-ready", "True")
            assert found["message"] == "told: its driver does not answer"
            node.reasons.clear()
            await until(lambda: not node.api.conditions)

    tell(story())


def test_the_documented_budgets_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "node-in-the-api.md").read_text()
    rows = dict(zip(("node", "pods", "events"), ("Node and ConfigMaps", "annotations of pods", "events"), strict=True))
    for name, (burst, interval) in BUDGETS.items():
        assert f"| {rows[name]} | {burst} | one in {interval:g} s |" in page
    assert sum(1 / interval for _, interval in BUDGETS.values()) == pytest.approx(0.8)


def test_only_what_is_to_be_published_is(tmp_path: Path) -> None:
    async def story() -> None:
        node, plugin = Node(tmp_path, publish=["conditions"]), Told()
        plugin.conditions = (NodeCondition(type="example.com/Worn", reason="Worn", message="it wears out"),)
        node.registry.load("told", plugin, "d")
        async with node.running() as made:
            made.finished(Call("ADD", "cni:x", pod=Pod("p", "default", "u")), PluginError("no"))
            await until(lambda: node.api.conditions)
            assert (node.api.labels, made.status()["events"]["waiting"], node.api.events) == ({}, 0, [])

    tell(story())
