"""The daemon itself: start to registration, memory, idle CPU, Allocate through a kubelet stand-in."""

import os
import time
from pathlib import Path

import grpc.aio

from bench.measure import Summary
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.testing import Kubelet, ScratchNode

RESOURCE = "bench.nodeplug.io/null"
PLUGINS = f"""
[plugins.bridge]
[plugins.host-local]
[plugins.loopback]
[plugins.tmpfs]
[plugins.loopfile]
[plugins.hostdir]
[plugins.hostdir.config.roots.data]
path = "/tmp"
[plugins.hostdev]
[[plugins.hostdev.config.resources]]
resource = "{RESOURCE}"
[[plugins.hostdev.config.resources.groups]]
count = 100
nodes = [{{ path = "/dev/null" }}]
"""


async def registered_after_start(node: ScratchNode, kubelet: Kubelet) -> float:
    """Start the daemon; return the seconds until kubelet has its first list."""
    started = time.perf_counter()
    node.start()
    await kubelet.until_allocatable(RESOURCE, 100)
    return time.perf_counter() - started


async def allocate(kubelet: Kubelet, count: int) -> Summary:
    """Time Allocate alone, over one open channel, as kubelet holds one."""
    socket = Path(kubelet.device_plugins) / kubelet.registrations[-1].endpoint
    table = kubelet.resources[RESOURCE].table
    if table is None:
        raise RuntimeError(f"kubelet has no list of {RESOURCE} yet")
    device = min(table.healthy)
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[device])])
    seconds = []
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        stub = pb_grpc.DevicePluginStub(channel)
        await stub.Allocate(request)
        for _ in range(count):
            started = time.perf_counter()
            await stub.Allocate(request)
            seconds.append(time.perf_counter() - started)
    return Summary.of(seconds)


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def idle_cpu_percent(pid: int, seconds: float) -> float:
    """Return the CPU share of a process over a while in which nobody asks anything of it."""
    before = _cpu_ticks(pid)
    time.sleep(seconds)
    return (_cpu_ticks(pid) - before) / os.sysconf("SC_CLK_TCK") / seconds * 100


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
