"""The GPU plugin in the real daemon, with simulated cards, asked over gRPC.

Owns: the first list, the choice among many units, Allocate beside many open streams, how soon all streams show a failed
card, and the longest turn of the daemon's event loop meanwhile.
Refuses: hardware: a simulated driver answers at once; what NVML costs is paid in a process of its own.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc.aio

from bench import loop
from bench.attempts import Attempts
from bench.measure import Summary
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.testing import Kubelet, ScratchNode, folders

ROOT: Final = Path(__file__).parents[1]
UNITS: Final = "aliyun.com/gpu-mem"
FINE: Final = "bench.nodeplug.io/gpu-mem-fine"
STREAMS: Final = 100
_LIMIT: Final = (("grpc.max_receive_message_length", -1),)
_PLUGINS: Final = f"""
[plugins.loop]
uses = "bench.loop:Loop"
isolation = "thread"
[plugins.gpu]
[plugins.gpu.config]
driver = "simulated"
poll = "50ms"
health.probation = "10ms"
simulated = [{{ memory = "80GiB", count = 8 }}, {{ memory = "80000MiB", count = 8 }}]
[[plugins.gpu.config.resources]]
sharing = "memory"
resource = "{UNITS}"
cards = {{ index = [0, 1, 2, 3, 4, 5, 6, 7] }}
[[plugins.gpu.config.resources]]
sharing = "memory"
resource = "{FINE}"
count_resource = ""
unit = "40Mi"
cards = {{ index = [8, 9, 10, 11, 12, 13, 14, 15] }}
"""


async def measure_gpu(attempts: Attempts, *, quick: bool = False) -> None:
    """Run a node of its own and add every figure, in milliseconds."""
    folder = Path(tempfile.mkdtemp(prefix="np-gpu-", dir="/tmp"))
    node = ScratchNode(folder, _PLUGINS, supervisor='listen = ""', env={"PYTHONPATH": str(ROOT)})
    try:
        async with Kubelet(folder / "var" / "lib" / "kubelet") as kubelet:
            await asyncio.to_thread(node.start)
            await kubelet.until_allocatable(UNITS, 640)
            await kubelet.until_allocatable(FINE, 16_000)
            await _measure(attempts, kubelet, folder, 5 if quick else 100)
    finally:
        await asyncio.to_thread(node.stop)
        folders.remove(folder)


async def _measure(attempts: Attempts, kubelet: Kubelet, folder: Path, count: int) -> None:
    stub, fine = _stub(kubelet, UNITS), _stub(kubelet, FINE)
    run = _run_folder(folder, "loop")
    with attempts.measuring("cards: the longest step of the event loop") as longest:
        await asyncio.to_thread(loop.reset, run)
        with attempts.measuring("cards: the first list") as figures:
            figures["gpu_first_list_ms"] = await _first_list(stub, count)
        with attempts.measuring("cards: the choice among many units") as figures:
            figures["gpu_prefer_16000_ms"] = await _prefer(fine, sorted(kubelet.resources[FINE].reported), count)
        async with _streams(kubelet) as streams:
            with attempts.measuring("cards: Allocate beside many streams") as figures:
                ids = sorted(kubelet.resources[UNITS].reported)
                figures["gpu_allocate_p99_ms"] = (await _allocate(stub, ids, 10 * count)).p99
            with attempts.measuring("cards: a card is lost") as figures:
                figures["gpu_health_to_streams_ms"] = await _health(streams, folder, max(count // 5, 3))
        longest["gpu_loop_longest_step_ms"] = await asyncio.to_thread(loop.longest, run) * 1e3


def _run_folder(root: Path, plugin: str) -> Path:
    return next(path for path in root.rglob(plugin) if path.parent.name == "plugins" and "run" in path.parts)


def _stub(kubelet: Kubelet, resource: str) -> Any:
    endpoint = kubelet.resources[resource].endpoint
    if endpoint is None:
        raise RuntimeError(f"kubelet has no plugin of {resource}")
    return endpoint.stub


async def _first_list(stub: Any, count: int) -> float:
    """Open a stream and wait for its first list, on a connection that is open; the 99th percentile."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        call = stub.ListAndWatch(pb.Empty())
        response = await call.read()
        seconds.append(time.perf_counter() - started)
        call.cancel()
        if len(response.devices) != 640:
            raise RuntimeError(f"the first list has {len(response.devices)} devices")
    return Summary.of(seconds).p99


async def _prefer(stub: Any, ids: Sequence[str], count: int) -> float:
    """Ask which ten of 16,000 available units to take; the median."""
    wanted = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=10)
    request = pb.PreferredAllocationRequest(container_requests=[wanted])
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        await stub.GetPreferredAllocation(request)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e3


async def _allocate(stub: Any, ids: Sequence[str], count: int) -> Summary:
    """Allocate eight units of one card."""
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids[:8])])
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        await stub.Allocate(request)
        seconds.append(time.perf_counter() - started)
    return Summary.of(seconds)


class _Stream:
    """One ListAndWatch stream on a connection of its own, that remembers how many devices were healthy last."""

    def __init__(self, path: Path) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{path}", (*_LIMIT, ("grpc.use_local_subchannel_pool", 1)))
        self.changed = asyncio.Event()
        self.healthy = 0
        self._task = asyncio.create_task(self._follow(), name="stream")

    async def _follow(self) -> None:
        stub: Any = pb_grpc.DevicePluginStub(self._channel)
        async for response in stub.ListAndWatch(pb.Empty()):
            self.healthy = response.SerializeToString().count(b"\x12\x07Healthy")
            self.changed.set()

    async def until(self, healthy: int) -> None:
        while self.healthy != healthy:
            self.changed.clear()
            await self.changed.wait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._channel.close()


@asynccontextmanager
async def _streams(kubelet: Kubelet) -> AsyncIterator[Sequence[_Stream]]:
    endpoint = kubelet.resources[UNITS].endpoint
    if endpoint is None:
        raise RuntimeError(f"kubelet has no plugin of {UNITS}")
    streams = [_Stream(endpoint.path) for _ in range(STREAMS)]
    try:
        await asyncio.gather(*(stream.until(640) for stream in streams))
        yield streams
    finally:
        await asyncio.gather(*(stream.close() for stream in streams))


async def _health(streams: Sequence[_Stream], folder: Path, count: int) -> float:
    """Let one card of eight be lost; from the event until the last stream shows it, the median.

    The event is the write of a file that the driver reads every 50 ms: that wait counts here.
    """
    file = _run_folder(folder, "gpu") / "simulated-faults.json"
    seconds = []
    for turn in range(count):
        started = time.perf_counter()
        _write(file, {"cards": {str(turn % 8): {"lost": True}}})
        await asyncio.gather(*(stream.until(560) for stream in streams))
        seconds.append(time.perf_counter() - started)
        _write(file, {})
        await asyncio.gather(*(stream.until(640) for stream in streams))
        await asyncio.sleep(0.2)
    return statistics.median(seconds) * 1e3


def _write(file: Path, faults: object) -> None:
    file.with_suffix(".new").write_text(json.dumps(faults))
    file.with_suffix(".new").rename(file)
