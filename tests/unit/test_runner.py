import asyncio
import resource
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nodeplug import (
    CniAdd,
    CniClaim,
    CniResult,
    DeadlineExceeded,
    DeviceList,
    InvalidRequest,
    Netns,
    PluginError,
    ResourceName,
    TryAgain,
    hookimpl,
)
from nodeplug.hosting.call import CURRENT, Call
from nodeplug.hosting.overdue import LIMIT as OVERDUE_LIMIT
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.process.turns import ThreadTask, TurnLoop


class Probe:
    """A CNI plugin whose ADD is whatever the test gives."""

    def __init__(self, add: Callable[[Any], Any]) -> None:
        self._add = add

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim("probe")]

    @hookimpl
    def cni_add(self, request: Any) -> Any:
        return self._add(request)

    @hookimpl
    def cni_del(self) -> None:
        return None


def route_to(add: Callable[[Any], Any], **deadlines: float) -> Route:
    registry = Registry()
    registry.load("probe", Probe(add), "the test", deadlines)
    return registry.route("cni", "probe")


async def add(runner: Runner, route: Route, request: Any = None, key: str = "k", **more: Any) -> Any:
    return await runner.call(route, "cni_add", Call("ADD", "cni:probe", key), {"request": request}, **more)


def run(scenario: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await scenario()

    return asyncio.run(main())


def test_a_hook_runs_in_a_thread_named_after_plugin_hook_and_key() -> None:
    names: list[str] = []

    def note(_: Any) -> CniResult:
        names.append(threading.current_thread().name)
        return CniResult()

    run(lambda: add(Runner(), route_to(note)))
    assert names == ["probe:cni_add:k"]


def test_a_request_that_brings_its_thread_calls_one_hook_in_it_and_the_next_in_another() -> None:
    threads: list[threading.Thread] = []

    def note(_: Any) -> CniResult:
        threads.append(threading.current_thread())
        return CniResult()

    loop, runner, route = TurnLoop(), Runner(), route_to(note)

    async def twice() -> None:
        await add(runner, route)
        await add(runner, route)

    task = ThreadTask(loop, twice())
    own = threading.Thread(target=task.run, args=(lambda: None,))
    own.start()
    loop.run_until_complete(task.ended)
    own.join()
    loop.close()
    first, second = threads
    assert first is own is not second


def test_the_request_id_is_visible_inside_the_hook() -> None:
    seen: list[Call | None] = []

    def note(_: Any) -> CniResult:
        seen.append(CURRENT.get())
        return CniResult()

    run(lambda: add(Runner(), route_to(note)))
    assert seen[0] is not None
    assert seen[0].claim == "cni:probe"


def test_a_request_carries_its_id_and_the_moment_at_which_its_caller_is_answered() -> None:
    seen: list[DeviceList] = []

    def note(request: DeviceList) -> CniResult:
        seen.append(request)
        return CniResult()

    asked = DeviceList(resource=ResourceName("example.com/a"))
    begun = time.monotonic()
    run(lambda: add(Runner(), route_to(note, cni_add=7.0), asked))
    assert seen == [asked]  # the same question
    assert len(seen[0].id) == 8
    assert begun + 7 <= seen[0].deadline <= time.monotonic() + 7
    assert 0 < seen[0].remaining < asked.remaining


def test_an_error_of_the_tree_passes_unchanged() -> None:
    def refuse(_: Any) -> CniResult:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest, match=r"^no$"):
        run(lambda: add(Runner(), route_to(refuse)))


def test_a_stray_exception_becomes_a_plugin_error_with_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    def crash(_: Any) -> CniResult:
        return dict[int, CniResult]()[0]

    with pytest.raises(PluginError, match=r"cni_add of plugin 'probe' raised KeyError: 0 \(request [0-9a-f]{8};"):
        run(lambda: add(Runner(), route_to(crash)))
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_system_exit_in_a_hook_is_an_error_not_the_end() -> None:
    def leave(_: Any) -> CniResult:
        raise SystemExit(3)

    with pytest.raises(PluginError, match="raised SystemExit"):
        run(lambda: add(Runner(), route_to(leave)))


