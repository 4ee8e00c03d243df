"""The time between two instances of a plugin, as requests of kubelet see it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nodeplug import DeviceClaim, TryAgain
from nodeplug.device.binding import Binding
from nodeplug.hosting.slot import Route, Slot


def route(plugin: str = "gpu") -> Route:
    slot = Slot(plugin)
    slot.deadlines = {"device_allocate": 0.01}
    return Route(slot, frozenset(), {}, DeviceClaim("example.com/card"), lambda: route(plugin))


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(bounded())


def test_a_request_before_the_first_list_of_a_new_resource_waits_for_nothing() -> None:
    async def story() -> None:
        new = route()
        async with asyncio.timeout(5):
            assert await Binding(new).settled("device_allocate") is new

    run(story)


def test_a_request_outwaits_its_deadline_as_long_as_an_exchange_lasts() -> None:
    async def story() -> None:
        binding, new = Binding(route()), route()
        binding.hold()
        waiting = asyncio.create_task(binding.settled("device_allocate"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        binding.take_over(new)
        binding.listed(new)
        assert await waiting is new

    run(story)


def test_a_request_is_refused_at_its_deadline_once_the_start_has_failed() -> None:
    async def story() -> None:
        binding = Binding(route())
        binding.hold()
        waiting = asyncio.create_task(binding.settled("device_allocate"))
        await asyncio.sleep(0.1)
        failed = route()
        binding.give_up("no driver", failed)
        with pytest.raises(TryAgain, match=r"does not serve example.com/card after .* no driver"):
            await waiting

    run(story)


def test_an_exchange_that_does_not_end_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeplug.device.binding.EXCHANGE_PATIENCE", 0.1)

    async def story() -> None:
        binding = Binding(route())
        binding.hold()
        with pytest.raises(TryAgain, match="it is being reloaded"):
            await binding.settled("device_allocate")

    run(story)
