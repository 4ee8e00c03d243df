"""Exchanges that are cut short: by the end of the daemon, by another change, by a start that is still under way."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nodeplug.contract.errors import Ending
from nodeplug.hosting import lifecycle
from nodeplug.hosting.supervision import Supervision

if TYPE_CHECKING:
    from tests.unit.exchange.conftest import Nets


def plugin(net: "Nets", name: str) -> Any:
    return net.lifecycle.registry.plugins[name].examined.plugin


async def retry(net: "Nets", name: str) -> None:
    net.lifecycle.registry.slots[name].retry_at = 0
    await Supervision(net.lifecycle).retry_failed()


def test_an_instance_that_is_being_started_again_is_stopped_when_its_section_is_removed(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section(failing=True)})
        plugin(net, "a")._config.failing = False
        net.life.clear()
        starting = net.gate("start first")
        await retry(net, "a")
        await net.said("start first")
        reload = asyncio.create_task(net.lifecycle.apply({}))
        await asyncio.sleep(0.02)
        starting.set()
        await reload

    net.run(scenario)
    assert net.life == ["start first", "stop first"]


def test_the_end_of_the_daemon_does_not_wait_for_an_instance_that_is_being_started(net: "Nets") -> None:
    async def scenario() -> None:
        starting = net.gate("start first")
        first = asyncio.create_task(net.lifecycle.apply({"a": net.section()}))
        await net.said("start first")
        await net.lifecycle.stop_all()
        assert not first.done()
        starting.set()
        await first

    net.run(scenario)
    assert "stop first" not in net.life


def test_an_instance_whose_start_failed_is_not_stopped(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section(failing=True)})
        await net.lifecycle.apply({})

    net.run(scenario)
    assert "stop first" not in net.life


def test_the_end_of_the_daemon_starts_nothing_and_waits_for_what_is_being_stopped(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        stopping = net.gate("stop first")
        reload = asyncio.create_task(net.lifecycle.apply({"a": net.section(mark="second")}))
        await net.said("stop first")
        end = asyncio.create_task(net.lifecycle.stop_all())
        await asyncio.sleep(0.05)
        assert not end.done()
        stopping.set()
        await asyncio.gather(reload, end)

    net.run(scenario)
    assert net.life[-1] == "stop first"


def test_a_call_that_waits_for_an_exchange_is_told_at_once_that_the_daemon_ends(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        starting = net.gate("start second")
        reload = asyncio.create_task(net.lifecycle.apply({"a": net.section(mark="second")}))
        await net.said("start second")
        call = asyncio.create_task(net.add())
        await asyncio.sleep(0.02)
        await net.lifecycle.stop_all()
        await asyncio.wait({call}, timeout=10)
        assert isinstance(call.exception(), Ending)
        starting.set()
        await reload

    net.run(scenario)


def test_going_back_fails_while_another_plugin_takes_the_new_claim(
    net: "Nets", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "LOAD_PATIENCE", 0.05)

    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section(claims=("x",))})
        net.life.clear()
        loading, starting = net.gate("construct late"), net.gate("start first")
        sections = {
            "a": net.section(claims=("x", "y"), mark="second", failing=True),
            "late": net.section(claims=("y",), mark="late"),
        }
        reload = asyncio.create_task(net.lifecycle.apply(sections))
        await net.said("start first")  # in a new instance of the former section, which leaves y to others
        plugin(net, "a")._config.failing = True
        loading.set()
        await net.said("start late")
        starting.set()
        await reload
        assert {name: state.state for name, state in net.lifecycle.registry.slots.items()} == {
            "a": "failed",
            "late": "running",
        }

    net.run(scenario)


def test_a_stop_that_hangs_keeps_no_later_instance_from_serving(net: "Nets") -> None:
    impatient = {"deadline": {"stop": 0.05, "start": 0.5, "claims": 0.5}}

    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        stopping = net.gate("stop first")
        for mark in ("second", "third"):
            await net.lifecycle.apply({"a": net.section(mark=mark).model_copy(update=impatient)})
            assert net.lifecycle.registry.slots["a"].reason == ""
        await net.add()
        stopping.set()

    net.run(scenario)
    told = [what for what in net.life if what != "stop first"]  # its thread may begin late
    assert told[-1] == "added third"
    assert net.life.count("stop first") <= 1


def test_a_start_that_hangs_keeps_the_former_configuration_from_nothing(net: "Nets") -> None:
    impatient = {"deadline": {"start": 0.5, "claims": 0.5}}  # the former instance starts within it, too

    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        starting = net.gate("start second")
        await net.lifecycle.apply({"a": net.section(mark="second").model_copy(update=impatient)})
        assert "start of plugin 'a' did not end within" in net.lifecycle.registry.slots["a"].reason
        await net.add()
        starting.set()

    net.run(scenario)
    told = [what for what in net.life if what != "start second"]  # its thread may begin late
    assert told[-3:] == ["start first", "add first", "added first"]
    assert net.life.count("start second") <= 1


@pytest.mark.parametrize("turns", [30])
def test_reloads_in_quick_succession_leave_one_instance(net: "Nets", turns: int) -> None:
    async def scenario() -> None:
        for turn in range(turns):
            await net.lifecycle.apply({"a": net.section(mark=str(turn))})
        await net.add()

    net.run(scenario)
    started = [what for what in net.life if what.startswith("start")]
    stopped = [what for what in net.life if what.startswith("stop")]
    assert (len(started), len(stopped), net.life[-1]) == (turns, turns - 1, f"added {turns - 1}")
