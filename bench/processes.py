"""What it costs that a plugin runs in a process of its own, and what its neighbours gain.

Owns: an Allocate of eight ids, one with a long list behind it, an ADD and a mount, each in turn to a plugin in a thread
and to the same plugin in a process; the memory of a process; how long both take to start; what calls of another plugin
take while one burns a core and holds the interpreter's lock.
Refuses: the entrypoints: calls are frames on the exec socket, so that the way into the daemon is the same and small.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench import daemon
from bench.frames import ask as send
from bench.measure import Summary
from nodeplug.exec.frame import Frame
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing import Kubelet, ScratchNode

WAYS: Final = ("thread", "process")
_IDS: Final = [f"unit-{number}" for number in range(8)]
_LONG: Final = 4000
_CONTAINER: Final = f"/run/netns/bench-{os.urandom(4).hex()}"
_NAMESPACES: Final = ("/proc/self/ns/net", _CONTAINER)
_BURN: Final = """
import sys
while True: pass
"""


def plugins(folder: Path) -> str:
    """Return the tables: the same plugin both ways, small and with a long list, and two that burn on request."""
    tables = []
    for way in WAYS:
        for name, more in (
            (way, ""),
            (f"long-{way}", f"devices = {_LONG}"),
            (f"burner-{way}", f'burns = "{folder}/{way}"'),
        ):
            tables.append(
                f'[plugins.{name}]\nuses = "bench.guest:Guest"\nisolation = "{way}"\n'
                f'[plugins.{name}.config]\nname = "{name}"\n{more}\n'
            )
    return "\n".join(tables)


async def measure(root: Path, environment: Mapping[str, str], *, quick: bool) -> dict[str, float]:
    """Start a node of its own and measure everything; return figures by name."""
    burning = root / "burning"
    burning.mkdir(parents=True)
    home = daemon.with_run_in_memory(root / "n")
    node = ScratchNode(home, plugins(burning), supervisor='listen = ""\n', env=environment)
    figures: dict[str, float] = {}
    async with Kubelet(root / "n" / "var" / "lib" / "kubelet") as kubelet:
        try:
            await asyncio.to_thread(node.start)
            for way in WAYS:
                await kubelet.until_allocatable(f"bench.nodeplug.io/{way}", 16)
                await kubelet.until_allocatable(f"bench.nodeplug.io/long-{way}", _LONG)
            figures |= await _prices(node, kubelet, 20 if quick else 1000)
            figures |= await _neighbours(kubelet, burning, 0.1 if quick else 20.0)
            figures |= await _starts(node, kubelet, burning, 2 if quick else 20)
            figures["process_pss_mib"] = await asyncio.to_thread(_memory, node)
        finally:
            await asyncio.to_thread(node.stop)
    return figures


async def _prices(node: ScratchNode, kubelet: Kubelet, count: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for what, resource, times in (("allocate", "{}", count), ("allocate_long", "long-{}", count // 3)):
        series = await _in_turn({way: _allocating(kubelet, resource.format(way)) for way in WAYS}, times)
        figures |= _price(what, series)
    return figures | await asyncio.to_thread(_prices_of_frames, node, count)


def _prices_of_frames(node: ScratchNode, count: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    subprocess.run(["ip", "netns", "add", Path(_CONTAINER).name], check=True)
    try:
        for what, call in (("add", _adding), ("mount", _mounting)):
            figures |= _price(what, _in_turn_here({way: call(node, way) for way in WAYS}, count))
    finally:
        subprocess.run(["ip", "netns", "delete", Path(_CONTAINER).name], check=True)
    return figures


def _price(what: str, series: Mapping[str, Sequence[float]]) -> dict[str, float]:
    summaries = {way: Summary.of(seconds) for way, seconds in series.items()}
    figures = {f"{what}_{way}_p50_ms": summary.p50 for way, summary in summaries.items()}
    figures |= {f"{what}_{way}_p99_ms": summary.p99 for way, summary in summaries.items()}
    # Of each pair, since the load of the machine is the same for both.
    pairs = zip(series["process"], series["thread"], strict=True)
    return figures | {f"{what}_process_price_ms": statistics.median(there - here for there, here in pairs) * 1e3}


async def _in_turn(calls: Mapping[str, Callable[[], Any]], count: int) -> dict[str, list[float]]:
    series: dict[str, list[float]] = {way: [] for way in calls}
    for turn in range(-5, count):
        for way, call in calls.items():
            started = time.perf_counter()
            await call()
            if turn >= 0:
                series[way].append(time.perf_counter() - started)
    return series


def _in_turn_here(calls: Mapping[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    series: dict[str, list[float]] = {way: [] for way in calls}
    for turn in range(-5, count):
        for way, call in calls.items():
            seconds = call()
            if turn >= 0:
                series[way].append(seconds)
    return series


def _allocating(kubelet: Kubelet, name: str) -> Callable[[], Any]:
    endpoint = kubelet.resources[f"bench.nodeplug.io/{name}"].endpoint
    if endpoint is None:
        raise RuntimeError(f"kubelet has no plugin of {name}")
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=_IDS)])
    stub = endpoint.stub
    return lambda: stub.Allocate(request)


def _adding(node: ScratchNode, way: str) -> Callable[[], float]:
    env = {"CNI_CONTAINERID": f"c-{way}", "CNI_IFNAME": "eth0", "CNI_NETNS": _CONTAINER, "CNI_PATH": "/opt"}
    config = json.dumps({"cniVersion": "1.0.0", "name": "bench", "type": f"bench-{way}"}).encode()

    def call() -> float:
        frames = [
            Frame("cni", f"/opt/cni/bin/bench-{way}", (), {**env, "CNI_COMMAND": verb}, config)
            for verb in ("ADD", "DEL")
        ]
        seconds = send(node, frames[0], _NAMESPACES)
        send(node, frames[1], _NAMESPACES)
        return seconds

    return call


def _mounting(node: ScratchNode, way: str) -> Callable[[], float]:
    target = node.root / f"target-{way}"
    target.mkdir()
    path = f"/usr/libexec/bench~{way}/{way}"

    def call() -> float:
        seconds = send(node, Frame("flex", path, ("mount", str(target), "{}")))
        send(node, Frame("flex", path, ("unmount", str(target))))
        return seconds

    return call


async def _neighbours(kubelet: Kubelet, burning: Path, seconds: float) -> dict[str, float]:
    """Time Allocates of a plugin in a thread while somebody burns a core: nobody, another program, a process, a thread.

    In short turns, one after the other, so that what the machine does besides meets all of them alike. A figure is the
    median of those of the turns: one in which the machine was busy with something else does not count.
    """
    call = _allocating(kubelet, "thread")
    series: dict[str, list[Summary]] = {"alone": [], "program": [], "process": [], "thread": []}
    end = time.monotonic() + seconds * len(series)
    while time.monotonic() < end:
        for who, turns in series.items():
            taken: list[float] = []
            with _burning(who, burning):
                await asyncio.sleep(0.1)
                until = time.monotonic() + 1.0
                while time.monotonic() < until:
                    started = time.perf_counter()
                    await call()
                    taken.append(time.perf_counter() - started)
                    await asyncio.sleep(0.002)
            turns.append(Summary.of(taken))
            await asyncio.sleep(0.1)
    return neighbours(series)


def neighbours(series: Mapping[str, Sequence[Summary]]) -> dict[str, float]:
    """Name the figures of who burned a core, of the summaries of its turns."""
    figures = {
        f"neighbour_{who}_p99_ms": statistics.median(turn.p99 for turn in turns) for who, turns in series.items()
    }
    figures |= {
        f"neighbour_{who}_p50_ms": statistics.median(turn.p50 for turn in turns) for who, turns in series.items()
    }
    program = figures["neighbour_program_p99_ms"]
    return figures | {f"neighbour_{who}_p99_ratio": figures[f"neighbour_{who}_p99_ms"] / program for who in WAYS}


@contextmanager
def _burning(who: str, folder: Path) -> Iterator[None]:
    if who == "alone":
        yield
    elif who == "program":
        program = subprocess.Popen([sys.executable, "-IS", "-c", _BURN])
        try:
            yield
        finally:
            program.kill()
            program.wait()
    else:
        (folder / who).touch()
        try:
            yield
        finally:
            (folder / who).unlink()


async def _starts(node: ScratchNode, kubelet: Kubelet, burning: Path, count: int) -> dict[str, float]:
    """Add the sections of both plugins in turn, until kubelet has the first list; medians in milliseconds.

    What it takes to notice the file is in both.
    """
    tables, series = plugins(burning), {way: list[float]() for way in WAYS}
    for _ in range(count):
        for way in WAYS:
            series[way].append(await _first_list(node, kubelet, tables, way))
    figures = {f"first_list_{way}_ms": statistics.median(series[way]) * 1e3 for way in WAYS}
    pairs = zip(series["process"], series["thread"], strict=True)
    return figures | {"first_list_process_price_ms": statistics.median(there - here for there, here in pairs) * 1e3}


async def _first_list(node: ScratchNode, kubelet: Kubelet, tables: str, way: str) -> float:
    """Remove the section of a plugin, add it again, and return the seconds until kubelet has its list."""
    resource = f"bench.nodeplug.io/{way}"
    without = tables.replace(f"[plugins.{way}]\n", f"[plugins.{way}]\nenabled = false\n")
    await asyncio.to_thread(node.configure, without)
    await kubelet.until(lambda: not kubelet.streams(resource))
    before = kubelet.resources[resource].endpoint
    await asyncio.to_thread(node.configure, tables)
    started = time.monotonic()
    await kubelet.until(lambda: kubelet.resources[resource].endpoint is not before and kubelet.streams(resource) > 0)
    await kubelet.until_allocatable(resource, 16)
    endpoint = kubelet.resources[resource].endpoint
    listed = endpoint.first_list_at if endpoint is not None else None
    return (listed or time.monotonic()) - started


def _memory(node: ScratchNode) -> float:
    time.sleep(6)  # the daemon measures every few seconds
    (row,) = [row for row in node.status()["plugins"] if row["name"] == "process"]
    return float(row["process"]["memory_bytes"] / (1 << 20))
