"""The exchange of plugins whose sections changed: who is constructed, stopped, started, and who serves meanwhile."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nodeplug.hosting import lifecycle

if TYPE_CHECKING:
    from tests.unit.exchange.conftest import Nets


def test_the_new_instance_is_constructed_before_the_old_one_is_stopped(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        await net.lifecycle.apply({"a": net.section(mark="second")})

    net.run(scenario)
    assert net.life == ["construct first", "start first", "construct second", "stop first", "start second"]


@pytest.mark.parametrize("fault", [{"broken": True}, {"colour": "red"}], ids=["constructor", "validation"])
def test_a_configuration_that_cannot_be_loaded_leaves_the_old_instance_alone(
    net: "Nets", fault: dict[str, Any]
) -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        kept = net.lifecycle.registry.plugins["a"].examined.plugin
        await net.lifecycle.apply({"a": net.section(mark="second", **fault)})
        assert net.lifecycle.registry.plugins["a"].examined.plugin is kept
        assert net.lifecycle.registry.slots["a"].state == "running"
        assert "cannot be loaded, the former one serves" in net.lifecycle.registry.slots["a"].reason
        assert net.lifecycle.refused == ["a"]

    net.run(scenario)
    assert "stop first" not in net.life


def test_going_back_to_the_old_configuration_forgets_the_refusal(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        await net.lifecycle.apply({"a": net.section(broken=True)})
        await net.lifecycle.apply({"a": net.section()})
        assert net.lifecycle.registry.slots["a"].reason == ""

    net.run(scenario)
    assert net.life.count("start first") == 1


def test_a_configuration_that_does_not_start_is_followed_by_a_new_instance_with_the_old_one(
    net: "Nets",
) -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        await net.lifecycle.apply({"a": net.section(mark="second", failing=True)})
        assert net.lifecycle.registry.slots["a"].state == "running"
        assert "does not start, the former one serves" in net.lifecycle.registry.slots["a"].reason
        await net.add()

    net.run(scenario)
    assert net.life[2:] == [
        *("construct second", "stop first", "start second"),
        *("construct first", "start first", "add first", "added first"),
    ]


def test_a_rejected_configuration_is_tried_again_at_the_next_reload(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        await net.lifecycle.apply({"a": net.section(mark="second", failing=True)})
        await net.lifecycle.apply({"a": net.section(mark="second", failing=True)})

    net.run(scenario)
    assert net.life.count("start second") == 2


def test_a_claim_that_moves_is_answered_by_its_new_owner_after_the_old_one_stopped(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section(claims=("net", "other"))})
        before = net.lifecycle.registry.route("cni", "net")
        stopping = net.gate("stop first")
        sections = {"a": net.section(claims=("other",), mark="rest"), "b": net.section(mark="moved")}
        reload = asyncio.create_task(net.lifecycle.apply(sections))
        await net.said("stop first")
        call = asyncio.create_task(net.add(route=before))
        await asyncio.sleep(0.02)
        assert not call.done()
        stopping.set()
        await asyncio.gather(call, reload)

    net.run(scenario)
    assert "added moved" in net.life
    assert net.life.index("start moved") > net.life.index("stop first")


def test_two_plugins_can_swap_their_claims(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section(claims=("x",)), "b": net.section(claims=("y",), mark="b")})
        await net.lifecycle.apply({"a": net.section(claims=("y",)), "b": net.section(claims=("x",), mark="b")})
        assert net.lifecycle.registry.route("cni", "x").plugin == "b"
        assert {state.reason for state in net.lifecycle.registry.slots.values()} == {""}

    net.run(scenario)


def test_a_claim_that_its_owner_keeps_is_refused_to_another(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        await net.lifecycle.apply({"a": net.section(broken=True), "b": net.section(mark="b")})  # a was to give it away
        assert net.lifecycle.registry.slots["b"].state == "refused"
        await net.add()

    net.run(scenario)
    assert net.life[-1] == "added first"


def test_a_slow_constructor_lets_the_old_instance_serve_meanwhile(net: "Nets", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "LOAD_PATIENCE", 0.02)

    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        constructing = net.gate("construct second")
        reload = asyncio.create_task(net.lifecycle.apply({"a": net.section(mark="second")}))
        await net.said("construct second")
        await asyncio.sleep(0.05)
        await net.add()
        constructing.set()
        await reload
        await net.add()

    net.run(scenario)
    assert [what for what in net.life if what.startswith("added")] == ["added first", "added second"]


def test_a_constructor_that_hangs_keeps_the_old_instance(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        net.gate("construct second")
        hanging = net.section(mark="second").model_copy(update={"deadline": {"claims": 0.05}})
        await net.lifecycle.apply({"a": hanging})
        await net.add()
        assert "load of plugin 'a' did not end within" in net.lifecycle.registry.slots["a"].reason

    net.run(scenario)
    assert net.life[-1] == "added first"


def test_one_that_loads_last_and_stands_first_gets_its_claim_and_the_refused_their_chance(net: "Nets") -> None:
    async def scenario() -> None:
        gate = net.gate("construct late")
        sections = {
            "a": net.section(mark="late"),
            "b": net.section(mark="quick", claims=("net", "other")),
            "c": net.section(mark="third", claims=("other",)),
        }
        applied = asyncio.create_task(net.lifecycle.apply(sections))
        await net.said("start quick")
        while net.lifecycle.registry.slots["b"].state != "running":
            await asyncio.sleep(0.001)
        assert net.lifecycle.registry.slots["c"].state == "refused"
        gate.set()
        await applied
        states = {name: state.state for name, state in net.lifecycle.registry.slots.items()}
        assert states == {"a": "running", "b": "refused", "c": "running"}
        assert net.lifecycle.registry.route("cni", "net").plugin == "a"
        assert net.lifecycle.registry.route("cni", "other").plugin == "c"

    net.run(scenario)
