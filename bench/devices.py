"""The device-plugin front of the real daemon, asked by a kubelet stand-in.

Owns: Register to the first list, Allocate, GetPreferredAllocation, and from a device's disappearance to the list that
says so.
Refuses: other consumers: the stand-in keeps kubelet's rules, and no gRPC library of another language is timed here.
"""

import os
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from bench.daemon import NODES, RACK, RESOURCE
from bench.measure import Summary
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing import Kubelet

COUNT: Final = 4
_NULL: Final = os.makedev(1, 3)


def make_nodes(folder: Path) -> None:
    """Make the device nodes that will come and go."""
    folder.mkdir()
    for number in range(COUNT):
        _make(folder / f"n{number}")


def _make(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, _NULL)


async def first_list(kubelet: Kubelet, count: int) -> Summary:
    """Restart kubelet; time from each Register to the first list on the stream that kubelet opens inside it."""
    seconds = []
    for _ in range(count):
        await kubelet.restart()
        await kubelet.until_allocatable(RESOURCE, 100)
        endpoint = kubelet.resources[RESOURCE].endpoint
        if endpoint is None or endpoint.first_list_at is None:
            raise RuntimeError(f"kubelet has no list of {RESOURCE}")
        seconds.append(endpoint.first_list_at - endpoint.known_at)
    for resource, devices in ((RACK, 8), (NODES, COUNT)):
        await kubelet.until_allocatable(resource, devices)
    return Summary.of(seconds)


async def allocate(kubelet: Kubelet, count: int) -> Summary:
    """Time Allocate alone, over the open connection that kubelet holds."""
    device = min(kubelet.resources[RESOURCE].reported)
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[device])])
    return await _timed(kubelet, RESOURCE, lambda stub: stub.Allocate(request), count)


async def preferred(kubelet: Kubelet, count: int) -> Summary:
    """Time GetPreferredAllocation, two out of eight, answered by a hook in a thread of its own."""
    ids = sorted(kubelet.resources[RACK].reported)
    wanted = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=2)
    request = pb.PreferredAllocationRequest(container_requests=[wanted])
    return await _timed(kubelet, RACK, lambda stub: stub.GetPreferredAllocation(request), count)


async def _timed(kubelet: Kubelet, resource: str, call: Callable[..., Awaitable[object]], count: int) -> Summary:
    endpoint = kubelet.resources[resource].endpoint
    if endpoint is None:
        raise RuntimeError(f"kubelet has no plugin of {resource}")
    seconds = []
    await call(endpoint.stub)
    for _ in range(count):
        started = time.perf_counter()
        await call(endpoint.stub)
        seconds.append(time.perf_counter() - started)
    return Summary.of(seconds)


async def health(kubelet: Kubelet, folder: Path, count: int) -> Summary:
    """Take a device node away; time until kubelet has the list without it."""
    seconds = []
    for turn in range(count):
        path = folder / f"n{turn % COUNT}"
        started = time.perf_counter()
        path.unlink()
        await kubelet.until_allocatable(NODES, COUNT - 1)
        seconds.append(time.perf_counter() - started)
        _make(path)
        await kubelet.until_allocatable(NODES, COUNT)
    return Summary.of(seconds)
