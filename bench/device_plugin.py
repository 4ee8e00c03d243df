"""Measure the device-plugin front against the kubelet stand-in, in one process.

    python bench/device_plugin.py

Prints milliseconds: from Register to the first list, from a new kubelet.sock to the full list, and Allocate (through
the runner's thread, and from the devices' own grants).
"""

import asyncio
import logging
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from nodeplug import Claim, Device, DeviceAllocate, DeviceId, Grant, hookimpl
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing import Kubelet, serve_devices

RESOURCE = "example.com/bench"
ROUNDS = 30
CALLS = 1000


class Plain:
    """Devices that carry their grants."""

    def __init__(self, count: int) -> None:
        self.devices = [Device(DeviceId(f"d{n}"), grant=Grant(env={"N": str(n)})) for n in range(count)]

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the one resource."""
        return [Claim("device", RESOURCE)]

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        """List the same devices each time."""
        return self.devices


class Hooked(Plain):
    """The same through a hook of its own."""

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant:
        """Grant what the device carries."""
        return request.devices[0].grant


def show(what: str, seconds: Sequence[float]) -> None:
    cuts = statistics.quantiles(seconds, n=100)
    print(f"{what:<52} p50 {cuts[49] * 1e3:7.2f}   p99 {cuts[98] * 1e3:7.2f} ms   (n={len(seconds)})")


async def registration(count: int) -> None:
    first_lists, recoveries = [], []
    with tempfile.TemporaryDirectory(prefix="np") as folder:
        kubelet = Kubelet(Path(folder))
        async with kubelet, serve_devices(Plain(count), kubelet, Path(folder), poll=1.0):
            for _ in range(ROUNDS):
                await kubelet.until_allocatable(RESOURCE, count)
                endpoint = kubelet.resources[RESOURCE].endpoint
                if endpoint is not None and endpoint.first_list_at is not None:
                    first_lists.append(endpoint.first_list_at - endpoint.known_at)
                await kubelet.stop()
                await asyncio.sleep(0.05)
                started = time.monotonic()
                await kubelet.start()
                await kubelet.until_allocatable(RESOURCE, count)
                recoveries.append(time.monotonic() - started)
    show(f"Register to first list, {count} devices", first_lists)
    show(f"kubelet start to full allocatable, {count} devices", recoveries)


async def allocate(what: str, plugin: Plain) -> None:
    took = []
    with tempfile.TemporaryDirectory(prefix="np") as folder:
        async with Kubelet(Path(folder)) as kubelet, serve_devices(plugin, kubelet, Path(folder), poll=3600.0):
            await kubelet.until_allocatable(RESOURCE, len(plugin.devices))
            endpoint = kubelet.resources[RESOURCE].endpoint
            request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["d0"])])
            for _ in range(CALLS):
                if endpoint is not None:
                    started = time.perf_counter()
                    await endpoint.stub.Allocate(request)
                    took.append(time.perf_counter() - started)
    show(what, took)


async def main() -> None:
    for count in (8, 10_000):
        await registration(count)
    await allocate("Allocate, grants of the devices", Plain(8))
    await allocate("Allocate, device_allocate in its own thread", Hooked(8))


if __name__ == "__main__":
    logging.disable()
    asyncio.run(main())
