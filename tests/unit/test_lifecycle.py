import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from nodeplug import CniClaim, CniResult, Host, NotReady, TryAgain, hookimpl
from nodeplug.config import PluginSection
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.lives import Tasks
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import AT_ONCE, Runner
from nodeplug.hosting.served_devices import ServedDevices
from nodeplug.hosting.supervision import Supervision
from nodeplug.testing import host


class Recorded:
    """Writes down its own life; configured by what shall go wrong."""

    class Config(BaseModel, extra="forbid"):
        claim: str = "recorded"
        failing_starts: int = 0
        unhealthy: bool = False
        broken: bool = False

    life: ClassVar[list[str]] = []
    starts: ClassVar[int] = 0

    def __init__(self, config: Config, host: Host) -> None:
        if config.broken:
            raise OSError("no")
        self._config = config
        self._name, self._life = host.plugin, self.life  # of its test: it may stop when another one runs

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim(self._config.claim)]

    @hookimpl
    def start(self) -> None:
        type(self).starts += 1
        if type(self).starts <= self._config.failing_starts:
            raise OSError(f"start {type(self).starts} fails")
        self._life.append(f"start {self._name}")

    @hookimpl
    def stop(self) -> None:
        self._life.append(f"stop {self._name}")

    @hookimpl
    def health(self) -> None:
        if self._config.unhealthy:
            raise NotReady("the card is gone")

    @hookimpl
    def cni_add(self) -> CniResult:
        return CniResult()

    @hookimpl
    def cni_del(self) -> None: ...


@pytest.fixture(autouse=True)
def fresh_record() -> None:
    Recorded.life = []
    Recorded.starts = 0


def section(**config: Any) -> PluginSection:
    return PluginSection(uses=f"{__name__}:Recorded", isolation="thread", config=config)


@pytest.fixture
def lifecycle(tmp_path: Path) -> Lifecycle:
    def make_host(name: str) -> Host:
        return host(tmp_path, plugin=name)

    return Lifecycle(Registry(), Runner(), make_host)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


async def retry(lifecycle: Lifecycle, name: str) -> None:
    """Let the time of the next start come, and wait for what comes of it."""
    lifecycle.registry.slots[name].retry_at = 0
    await Supervision(lifecycle).retry_failed()
    while lifecycle.registry.slots[name].state == "starting":
        await asyncio.sleep(0.001)


def test_a_task_that_has_ended_is_not_kept() -> None:
    async def scenario() -> None:
        tasks = Tasks()
        await tasks.start(asyncio.sleep(0), "nothing")
        await asyncio.sleep(0)
        assert tasks.running == set()

    run(scenario)


def test_a_section_that_did_not_change_is_not_touched(lifecycle: Lifecycle) -> None:
    async def scenario() -> None:
        await lifecycle.apply({"a": section(claim="a"), "b": section(claim="b")})
        kept = lifecycle.registry.plugins["a"].examined.plugin
        await lifecycle.apply({"a": section(claim="a"), "b": section(claim="b2")})
        assert lifecycle.registry.plugins["a"].examined.plugin is kept

    run(scenario)
    assert sorted(Recorded.life) == ["start a", "start b", "start b", "stop b"]


def test_a_changed_deadline_alone_changes_no_plugin(lifecycle: Lifecycle) -> None:
    async def scenario() -> None:
        await lifecycle.apply({"a": section()})
        patient = section().model_copy(update={"deadline": {"cni_add": 7.0}})
        await lifecycle.apply({"a": patient})
        assert lifecycle.registry.slots["a"].deadline("cni_add") == 7.0

    run(scenario)
    assert Recorded.life == ["start a"]


def test_a_removed_section_is_stopped_and_its_claim_freed(lifecycle: Lifecycle) -> None:
    async def scenario() -> None:
        await lifecycle.apply({"a": section()})
        await lifecycle.apply({"b": section()})
        assert lifecycle.registry.slots["b"].state == "running"

    run(scenario)
    assert Recorded.life == ["start a", "stop a", "start b"]


def test_a_start_that_raises_disables_that_plugin_alone(lifecycle: Lifecycle) -> None:
    async def scenario() -> None:
        await lifecycle.apply({"bad": section(claim="bad", failing_starts=1)})
        await lifecycle.apply({"bad": section(claim="bad", failing_starts=1), "good": section(claim="good")})
        assert lifecycle.registry.slots["bad"].state == "failed"
        assert lifecycle.registry.slots["good"].state == "running"
        with pytest.raises(TryAgain, match=r"plugin 'bad' is not running: its start failed: .*start 1 fails"):
            lifecycle.registry.route("cni", "bad")

    run(scenario)


