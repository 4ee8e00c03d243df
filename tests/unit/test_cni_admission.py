"""Which CNI call goes first, and how many at once."""

import asyncio

import pytest

from nodeplug import TryAgain
from nodeplug.cni.admission import Admission


class Calls:
    """Calls that stay inside until they are let go, in the order in which they came in."""

    def __init__(self, room: Admission) -> None:
        self.room = room
        self.inside: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.leave: dict[str, asyncio.Event] = {}

    async def come(self, name: str, verb: str = "ADD", network: str = "net", claim: str = "bridge") -> None:
        self.leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, verb, network, claim))
        await self.settle()

    async def crowd(self, name: str, count: int, verb: str = "ADD", network: str = "net", claim: str = "bridge") -> int:
        """Let many come that hang; returns how many of them are inside."""
        for number in range(count):
            await self.come(f"{name}{number}", verb, network, claim)
        return sum(inside.startswith(name) for inside in self.inside)

    async def end(self) -> None:
        for leave in self.leave.values():
            leave.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def go(self, name: str) -> None:
        self.leave[name].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _hold(self, name: str, verb: str, network: str, claim: str) -> None:
        async with self.room.enter(verb, network, claim):
            self.inside.append(name)
            await self.leave[name].wait()


def test_no_more_run_than_there_is_room_for() -> None:
    async def story() -> None:
        calls = Calls(Admission(concurrency=2))
        for name in "abc":
            await calls.come(name, claim=name)
        assert calls.inside == ["a", "b"]
        assert (len(calls.room._inside), len(calls.room._queue)) == (2, 1)
        await calls.go("a")
        assert calls.inside == ["a", "b", "c"]
        for name in "bc":
            await calls.go(name)
        assert (len(calls.room._inside), len(calls.room._queue)) == (0, 0)

    asyncio.run(story())


@pytest.mark.parametrize("places", [2, 3, 4, 5, 16])
def test_one_network_never_takes_the_last_place(places: int) -> None:
    async def story() -> None:
        calls = Calls(Admission(concurrency=places))
        assert await calls.crowd("hung", places) < places
        assert await calls.crowd("other", 1, claim="other") == 1
        await calls.end()

    asyncio.run(story())


def test_del_goes_before_add_when_both_wait() -> None:
    async def story() -> None:
        calls = Calls(Admission(concurrency=1))
        await calls.come("first")
        await calls.come("add", "ADD")
        await calls.come("del", "DEL")
        for name in ("first", "del", "add"):
            await calls.go(name)
        assert calls.inside == ["first", "del", "add"]

    asyncio.run(story())


def test_gc_runs_alone_in_its_network() -> None:
    async def story() -> None:
        calls = Calls(Admission())
        await calls.come("add")
        await calls.come("gc", "GC")
        await calls.come("other", "ADD", "other-net")
        assert calls.inside == ["add", "other"]
        await calls.go("add")
        await calls.come("late", "DEL")
        assert calls.inside == ["add", "other", "gc"]
        await calls.go("gc")
        assert calls.inside == ["add", "other", "gc", "late"]
        for name in ("other", "late"):
            await calls.go(name)

    asyncio.run(story())


def test_a_waiting_gc_is_not_overtaken_by_later_adds() -> None:
    async def story() -> None:
        calls = Calls(Admission())
        await calls.come("one")
        await calls.come("gc", "GC")
        await calls.come("two")
        await calls.go("one")
        assert calls.inside == ["one", "gc"]
        for name in ("gc", "two"):
            await calls.go(name)
        assert calls.inside == ["one", "gc", "two"]

    asyncio.run(story())


def test_too_many_waiting_are_refused_at_once() -> None:
    async def story() -> None:
        calls = Calls(Admission(concurrency=1, waiting=1))
        await calls.come("a")
        await calls.come("b")
        await calls.come("c")
        with pytest.raises(TryAgain, match="1 CNI calls run and 1 wait already"):
            await calls.tasks["c"]
        for name in "ab":
            await calls.go(name)

    asyncio.run(story())


def test_patience_ends_and_the_place_in_the_queue_with_it() -> None:
    async def story() -> None:
        calls = Calls(Admission(concurrency=1, patience=0.01))
        await calls.come("a")
        await calls.come("b")
        with pytest.raises(TryAgain, match=r"no place for this ADD within 0\.01 s"):
            await calls.tasks["b"]
        assert len(calls.room._queue) == 0
        await calls.go("a")

    asyncio.run(story())


def test_a_cancelled_call_gives_its_place_back() -> None:
    async def story() -> None:
        calls = Calls(Admission(concurrency=1))
        for name in "abc":
            await calls.come(name)
        calls.tasks["b"].cancel()
        calls.tasks["a"].cancel()
        await calls.settle()
        assert calls.inside == ["a", "c"]
        await calls.go("c")

    asyncio.run(story())


