"""Host code that calls several hooks in one thread."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from nodeplug import DeadlineExceeded, PluginError, TryAgain, VolumeClaim, hookimpl
from nodeplug.contract.errors import Ending
from nodeplug.hosting.call import Call
from nodeplug.hosting.composition import Composition
from nodeplug.hosting.overdue import LIMIT as OVERDUE_LIMIT
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route


class Probe:
    """A volume plugin whose hooks are whatever the test gives."""

    def __init__(self, stage: Callable[[], None], publish: Callable[[], None]) -> None:
        self._stage, self._publish = stage, publish

    @hookimpl
    def claims(self) -> list[VolumeClaim]:
        return [VolumeClaim("acme/probe")]

    @hookimpl
    def volume_stage(self) -> None:
        self._stage()

    @hookimpl
    def volume_publish(self) -> None:
        self._publish()


def nothing() -> None:
    pass


class Gate:
    """A hook that stays inside until it is let go."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        self.opened.wait(10)


def route_to(stage: Callable[[], None] = nothing, publish: Callable[[], None] = nothing, **deadlines: float) -> Route:
    registry = Registry()
    registry.load("probe", Probe(stage, publish), "the test", deadlines)
    return registry.route("volume", "acme/probe")


def composition(runner: Runner, route: Route, **more: Any) -> Composition:
    return Composition(runner, route, Call("mount", "volume:acme/probe", "k", whole=True), **more)


def both(work: Composition) -> str:
    work.hook("volume_stage", request=None)
    work.hook("volume_publish", request=None)
    return "done"


