"""Devices that overlap, under the front of kubelet's device plugins, which cannot count: none of them is offered."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from nodeplug import Claim, Counters, Device, DeviceClaim, DeviceId, hookimpl
from nodeplug.testing import Kubelet, serve_devices

pytestmark = pytest.mark.unprivileged

RESOURCE = "example.com/card"
CUT = [
    Device(DeviceId(name), counters=Counters("a", {"slices": 2}, {"slices": n})) for name, n in (("a", 2), ("a-0", 1))
]
SENTENCE = (
    "example.com/card lists 'a', which overlaps other devices of counter set 'a', and kubelet's device plugins cannot "
    'count what these take of one another: serve the section by claims (serve = "dra")'
)


class Cards:
    def __init__(self, *listed: Device) -> None:
        self.listed = [*listed]

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [DeviceClaim(RESOURCE)]

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        return self.listed


def test_a_list_with_devices_that_overlap_is_not_registered_and_the_status_says_what_to_do(short_path: Path) -> None:
    async def scenario() -> None:
        async with Kubelet(short_path) as kubelet, serve_devices(Cards(*CUT), kubelet, short_path) as host:
            while not (status := host.tasks[RESOURCE].status()).error:
                await asyncio.sleep(0.01)
            assert (status.error.endswith(SENTENCE), status.listed) == (True, False)
            await asyncio.sleep(0.5)
            assert host.tasks[RESOURCE].status().socket is None

    asyncio.run(scenario())


def test_devices_that_begin_to_overlap_are_available_no_more(short_path: Path) -> None:
    async def scenario() -> None:
        cards = Cards(*(Device(one.id) for one in CUT))
        async with Kubelet(short_path) as kubelet, serve_devices(cards, kubelet, short_path) as host:
            await kubelet.until_allocatable(RESOURCE, 2)
            cards.listed = CUT
            host.tasks[RESOURCE].refresh()
            await kubelet.until_allocatable(RESOURCE, 0)
            assert {one.reason for one in host.tasks[RESOURCE].status().devices} == {SENTENCE}
            cards.listed = [Device(DeviceId("a"))]
            host.tasks[RESOURCE].refresh()
            await kubelet.until_allocatable(RESOURCE, 1)
            assert host.tasks[RESOURCE].status().error == ""

    asyncio.run(scenario())
