"""The wait for the newest list."""

import asyncio

import pytest

from nodeplug import Device, DeviceId, Grant, InvalidRequest, ResourceName
from nodeplug.device.snapshots import Snapshots

RESOURCE = ResourceName("example.com/thing")


def make(*names: str, healthy: bool = True) -> list[Device]:
    return [Device(DeviceId(name), healthy=healthy) for name in names]


def test_each_waiter_gets_the_newest_list_and_skips_those_between() -> None:
    async def story() -> None:
        snapshots = Snapshots(RESOURCE)
        waiters = [asyncio.create_task(snapshots.after(0, lambda: False)) for _ in range(2)]
        await asyncio.sleep(0)
        await snapshots.publish(make("a"))
        await snapshots.publish(make("a", "b"))
        found = await asyncio.gather(*waiters)
        assert [snapshot is not None and snapshot.version for snapshot in found] == [2, 2]

    asyncio.run(story())


def test_late_waiter_gets_the_current_list_at_once() -> None:
    async def story() -> None:
        snapshots = Snapshots(RESOURCE)
        await snapshots.publish(make("a"))
        found = await snapshots.after(0, lambda: False)
        assert found is not None
        assert found.version == 1

    asyncio.run(story())


def test_waiter_for_a_newer_list_waits() -> None:
    async def story() -> None:
        snapshots = Snapshots(RESOURCE)
        await snapshots.publish(make("a"))
        waiter = asyncio.create_task(snapshots.after(1, lambda: False))
        await snapshots.publish(make("a"))
        await asyncio.sleep(0.01)
        assert not waiter.done()
        await snapshots.publish(make("a", healthy=False))
        found = await waiter
        assert found is not None
        assert (found.version, [device.healthy for device in found.devices.values()]) == (2, [False])

    asyncio.run(story())


def test_waiter_is_let_go_when_its_reason_to_wait_ends() -> None:
    async def story() -> None:
        snapshots = Snapshots(RESOURCE)
        ended = False
        waiter = asyncio.create_task(snapshots.after(0, lambda: ended))
        await asyncio.sleep(0)
        ended = True
        await snapshots.wake()
        assert await waiter is None

    asyncio.run(story())


def test_cancelled_waiter_takes_nothing_from_the_others() -> None:
    async def story() -> None:
        snapshots = Snapshots(RESOURCE)
        dead, live = (asyncio.create_task(snapshots.after(0, lambda: False)) for _ in range(2))
        await asyncio.sleep(0)
        dead.cancel()
        await snapshots.publish(make("a"))
        assert (await live) is snapshots.current

    asyncio.run(story())


def test_new_grant_in_an_equal_list_counts_without_a_new_version() -> None:
    async def story() -> None:
        snapshots = Snapshots(RESOURCE)
        assert await snapshots.publish(make("a", "b"))
        grant = Grant(env={"A": "1"})
        assert not await snapshots.publish([Device(DeviceId("b")), Device(DeviceId("a"), grant=grant)])
        assert snapshots.current is not None
        assert snapshots.current.version == 1
        assert snapshots.current.devices[DeviceId("a")].grant == grant

    asyncio.run(story())


def test_new_numa_node_is_a_new_version() -> None:
    async def story() -> None:
        snapshots = Snapshots(RESOURCE)
        await snapshots.publish(make("a"))
        assert await snapshots.publish([Device(DeviceId("a"), numa_nodes=(0,))])

    asyncio.run(story())


def test_refused_list_leaves_the_current_one() -> None:
    async def story() -> None:
        snapshots = Snapshots(RESOURCE)
        await snapshots.publish(make("a", "b"))
        before = snapshots.current
        with pytest.raises(InvalidRequest):
            await snapshots.publish(make("a", "b", "b"))
        assert snapshots.current is before

    asyncio.run(story())


def test_empty_list_is_a_list() -> None:
    async def story() -> None:
        snapshots = Snapshots(RESOURCE)
        assert await snapshots.publish([])
        assert await snapshots.after(0, lambda: False) is snapshots.current

    asyncio.run(story())


def test_a_long_list_is_written_off_the_loop() -> None:
    async def story() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        await Snapshots(RESOURCE).publish(make(*(f"d{number}" for number in range(16_000))))
        beside.cancel()
        assert turns > 0

    asyncio.run(story())


def test_a_long_list_that_cannot_be_sent_leaves_the_one_before() -> None:
    async def story() -> None:
        snapshots = Snapshots(RESOURCE)
        await snapshots.publish(make("a"))
        with pytest.raises(InvalidRequest, match=r"'d0' of example\.com/thing is listed twice"):
            await snapshots.publish(make("d0", *(f"d{number}" for number in range(16_000))))
        assert snapshots.current is not None
        assert list(snapshots.current.devices) == ["a"]

    asyncio.run(story())
