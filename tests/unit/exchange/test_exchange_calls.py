"""Calls that come while their plugin is being exchanged, or are inside it: none fails for that."""

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from nodeplug import NotFound, PluginError, TryAgain
from nodeplug.hosting import lifecycle, lives
from nodeplug.hosting.call import Call
from nodeplug.hosting.slot import DEFAULT_DEADLINES

if TYPE_CHECKING:
    from tests.unit.exchange.conftest import Nets


def test_a_call_in_the_gap_waits_and_is_answered_by_the_new_instance(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        before = net.lifecycle.registry.route("cni", "net")
        started = net.gate("start second")
        reload = asyncio.create_task(net.lifecycle.apply({"a": net.section(mark="second")}))
        await net.said("start second")
        calls = [asyncio.create_task(net.add()), asyncio.create_task(net.add(key="x", route=before))]
        await asyncio.sleep(0.02)
        assert not any(call.done() for call in calls)
        started.set()
        await asyncio.gather(*calls, reload)

    net.run(scenario)
    assert net.life.count("added second") == 2
    assert "add first" not in net.life


def test_a_call_inside_the_old_instance_ends_there_before_it_is_stopped(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        inside = net.gate("add first")
        call = asyncio.create_task(net.add())
        await net.said("add first")
        reload = asyncio.create_task(net.lifecycle.apply({"a": net.section(mark="second")}))
        await net.said("construct second")
        await asyncio.sleep(0.02)
        inside.set()
        await asyncio.gather(call, reload)

    net.run(scenario)
    assert net.life[2:] == ["add first", "construct second", "added first", "stop first", "start second"]


def test_a_call_that_waits_for_its_key_goes_to_the_new_instance(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        former = net.lifecycle.registry.plugins["a"]
        inside = net.gate("add first")
        first = asyncio.create_task(net.add())
        await net.said("add first")
        second = asyncio.create_task(net.add())  # the same key
        reload = asyncio.create_task(net.lifecycle.apply({"a": net.section(mark="second")}))
        while net.lifecycle.registry.plugins["a"] is former:
            await asyncio.sleep(0.001)
        inside.set()
        await asyncio.gather(first, second, reload)

    net.run(scenario)
    assert net.life[-2:] == ["add second", "added second"]


def test_a_call_that_hangs_holds_up_a_reload_for_a_while_only(net: "Nets", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "CALL_PATIENCE", 0.05)

    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section()})
        inside = net.gate("add first")
        call = asyncio.create_task(net.add(key="x"))
        await net.said("add first")
        await net.lifecycle.apply({"a": net.section(mark="second")})
        await net.add()
        inside.set()
        await call

    net.run(scenario)
    assert net.life[-3:] == ["add second", "added second", "added first"]


def test_a_call_in_the_gap_fails_at_its_deadline_and_says_why(net: "Nets") -> None:
    async def scenario() -> None:
        impatient = {"deadline": {"cni_add": 0.05}}
        await net.lifecycle.apply({"a": net.section().model_copy(update=impatient)})
        started = net.gate("start second")
        reload = asyncio.create_task(
            net.lifecycle.apply({"a": net.section(mark="second").model_copy(update=impatient)})
        )
        await net.said("start second")
        with pytest.raises(TryAgain, match=r"plugin 'a' is being reloaded and does not run after 0\.05 s"):
            await net.add()
        started.set()
        await reload

    net.run(scenario)


def test_a_call_for_a_claim_that_went_away_in_the_gap_is_told_so(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section(claims=("net", "other"))})
        before = net.lifecycle.registry.route("cni", "net")
        await net.lifecycle.apply({"a": net.section(claims=("other",))})
        with pytest.raises(NotFound, match="no enabled plugin serves cni 'net'"):
            await net.add(route=before)

    net.run(scenario)


def test_a_call_for_a_claim_whose_plugin_still_loads_is_asked_to_come_again(
    net: "Nets", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "LOAD_PATIENCE", 0.02)

    async def scenario() -> None:
        constructed = net.gate("construct second")
        sections = {"b": net.section(claims=("other",)), "a": net.section(mark="second")}
        start = asyncio.create_task(net.lifecycle.apply(sections))
        await net.said("start first")
        with pytest.raises(TryAgain, match="nobody serves cni 'net' yet, and plugins still load: a; ask again"):
            await net.add()
        constructed.set()
        await start
        await net.add()

    net.run(scenario)
    assert net.life[-1] == "added second"


def test_a_plugin_whose_loading_has_failed_lets_other_claims_be_nobodys(net: "Nets") -> None:
    async def scenario() -> None:
        net.gate("construct first")
        await net.lifecycle.apply({"a": net.section().model_copy(update={"deadline": {"claims": 0.05}})})
        with pytest.raises(NotFound, match="no enabled plugin serves cni 'net'"):
            await net.add()

    net.run(scenario)


def test_a_hook_that_went_away_with_the_reload_asks_the_caller_to_repeat(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section("Checking")})
        before = net.lifecycle.registry.route("cni", "net")
        await net.lifecycle.apply({"a": net.section("Net")})
        with pytest.raises(TryAgain, match="plugin 'a' has no cni_check any more: it was reloaded"):
            await net.lifecycle.runner.call(before, "cni_check", Call("CHECK", "cni:net"), {})

    net.run(scenario)


