"""The daemon itself: start to registration, memory, CPU."""

import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import Final

from nodeplug import mount
from nodeplug.testing import Kubelet, ScratchNode
from nodeplug.testing.waiting import until

RESOURCE: Final = "bench.nodeplug.io/null"
RACK: Final = "bench.nodeplug.io/rack"
NODES: Final = "bench.nodeplug.io/nodes"
SUPERVISOR: Final = 'listen = ""\ninstall = true'


def plugins(devices: Path) -> str:
    """Return the tables of every bundled plugin but the GPU's, and of one that chooses among devices.

    Args:
        devices: a folder of device nodes that come and go.
    """
    return f"""
[plugins.bridge]
[plugins.host-local]
[plugins.loopback]
[plugins.portmap]
[plugins.bandwidth]
[plugins.tuning]
[plugins.firewall]
[plugins.tmpfs]
[plugins.loopfile]
[plugins.hostdir]
[plugins.hostdir.config.roots.data]
path = "/tmp"
[plugins.rack]
uses = "bench.rack:Rack"
[plugins.hostdev]
[[plugins.hostdev.config.resources]]
resource = "{RESOURCE}"
[[plugins.hostdev.config.resources.groups]]
count = 100
nodes = [{{ path = "/dev/null" }}]
[[plugins.hostdev.config.resources]]
resource = "{NODES}"
[[plugins.hostdev.config.resources.groups]]
nodes = [{{ path = "{devices}/n*", probe = "exists" }}]
"""


def with_run_in_memory(root: Path) -> Path:
    """Make the root of a node whose /run is in memory, as a node's is; who removes the root unmounts it."""
    run = root / "run"
    run.mkdir(parents=True)
    mount("run", str(run), "tmpfs")
    return root


async def registered_after_start(node: ScratchNode, kubelet: Kubelet, times: int) -> float:
    """Start the daemon several times as after a boot; return the median seconds until kubelet has 100 devices."""
    seconds = []
    for turn in range(times + 1):  # the first start compiles the entrypoints and reads Python's files
        if turn:
            node.stop()
            await kubelet.until(lambda: not kubelet.streams(RESOURCE))
            await asyncio.to_thread(_forget, node.paths.run)
        seconds.append(await _listed(node, kubelet))
    return statistics.median(seconds[1:])


async def listed_after_crash(node: ScratchNode, kubelet: Kubelet, times: int) -> float:
    """Kill the daemon, which serves, several times; return the median of the seconds from its start to the list."""
    seconds = []
    for _ in range(times):
        await asyncio.to_thread(until, (node.paths.run / "next-start.json").exists)
        node.kill()
        await kubelet.until(lambda: not kubelet.streams(RESOURCE))
        seconds.append(await _listed(node, kubelet))
    return statistics.median(seconds)


async def _listed(node: ScratchNode, kubelet: Kubelet) -> float:
    """Start the daemon, and return the seconds until kubelet has the list of 100 devices."""
    started = time.monotonic()
    starting = asyncio.create_task(asyncio.to_thread(node.start))
    await kubelet.until(lambda: kubelet.streams(RESOURCE) > 0)
    await kubelet.until_allocatable(RESOURCE, 100)
    endpoint = kubelet.resources[RESOURCE].endpoint
    listed = endpoint.first_list_at if endpoint is not None else None
    await starting
    return (listed or time.monotonic()) - started


def _forget(run: Path) -> None:
    """Remove what a daemon knows of the one before it."""
    for path in (run / "next-start.json", *run.glob("devices/*.json")):
        path.unlink(missing_ok=True)


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def idle_cpu_percent(pid: int, seconds: float) -> float:
    """Return the CPU share of a process over a while in which nobody asks anything of it."""
    before = sum(cpu_seconds(pid))
    time.sleep(seconds)
    return (sum(cpu_seconds(pid)) - before) / seconds * 100


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Return the user and the system time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick
