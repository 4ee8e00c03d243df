"""A list that becomes too long to be sent: what kubelet knows already goes on."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nodeplug import Claim, Device, DeviceClaim, DeviceId, hookimpl
from nodeplug.testing import Kubelet, serve_devices

pytestmark = pytest.mark.unprivileged

RESOURCE = "example.com/unit"
MORE = [Device(DeviceId(f"{'more':-<50}{number}")) for number in range(20_000)]


class Units:
    def __init__(self) -> None:
        self.there = [Device(DeviceId(name)) for name in "abc"]

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [DeviceClaim(RESOURCE)]

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        return self.there


def test_the_health_of_what_was_listed_goes_out_though_the_list_is_too_long(
    short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        units = Units()
        async with Kubelet(short_path) as kubelet, serve_devices(units, kubelet, short_path) as host:
            await kubelet.until_allocatable(RESOURCE, 3)
            task = host.tasks[RESOURCE]
            ill = [replace(units.there[0], healthy=False, reason="it burns"), *units.there[1:]]
            for there, healthy in ((ill, 2), ([units.there[2]], 1), (units.there, 3)):
                units.there = [*MORE, *there]
                task.refresh()
                await kubelet.until_allocatable(RESOURCE, healthy)
                assert kubelet.capacity(RESOURCE) == 3
            status = task.status()
            assert "20003 devices" in status.error
            assert "the 3 of the last list are offered" in status.error
            assert {one.id for one in status.devices} == set("abc")
            await kubelet.admit("pod", {RESOURCE: 3})
            units.there = units.there[-3:]
            task.refresh()
            await kubelet.until(lambda: not task.status().error)
            assert task.status().streams == 1

    with caplog.at_level(logging.WARNING, "nodeplug"):
        asyncio.run(scenario())
    assert len([one for one in caplog.records if "20003 devices" in one.getMessage()]) == 1