def test_a_delegated_call_waits_while_the_delegate_is_exchanged(net: "Nets") -> None:
    async def scenario() -> None:
        main, ipam = net.section(delegate="ipam", mark="main"), net.section(claims=("ipam",))
        await net.lifecycle.apply({"main": main, "ipam": ipam})
        started = net.gate("start second")
        reload = asyncio.create_task(
            net.lifecycle.apply({"main": main, "ipam": net.section(claims=("ipam",), mark="second")})
        )
        await net.said("start second")
        call = asyncio.create_task(net.add())
        await net.said("add main")
        started.set()
        await asyncio.gather(call, reload)

    net.run(scenario)
    assert net.life[-3:] == ["add second", "added second", "added main"]


def test_a_delegate_is_not_stopped_while_another_plugin_is_inside_it(net: "Nets") -> None:
    async def scenario() -> None:
        main, ipam = net.section(delegate="ipam", mark="main"), net.section(claims=("ipam",))
        await net.lifecycle.apply({"main": main, "ipam": ipam})
        inside = net.gate("add first")
        call = asyncio.create_task(net.add())
        await net.said("add first")
        reload = asyncio.create_task(
            net.lifecycle.apply({"main": main, "ipam": net.section(claims=("ipam",), mark="second")})
        )
        await net.said("construct second")
        await asyncio.sleep(0.02)
        inside.set()
        await asyncio.gather(call, reload)

    net.run(scenario)
    assert net.life.index("added first") < net.life.index("stop first")


def test_a_call_waits_for_the_exchange_of_its_delegate_only_as_long_as_it_has(
    net: "Nets", monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    arrive = type(net.lifecycle.runner)._arrive

    def arriving(self: Any, route: Any, seconds: float) -> Any:
        waits.append(seconds)
        return arrive(self, route, seconds)

    monkeypatch.setattr(type(net.lifecycle.runner), "_arrive", arriving)

    async def scenario() -> None:
        await net.lifecycle.apply({"main": net.section(delegate="ipam"), "ipam": net.section(claims=("ipam",))})
        await net.add()

    net.run(scenario)
    (seconds,) = waits
    assert 0 < seconds < DEFAULT_DEADLINES["cni_add"]


def test_a_plugin_that_delegates_to_itself_stays_in_its_instance(net: "Nets") -> None:
    async def scenario() -> None:
        await net.lifecycle.apply(
            {"a": net.section(claims=("net", "ipam")), "m": net.section(claims=("m",), delegate="net")}
        )
        route = net.lifecycle.registry.route("cni", "net")

        def inside(own: Callable[..., Any]) -> Callable[..., Any]:
            def call(**arguments: Any) -> Any:
                reload_wanted.set()
                assert reload_begun.wait(20)
                with net.lifecycle.runner.visiting(net.lifecycle.registry.route("cni", "ipam")) as entered:
                    entered.callers["cni_add"](request=arguments["request"])
                return own(**arguments)

            return call

        reload_wanted, reload_begun = threading.Event(), threading.Event()
        call = asyncio.create_task(
            net.lifecycle.runner.call(route, "cni_add", Call("ADD", "cni:net"), {"request": net.request}, around=inside)
        )
        while not reload_wanted.is_set():
            await asyncio.sleep(0.001)
        reload = asyncio.create_task(
            net.lifecycle.apply(
                {
                    "a": net.section(claims=("net", "ipam"), mark="second"),
                    "m": net.section(claims=("m",), delegate="net"),
                }
            )
        )
        await net.said("construct second")
        await asyncio.sleep(0.02)
        reload_begun.set()
        await asyncio.gather(call, reload)

    net.run(scenario)
    assert net.life.count("added first") == 2


def test_the_thread_of_a_call_finds_a_route_at_every_moment_of_a_reload(net: "Nets") -> None:
    refused: list[Exception] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                net.lifecycle.registry.route("cni", "net")
            except PluginError as error:
                refused.append(error)

    async def scenario() -> None:
        await net.lifecycle.apply({"a": net.section(mark="0")})
        thread = threading.Thread(target=look)
        thread.start()
        try:
            for number in range(1, 30):
                await net.lifecycle.apply({"a": net.section(mark=str(number))})
        finally:
            done.set()
            thread.join()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        net.run(scenario)
    finally:
        sys.setswitchinterval(before)
    assert refused == []


def test_an_unserved_claim_is_refused_rather_than_held_while_its_plugin_starts(net: "Nets") -> None:
    async def scenario() -> None:
        starting = net.gate("start first")
        begun = asyncio.create_task(net.lifecycle.apply({"a": net.section()}))
        await net.said("start first")
        with pytest.raises(TryAgain, match="plugin 'a' is not running: it is starting"):
            await net.add()
        starting.set()
        await begun

    net.run(scenario)


def test_a_wrapper_has_no_gap_while_its_plugin_is_exchanged(net: "Nets") -> None:
    async def scenario() -> None:
        policy = {"claims": (), "mark": "policy"}
        await net.lifecycle.apply({"a": net.section(), "p": net.section("Policy", **policy)})
        starting = net.gate("start stricter")
        stricter = {"a": net.section(), "p": net.section("Policy", **policy | {"mark": "stricter"})}
        reload = asyncio.create_task(net.lifecycle.apply(stricter))
        await net.said("start stricter")
        await net.add()
        starting.set()
        await reload

    net.run(scenario)
    assert net.life[-3:] == ["wrap stricter", "add first", "added first"]
