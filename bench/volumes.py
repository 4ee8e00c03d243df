"""What a pod's volume costs over CSI, beside the same volume as a FlexVolume.

Owns: publish and unpublish of one staged volume (loopfile, ext4) over CSI, and mount and unmount over FlexVolume, in
turn, in one daemon: the call alone, over an open connection, or as a frame without its executable.
Refuses: what is the same for both, or the caller's: staging, kubelet's folders and its questions for capabilities.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import grpc

from bench.frames import ask
from bench.measure import Summary
from nodeplug import Pod
from nodeplug.exec.frame import Frame
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.testing import CsiCaller, ScratchNode
from nodeplug.testing.folders import unmount_below

_OPTIONS: Final = {"name": "bench", "size": "16Mi"}
_DRIVER: Final = "nodeplug/loopfile"
_MODE: Final = pb.VolumeCapability.AccessMode
_WARM: Final = 5


def measure(root: Path, *, quick: bool) -> dict[str, float]:
    """Start a node of its own and measure; return figures by name."""
    root.mkdir()
    plugins = f'[plugins.loopfile.config]\ndirectory = "{root}/images"\n'
    node = ScratchNode(root / "n", plugins, supervisor='listen = ""\ncsi = true\n')
    registry = node.paths.plugins_registry
    registry.mkdir(parents=True)
    try:
        node.start()
        caller = CsiCaller(registry.parent, "loopfile.nodeplug")
        with grpc.insecure_channel(f"unix:{caller.register().endpoint}") as channel:
            over_csi = _OverCsi(caller, pb_grpc.NodeStub(channel))
            return _figures(_in_turn(node, over_csi, 10 if quick else 300))
    finally:
        node.stop()
        unmount_below(root)


class _OverCsi:
    """The same volume for one pod after the other; each call returns its seconds."""

    def __init__(self, caller: CsiCaller, stub: pb_grpc.NodeStub) -> None:
        self._caller = caller
        self._stub = stub
        capability = pb.VolumeCapability(
            mount=pb.VolumeCapability.MountVolume(), access_mode=_MODE(mode=_MODE.SINGLE_NODE_MULTI_WRITER)
        )
        self._request = pb.NodePublishVolumeRequest(
            volume_id="bench", volume_capability=capability, volume_context=_OPTIONS
        )

    def target(self, pod: str) -> Path:
        path = self._caller.target(Pod(uid=pod), "bench")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self, pod: str) -> float:
        self._request.target_path = str(self.target(pod))
        return _timed(lambda: self._stub.NodePublishVolume(self._request, timeout=60))

    def unpublish(self, pod: str) -> float:
        request = pb.NodeUnpublishVolumeRequest(volume_id="bench", target_path=str(self.target(pod)))
        return _timed(lambda: self._stub.NodeUnpublishVolume(request, timeout=60))


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _in_turn(node: ScratchNode, over_csi: _OverCsi, count: int) -> Mapping[str, list[float]]:
    """Call in turn, so that what the machine does besides meets both alike; one more pod keeps the volume staged."""
    series: dict[str, list[float]] = {"csi_publish": [], "flex_mount": [], "csi_unpublish": [], "flex_unmount": []}
    path, options = f"/usr/libexec/{_DRIVER.replace('/', '~')}/loopfile", json.dumps(_OPTIONS)

    def flex(pod: str, *argv: str) -> float:
        target = node.root / "flex" / pod
        target.mkdir(parents=True, exist_ok=True)
        return ask(node, Frame("flex", path, (argv[0], str(target), *argv[1:])))

    flex("keeps", "mount", options)
    for turn in range(-_WARM, count):
        pod = f"pod-{turn % 2}"
        seconds = {
            "csi_publish": over_csi.publish(pod),
            "flex_mount": flex(pod, "mount", options),
            "csi_unpublish": over_csi.unpublish(pod),
            "flex_unmount": flex(pod, "unmount"),
        }
        if turn >= 0:
            for name, one in seconds.items():
                series[name].append(one)
    flex("keeps", "unmount")
    return series


def _figures(series: Mapping[str, list[float]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, seconds in series.items():
        summary = Summary.of(seconds)
        figures |= {f"{name}_p50_ms": summary.p50, f"{name}_p99_ms": summary.p99}
    # Of each pair, since the load of the machine is the same for both.
    pairs = zip(series["csi_publish"], series["flex_mount"], strict=True)
    return figures | {"csi_publish_price_ms": statistics.median(csi - flex for csi, flex in pairs) * 1e3}