def run(scenario: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return await scenario()

    return asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_all_hooks_of_a_composition_run_in_its_thread() -> None:
    idents: list[int] = []

    def note() -> None:
        idents.append(threading.get_ident())

    def work(own: Composition) -> str:
        note()
        return both(own)

    assert run(lambda: composition(Runner(), route_to(note, note)).run(work)) == "done"
    assert len(set(idents)) == 1
    assert threading.get_ident() not in idents


def test_the_thread_bears_the_name_of_the_hook_that_runs_in_it() -> None:
    names: list[str] = []

    def note() -> None:
        names.append(threading.current_thread().name)

    run(lambda: composition(Runner(), route_to(note, note)).run(both))
    assert names == ["probe:volume_stage:k", "probe:volume_publish:k"]


def test_an_error_of_a_hook_reaches_the_work_which_may_undo() -> None:
    undone: list[str] = []

    def fail() -> None:
        raise PluginError("the disk is on fire")

    def work(own: Composition) -> None:
        try:
            both(own)
        except PluginError as error:
            undone.append(error.message)
            raise

    with pytest.raises(PluginError, match="on fire"):
        run(lambda: composition(Runner(), route_to(publish=fail)).run(work))
    assert undone == ["the disk is on fire"]


def test_an_overdue_hook_is_answered_early_and_the_work_goes_on_behind_it() -> None:
    gate, published = Gate(), threading.Event()

    async def scenario() -> None:
        runner, route = Runner(), route_to(gate, published.set, volume_stage=0.05)
        with pytest.raises(DeadlineExceeded, match="volume_stage of plugin 'probe' did not end within"):
            await composition(runner, route).run(both)
        assert [call.name for call in route.slot.overdue] == ["probe:volume_stage:k"]
        assert not published.is_set()
        gate.opened.set()
        await until(published.is_set)
        await until(lambda: not route.slot.overdue and not route.slot.calls)

    run(scenario)


def test_a_second_overdue_hook_is_overdue_although_the_answer_was_given() -> None:
    stage, publish = Gate(), Gate()

    async def scenario() -> None:
        runner, route = Runner(), route_to(stage, publish, volume_stage=0.05, volume_publish=0.05)
        with pytest.raises(DeadlineExceeded):
            await composition(runner, route).run(both)
        stage.opened.set()
        await until(lambda: [call.hook for call in route.slot.overdue] == ["volume_publish"])
        publish.opened.set()
        await until(lambda: not route.slot.overdue)

    run(scenario)


def test_an_overdue_step_of_the_host_is_answered_early_and_is_no_fault_of_the_plugin() -> None:
    release, published = threading.Event(), threading.Event()

    def work(own: Composition) -> None:
        own.step("unmount")
        release.wait(10)
        own.hook("volume_publish", request=None)

    async def scenario() -> None:
        route = route_to(publish=published.set)
        own = composition(Runner(), route, deadline=0.5)
        with pytest.raises(DeadlineExceeded, match=r"unmount for 'k' did not end within 0\.5 s; it still runs"):
            await own.run(work)
        assert not route.slot.overdue
        release.set()
        await until(published.is_set)

    run(scenario)


def test_each_step_has_the_whole_deadline() -> None:
    def work(own: Composition) -> str:
        for name in ("look", "mount", "look again"):
            own.step(name)
            time.sleep(0.7)
        return "done"

    assert run(lambda: composition(Runner(), route_to(), deadline=2.0).run(work)) == "done"


def test_a_wait_with_a_bound_of_its_own_is_not_overdue() -> None:
    def work(own: Composition) -> str:
        own.step("a wait", math.inf)
        time.sleep(0.6)
        return "done"

    assert run(lambda: composition(Runner(), route_to(), deadline=0.5).run(work)) == "done"


def test_a_caller_that_goes_away_changes_nothing() -> None:
    gate, published = Gate(), threading.Event()

    async def scenario() -> None:
        route = route_to(gate, published.set)
        caller = asyncio.create_task(composition(Runner(), route).run(both))
        await until(gate.entered.is_set)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        gate.opened.set()
        await until(published.is_set)

    run(scenario)


def test_a_deadline_that_the_plugin_exceeded_itself_is_an_error_like_any_other() -> None:
    def give_up() -> None:
        raise DeadlineExceeded("the server is silent")

    caught: list[str] = []

    def work(own: Composition) -> None:
        try:
            own.hook("volume_stage", request=None)
        except DeadlineExceeded as error:
            caught.append(error.message)

    run(lambda: composition(Runner(), route_to(give_up)).run(work))
    assert caught == ["the server is silent"]


def test_a_hook_of_a_quarantined_plugin_is_refused_in_the_middle_of_the_work() -> None:
    gate = Gate()

    async def scenario() -> None:
        runner, route = Runner(), route_to(gate, volume_stage=0.02)
        for number in range(OVERDUE_LIMIT):
            with pytest.raises(DeadlineExceeded):
                await runner.call(route, "volume_stage", Call("mount", "x", str(number)), {"request": None})
        with pytest.raises(TryAgain, match="quarantined"):
            await composition(runner, route).run(lambda own: own.hook("volume_publish", request=None))
        gate.opened.set()
        await until(lambda: not route.slot.overdue)

    run(scenario)


def test_a_hook_of_a_plugin_that_is_being_exchanged_waits_for_it() -> None:
    published = threading.Event()

    async def scenario() -> None:
        route = route_to(publish=published.set)
        route.slot.hold()
        mounting = asyncio.create_task(composition(Runner(), route).run(both))
        await asyncio.sleep(0.05)
        assert not published.is_set()
        route.slot.enter("running")
        assert await mounting == "done"

    run(scenario)


def test_an_operating_system_error_of_the_host_is_an_error_of_the_tree() -> None:
    def work(_: Composition) -> None:
        raise PermissionError(13, "Permission denied", "/journal")

    with pytest.raises(PluginError, match=r"PermissionError: .*Permission denied: '/journal'"):
        run(lambda: composition(Runner(), route_to()).run(work))


def test_work_that_the_end_of_the_daemon_cuts_short_is_not_rolled_back() -> None:
    gate, ended = Gate(), threading.Event()
    undone: list[Exception] = []

    def work(own: Composition) -> None:
        try:
            both(own)
        except Exception as error:
            undone.append(error)
        finally:
            ended.set()

    async def scenario() -> None:
        caller = asyncio.create_task(composition(Runner(), route_to(gate)).run(work))
        await until(gate.entered.is_set)
        assert not caller.done()

    run(scenario)
    gate.opened.set()
    assert ended.wait(10)
    assert undone == []


def test_nothing_follows_a_hook_that_ends_after_the_daemons_loop() -> None:
    """What is half done is left for the next start, as after a kill: another daemon may have the records by then."""
    gate, after, ended = Gate(), list[str](), threading.Event()

    def work(own: Composition) -> None:
        try:
            own.hook("volume_stage", request=None)
            after.append("the work went on")
        finally:
            ended.set()

    async def scenario() -> None:
        running = asyncio.create_task(composition(Runner(), route_to(gate)).run(work))
        await until(gate.entered.is_set)
        assert not running.done()

    run(scenario)
    gate.opened.set()
    assert ended.wait(10)
    assert after == []


def test_a_hook_that_is_refused_because_the_daemon_ends_undoes_nothing() -> None:
    """The plugin is stopped, so what was half done could not be undone by it; the next daemon goes on from there."""
    undone: list[str] = []
    route = route_to()

    def work(own: Composition) -> str:
        own.hook("volume_stage", request=None)
        route.slot.enter("ended")
        try:
            own.hook("volume_publish", request=None)
        except Exception:
            undone.append("rolled back")
            raise
        return "done"

    with pytest.raises(Ending):
        run(lambda: composition(Runner(), route).run(work))
    assert undone == []