def test_a_failed_start_is_tried_again_and_then_serves(lifecycle: Lifecycle) -> None:
    async def scenario() -> None:
        await lifecycle.apply({"a": section(failing_starts=1)})
        await retry(lifecycle, "a")
        assert lifecycle.registry.route("cni", "recorded").plugin == "a"

    run(scenario)


def test_each_failure_postpones_the_next_start_further(lifecycle: Lifecycle) -> None:
    async def scenario() -> None:
        await lifecycle.apply({"a": section(failing_starts=9)})
        waits = []
        for _ in range(3):
            waits.append(lifecycle.registry.slots["a"].retry_after)
            await retry(lifecycle, "a")
        assert waits == [2.0, 4.0, 8.0]

    run(scenario)


def test_a_second_owner_of_a_claim_is_refused_until_the_first_is_gone(lifecycle: Lifecycle) -> None:
    async def scenario() -> None:
        await lifecycle.apply({"a": section(), "b": section()})
        assert "which plugin 'a'" in lifecycle.registry.slots["b"].reason
        await lifecycle.apply({"b": section()})
        assert lifecycle.registry.slots["b"].state == "running"

    run(scenario)


def test_a_wrong_plugin_configuration_refuses_that_plugin_alone(lifecycle: Lifecycle) -> None:
    async def scenario() -> None:
        await lifecycle.apply({"bad": section(colour="red"), "good": section()})
        assert "plugins.bad.config.colour" in lifecycle.registry.slots["bad"].reason
        assert lifecycle.registry.slots["good"].state == "running"

    run(scenario)


def test_a_constructor_that_raises_refuses_that_plugin_alone(lifecycle: Lifecycle) -> None:
    async def scenario() -> None:
        await lifecycle.apply({"bad": section(broken=True)})
        assert "cannot be constructed: OSError: no" in lifecycle.registry.slots["bad"].reason

    run(scenario)


def test_health_names_each_plugin_that_is_not_well(lifecycle: Lifecycle) -> None:
    async def scenario() -> None:
        await lifecycle.apply({"sick": section(claim="s", unhealthy=True), "well": section(claim="w")})
        assert await Supervision(lifecycle).check_health() == {"sick": "the card is gone"}

    run(scenario)


def test_a_plugin_that_wants_to_is_asked_for_its_health_at_once_and_alone(lifecycle: Lifecycle) -> None:
    async def scenario() -> None:
        told: list[str] = []

        async def tell() -> None:
            told.extend(f"{slot.name}: {slot.reason}" for slot in registry.slots.values() if slot.reason)

        registry = lifecycle.registry
        await lifecycle.apply({"a": section(claim="a", unhealthy=True), "b": section(claim="b", unhealthy=True)})
        for name in ("a", "a", "removed meanwhile"):
            registry.want_health(name)
        await Supervision(lifecycle).check_wanted(tell, tell)
        assert told == ["a: the card is gone"] * 2
        assert not registry.health_news.is_set()

    run(scenario)


class Devices(ServedDevices):
    async def end(self, plugin: str, *, keep: bool = False) -> None:
        Recorded.life.append(f"no devices {plugin}")


def test_the_devices_of_a_plugin_are_gone_before_it_stops_also_at_the_end_of_the_daemon(tmp_path: Path) -> None:
    async def scenario() -> None:
        lifecycle = Lifecycle(Registry(), Runner(), lambda name: host(tmp_path, plugin=name), Devices())
        await lifecycle.apply({"a": section(claim="a"), "b": section(claim="b")})
        Recorded.life.clear()
        await lifecycle.apply({"b": section(claim="b")})
        await lifecycle.stop_all()
        assert Recorded.life == ["no devices a", "stop a", "no devices b", "stop b"]

    run(scenario)


class Crowded:
    """Counts how many of its kind are constructed, or start, at a time."""

    most: ClassVar[int] = 0
    _now: ClassVar[int] = 0
    _counting: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, config: object, host: Host) -> None:
        self._name = host.plugin
        self.count()

    def count(self) -> None:
        with self._counting:
            Crowded._now += 1
            Crowded.most = max(Crowded.most, Crowded._now)
        time.sleep(0.001)  # a thread that starts meanwhile is counted
        with self._counting:
            Crowded._now -= 1

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim(self._name)]

    @hookimpl
    def start(self) -> None:
        self.count()

    @hookimpl
    def cni_add(self) -> CniResult:
        return CniResult()

    @hookimpl
    def cni_del(self) -> None: ...


def test_of_many_plugins_a_few_are_loaded_and_started_at_a_time(lifecycle: Lifecycle) -> None:
    crowd = {f"p{number}": PluginSection(uses=f"{__name__}:Crowded", isolation="thread") for number in range(60)}

    async def scenario() -> None:
        await lifecycle.apply(crowd)
        assert [slot.state for slot in lifecycle.registry.slots.values()] == ["running"] * 60

    run(scenario)
    assert 1 < Crowded.most <= AT_ONCE