@pytest.mark.parametrize("answer", [None, {}, "text"])
def test_an_add_that_returns_no_result_is_an_error(answer: Any) -> None:
    with pytest.raises(PluginError, match=r"returned \w+ from cni_add; expected CniResult"):
        run(lambda: add(Runner(), route_to(lambda _: answer)))


def test_a_call_past_its_deadline_is_answered_while_its_thread_still_runs() -> None:
    release = threading.Event()

    async def scenario() -> None:
        route = route_to(lambda _: release.wait(10) and CniResult(), cni_add=0.05)
        with pytest.raises(DeadlineExceeded, match=r"did not end within 0\.05 s"):
            await add(Runner(), route)
        assert [call.name for call in route.slot.overdue] == ["probe:cni_add:k"]
        release.set()
        while route.slot.overdue:
            await asyncio.sleep(0.01)
        assert route.slot.calls == {}

    run(scenario)


def test_a_second_call_for_a_busy_key_is_refused_at_its_deadline() -> None:
    release = threading.Event()

    async def scenario() -> None:
        runner = Runner()
        route = route_to(lambda _: release.wait(10) and CniResult(), cni_add=0.05)
        with pytest.raises(DeadlineExceeded):
            await add(runner, route)
        with pytest.raises(TryAgain, match="an earlier call for 'k' of plugin 'probe' is still running"):
            await add(runner, route)
        release.set()

    run(scenario)


def test_calls_for_one_key_run_one_after_the_other() -> None:
    running: list[int] = []
    most: list[int] = []

    def overlap(_: Any) -> CniResult:
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()
        return CniResult()

    async def scenario() -> None:
        runner = Runner()
        route = route_to(overlap)
        await asyncio.gather(*(add(runner, route) for _ in range(5)))

    run(scenario)
    assert most == [1, 1, 1, 1, 1]


def test_calls_for_different_keys_run_side_by_side() -> None:
    together = threading.Barrier(3, timeout=60)

    async def scenario() -> None:
        runner = Runner()
        route = route_to(lambda _: (together.wait(), CniResult())[1])
        await asyncio.gather(*(add(runner, route, key=str(number)) for number in range(3)))

    run(scenario)
    assert not together.broken


def test_a_plugin_with_too_many_overdue_calls_is_quarantined_until_one_returns() -> None:
    release = threading.Event()

    async def scenario() -> None:
        runner = Runner()
        route = route_to(lambda _: release.wait(10) and CniResult(), cni_add=0.02)
        for number in range(OVERDUE_LIMIT):
            with pytest.raises(DeadlineExceeded):
                await add(runner, route, key=str(number))
        with pytest.raises(TryAgain, match="is quarantined"):
            await add(runner, route, key="fresh")
        release.set()
        while route.slot.overdue:
            await asyncio.sleep(0.01)
        route.slot.deadlines = {}
        assert await add(runner, route, key="fresh") == CniResult()

    run(scenario)


def request_in(network: str, **config: Any) -> CniAdd:
    nowhere = Netns.unopened("/nowhere")
    about: Any = {"claim": "probe", "network": network, "version": "1.0.0", "config": {"name": network, **config}}
    return CniAdd(**about, host_netns=nowhere, netns=nowhere, container_id="c", ifname="eth0")


def test_a_network_whose_calls_hang_leaves_the_others_and_its_own_del_alone() -> None:
    release = threading.Event()

    def hook(request: Any) -> CniResult:
        if request.config.get("hangs"):
            release.wait(10)
        return CniResult()

    async def scenario() -> None:
        runner = Runner()
        route = route_to(hook, cni_add=0.02)
        bad = request_in("bad", hangs=True)
        for number in range(OVERDUE_LIMIT):
            with pytest.raises(DeadlineExceeded):
                await add(runner, route, bad, key=str(number))
        with pytest.raises(TryAgain, match="is quarantined for network bad: 4 of its calls for network bad have not"):
            await add(runner, route, bad, key="fresh")
        assert "is quarantined for network bad" in route.slot.quarantined
        assert route.slot.is_stuck(OVERDUE_LIMIT)
        route.slot.deadlines = {}
        assert await add(runner, route, request_in("good"), key="good") == CniResult()
        assert not route.slot.is_stuck(OVERDUE_LIMIT)
        assert await add(runner, route, request_in("bad"), key="of another that took its name") == CniResult()
        assert await runner.call(route, "cni_del", Call("DEL", "cni:probe", "del"), {"request": bad}) is None
        release.set()
        while route.slot.overdue:
            await asyncio.sleep(0.01)
        assert route.slot.quarantined == ""

    run(scenario)


