"""A new instance that needs its time: it gets ready beside the one that serves."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.exchange.conftest import Nets


def test_the_former_instance_serves_until_the_new_one_is_ready(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section("Slow")})
        gate = net.gate("prepare second")
        reload = asyncio.create_task(net.lifecycle.apply({"a": net.section("Slow", mark="second")}))
        await net.said("prepare second")
        await net.add("one")
        gate.set()
        await reload
        await net.add("two")

    net.run(scenario)
    assert net.life == [
        *("construct first", "start first"),
        *("construct second", "prepare second", "add first", "added first", "stop first", "start second"),
        *("add second", "added second"),
    ]


def test_nothing_is_prepared_where_nobody_serves(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section("Slow")})

    net.run(scenario)
    assert net.life == ["construct first", "start first"]


def test_a_section_that_takes_over_the_claims_of_another_gets_ready_beside_it(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section("Slow")})
        await net.lifecycle.apply({"b": net.section("Slow", mark="second")})

    net.run(scenario)
    assert net.life[2:] == ["construct second", "prepare second", "stop first", "start second"]


def test_an_instance_that_cannot_get_ready_is_stopped_and_the_former_one_left_alone(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section("Slow")})
        await net.lifecycle.apply({"a": net.section("Slow", mark="second", unready=True)})
        assert net.lifecycle.registry.slots["a"].state == "running"
        assert "the former one serves: " in net.lifecycle.registry.slots["a"].reason
        await net.said("stop second")
        await net.add()

    net.run(scenario)
    assert net.life[2:] == ["construct second", "prepare second", "stop second", "add first", "added first"]


def test_an_instance_that_got_ready_for_claims_of_others_is_stopped(net: "Nets") -> None:
    async def scenario() -> None:
        other = net.section(mark="other", claims=("other",))
        await net.lifecycle.apply({"b": other, "a": net.section("Slow")})
        await net.lifecycle.apply({"b": other, "a": net.section("Slow", mark="second", claims=("net", "other"))})
        await net.said("stop second")
        assert net.lifecycle.registry.slots["a"].state == "running"

    net.run(scenario)
    assert "stop first" not in net.life


def test_an_instance_that_got_ready_and_does_not_start_is_stopped_once_the_former_one_is_back(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section("Slow")})
        await net.lifecycle.apply({"a": net.section("Slow", mark="second", failing=True)})
        await net.said("stop second")
        assert net.lifecycle.registry.slots["a"].state == "running"

    net.run(scenario)
    assert net.life.count("start first") == 2


def test_an_instance_that_got_ready_and_did_not_start_is_stopped_when_its_section_goes(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section("Slow")})
        await net.lifecycle.apply({"b": net.section("Slow", mark="second", failing=True)})
        assert net.lifecycle.registry.slots["b"].state == "failed"
        await net.lifecycle.apply({})

    net.run(scenario)
    assert net.life[-1] == "stop second"