def test_an_error_inside_gives_the_place_back() -> None:
    async def story() -> None:
        room = Admission(concurrency=1)
        with pytest.raises(ValueError, match="oops"):
            async with room.enter("ADD", "net"):
                raise ValueError("oops")
        assert len(room._inside) == 0

    asyncio.run(story())


@pytest.mark.parametrize(("network", "claim"), [("net", "other"), ("other", "bridge")])
def test_a_plugin_that_hangs_leaves_places_for_another_network(network: str, claim: str) -> None:
    async def story() -> None:
        calls = Calls(Admission())
        assert await calls.crowd("hung", 40) == 11
        assert await calls.crowd("well", 2, "ADD", network, claim) == 2
        await calls.end()

    asyncio.run(story())


def test_adds_that_hang_leave_places_for_dels_of_the_same_network() -> None:
    async def story() -> None:
        calls = Calls(Admission())
        await calls.crowd("add", 40)
        assert await calls.crowd("del", 3, "DEL") == 3
        await calls.end()

    asyncio.run(story())


def test_two_plugins_that_hang_leave_a_place_for_a_third() -> None:
    async def story() -> None:
        calls = Calls(Admission())
        held = [await calls.crowd(name, 20, "ADD", name, name) for name in ("one-", "two-")]
        assert sum(held) < 16
        assert await calls.crowd("third-", 1, "ADD", "third-", "third") == 1
        await calls.end()

    asyncio.run(story())


@pytest.mark.parametrize("verbs", [["ADD"], ["ADD", "DEL"], ["DEL", "ADD", "CHECK", "GC"]])
@pytest.mark.parametrize("places", [2, 3, 4, 5, 16, 64])
def test_a_plugin_with_many_networks_that_all_hang_leaves_a_place_for_another_plugin(
    places: int, verbs: list[str]
) -> None:
    async def story() -> None:
        calls = Calls(Admission(concurrency=places))
        for verb in verbs:
            for network in range(20):
                await calls.crowd(f"hung-{verb}-{network}-", 4, verb, f"net-{network}")
        assert len(calls.room._inside) < places
        for verb in ("ADD", "DEL"):
            assert await calls.crowd(f"well-{verb}-", 1, verb, "well", "other") == 1
            await calls.go(f"well-{verb}-0")
        await calls.end()

    asyncio.run(story())


def test_adds_of_many_networks_that_hang_leave_a_place_for_dels_of_their_plugin_and_two_for_others() -> None:
    async def story() -> None:
        calls = Calls(Admission())
        held = [await calls.crowd(f"hung-{network}-", 4, "ADD", f"net-{network}") for network in range(20)]
        assert sum(held) == 13
        assert await calls.crowd("del-", 2, "DEL", "net-0") == 1
        assert await calls.crowd("one-", 1, "ADD", "net-0", "one") == 1
        assert await calls.crowd("two-", 1, "DEL", "net-0", "two") == 1
        await calls.end()

    asyncio.run(story())


def test_a_plugin_with_many_networks_in_the_queue_leaves_room_to_wait_for_another_plugin() -> None:
    async def story() -> None:
        calls = Calls(Admission(concurrency=1, waiting=8))
        for network in range(20):
            await calls.crowd(f"hung-{network}-", 4, "ADD", f"net-{network}")
        await calls.come("well", "ADD", "well", "other")
        assert not calls.tasks["well"].done()
        await calls.end()
        assert "well" in calls.inside

    asyncio.run(story())


def test_a_flow_gets_its_share_back_as_places_become_free() -> None:
    async def story() -> None:
        calls = Calls(Admission(concurrency=4))
        assert await calls.crowd("a", 6) == 2
        await calls.go("a0")
        assert calls.inside == ["a0", "a1", "a2"]
        await calls.end()
        assert len(calls.inside) == 6

    asyncio.run(story())


def test_in_a_room_of_four_a_plugin_whose_adds_hang_leaves_a_place_for_its_dels_and_one_for_another() -> None:
    async def story() -> None:
        calls = Calls(Admission(concurrency=4))
        assert await calls.crowd("hung", 6) == 2
        assert await calls.crowd("del", 2, "DEL") == 1
        assert await calls.crowd("well", 2, "ADD", "net", "other") == 1
        await calls.end()

    asyncio.run(story())


def test_a_long_queue_of_one_network_leaves_room_to_wait_for_another() -> None:
    async def story() -> None:
        calls = Calls(Admission(concurrency=1, waiting=6))
        await calls.crowd("hung", 12)
        assert len(calls.room._queue) == 4
        await calls.come("well", "ADD", "other", "other")
        assert not calls.tasks["well"].done()
        await calls.end()
        assert "well" in calls.inside

    asyncio.run(story())