def test_what_a_call_owns_is_closed_when_the_hook_really_ends() -> None:
    release = threading.Event()
    closed = threading.Event()

    async def scenario() -> None:
        runner = Runner()
        with pytest.raises(DeadlineExceeded):
            await add(runner, route_to(lambda _: release.wait(10) and CniResult(), cni_add=0.02), done=closed.set)
        assert not closed.is_set()
        release.set()
        assert await asyncio.to_thread(closed.wait, 10)

    run(scenario)


def test_what_a_refused_call_owns_is_closed_at_once() -> None:
    release = threading.Event()
    closed = threading.Event()

    async def scenario() -> None:
        runner = Runner()
        route = route_to(lambda _: release.wait(10) and CniResult(), cni_add=0.02)
        with pytest.raises(DeadlineExceeded):
            await add(runner, route)
        with pytest.raises(TryAgain):
            await add(runner, route, done=closed.set)
        assert closed.is_set()
        release.set()

    run(scenario)


def test_a_call_that_gets_no_thread_is_refused_and_frees_its_key() -> None:
    closed: list[str] = []

    async def scenario() -> None:
        runner, route = Runner(), route_to(lambda _: CniResult())
        # Whatever the kernel overcommits: no room for such a stack below this limit.
        usual, limits = threading.stack_size(1 << 40), resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 39, limits[1]))
        try:
            with pytest.raises(TryAgain, match="cannot start another thread"):
                await add(runner, route, done=lambda: closed.append("k"))
        finally:
            threading.stack_size(usual)
            resource.setrlimit(resource.RLIMIT_AS, limits)
        assert closed == ["k"]
        assert route.slot.calls == {}
        assert await add(runner, route) == CniResult()

    run(scenario)


def test_a_cancellation_that_comes_together_with_the_answer_is_not_swallowed() -> None:
    async def scenario() -> None:
        runner = Runner()
        ended = threading.Event()
        caller = asyncio.create_task(add(runner, route_to(lambda _: CniResult()), done=ended.set))
        await asyncio.sleep(0)
        ended.wait(10)
        time.sleep(0.05)  # noqa: ASYNC251 - the answer waits in the queue of the loop, which must not turn yet
        asyncio.get_running_loop().call_soon(caller.cancel)
        with pytest.raises(asyncio.CancelledError):
            await caller

    run(scenario)


def test_a_cancelled_caller_leaves_the_key_busy_until_the_hook_ends() -> None:
    release = threading.Event()

    async def scenario() -> None:
        runner = Runner()
        route = route_to(lambda _: release.wait(10) and CniResult())
        first = asyncio.create_task(add(runner, route))
        await asyncio.sleep(0.02)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(add(runner, route))
        await asyncio.sleep(0.02)
        assert not second.done()
        release.set()
        assert await second == CniResult()

    run(scenario)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_a_readable_text_is_an_error_and_frees_its_key() -> None:
    def crash(_: Any) -> CniResult:
        raise Unprintable

    async def scenario() -> None:
        runner, route = Runner(), route_to(crash)
        for _ in range(2):
            with pytest.raises(PluginError, match="raised Unprintable"):
                await add(runner, route)

    run(scenario)


class Careless(TryAgain):
    def __init__(self) -> None:  # the parent's is forgotten
        pass


def test_an_error_whose_constructor_forgot_the_message_is_still_said() -> None:
    assert str(Careless()) == "no reason was given"


def test_an_exception_as_the_message_of_an_error_becomes_text() -> None:
    error = PluginError(OSError("no card"))  # type: ignore[arg-type]  # the mistake under test
    assert error.message == "no card"
