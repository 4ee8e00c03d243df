"""A plugin that has nothing of a resource on this node: no capacity, and no fault."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from nodeplug import Claim, Device, DeviceClaim, DeviceId, NotFound, hookimpl
from nodeplug.testing import Kubelet, serve_devices

pytestmark = pytest.mark.unprivileged

RESOURCE = "example.com/card"


class Cards:
    def __init__(self) -> None:
        self.there: list[Device] = []

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [DeviceClaim(RESOURCE)]

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        if not self.there:
            raise NotFound("this node has no card")
        return self.there


def test_a_resource_that_is_not_there_is_not_registered_and_no_fault(short_path: Path) -> None:
    async def scenario() -> None:
        async with Kubelet(short_path) as kubelet, serve_devices(Cards(), kubelet, short_path) as host:
            while not (status := host.tasks[RESOURCE].status()).absent:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            assert (status.absent, status.error, status.listed) == ("this node has no card", "", False)
            assert host.tasks[RESOURCE].status().socket is None

    asyncio.run(scenario())


def test_a_resource_that_comes_is_registered_and_one_that_goes_is_listed_as_empty(short_path: Path) -> None:
    async def scenario() -> None:
        cards = Cards()
        async with Kubelet(short_path) as kubelet, serve_devices(cards, kubelet, short_path) as host:
            cards.there = [Device(DeviceId("a"))]
            host.tasks[RESOURCE].refresh()
            await kubelet.until_allocatable(RESOURCE, 1)
            assert host.tasks[RESOURCE].status().absent == ""
            cards.there = []
            host.tasks[RESOURCE].refresh()
            await kubelet.until_allocatable(RESOURCE, 0)
            assert host.tasks[RESOURCE].status().streams == 1

    asyncio.run(scenario())
