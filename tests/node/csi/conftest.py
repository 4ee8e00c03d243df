"""A daemon with CSI drivers, and a caller that does what kubelet does."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.node.volumes.conftest import clean

from nodeplug.contract.mounts import mounts
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.pb import pluginregistration_v1_pb2 as watcher_pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as watcher_grpc
from nodeplug.testing import ScratchNode
from nodeplug.testing.folders import remove
from nodeplug.testing.waiting import until

MODES = pb.VolumeCapability.AccessMode


@dataclass
class Kubelet:
    """The calls of kubelet for the CSI volumes of one node, each within a bound of its own."""

    node: ScratchNode
    root: Path
    channels: list[grpc.Channel] = field(default_factory=list)

    def channel(self, path: Path) -> grpc.Channel:
        self.channels.append(grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)]))
        return self.channels[-1]

    def registration(self, driver: str) -> Path:
        return self.root / "plugins_registry" / f"{driver}-reg.sock"

    def info(self, driver: str) -> watcher_pb.PluginInfo:
        until(lambda: self.registration(driver).exists())
        stub = watcher_grpc.RegistrationStub(self.channel(self.registration(driver)))
        return stub.GetInfo(watcher_pb.InfoRequest(), timeout=60, wait_for_ready=True)

    def judge(self, driver: str, *, registered: bool, error: str = "") -> None:
        stub = watcher_grpc.RegistrationStub(self.channel(self.registration(driver)))
        verdict = watcher_pb.RegistrationStatus(plugin_registered=registered, error=error)
        stub.NotifyRegistrationStatus(verdict, timeout=60, wait_for_ready=True)

    def driver(self, name: str) -> pb_grpc.NodeStub:
        return pb_grpc.NodeStub(self.channel(Path(self.info(name).endpoint)))

    def target(self, pod: str) -> Path:
        path = self.root / "pods" / pod / "volumes" / "kubernetes.io~csi" / "data" / "mount"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self, driver: str, volume_id: str, pod: str, context: dict[str, str], **more: Any) -> Path:
        mode = more.pop("mode", MODES.SINGLE_NODE_WRITER)
        mount = pb.VolumeCapability.MountVolume(fs_type=more.pop("fs_type", ""), mount_flags=more.pop("flags", []))
        request = pb.NodePublishVolumeRequest(
            volume_id=volume_id,
            target_path=str(self.target(pod)),
            volume_capability=pb.VolumeCapability(mount=mount, access_mode=MODES(mode=mode)),
            volume_context=context,
            **more,
        )
        self.driver(driver).NodePublishVolume(request, timeout=60, wait_for_ready=True)
        return self.target(pod)

    def unpublish(self, driver: str, volume_id: str, pod: str) -> None:
        request = pb.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=str(self.target(pod)))
        self.driver(driver).NodeUnpublishVolume(request, timeout=60, wait_for_ready=True)

    def mounted(self) -> list[str]:
        return [one.target for one in mounts() if Path(one.target).is_relative_to(self.node.root)]


@pytest.fixture
def start_kubelet() -> Iterator[Callable[..., Kubelet]]:
    """Start a daemon with these plugins; whatever it has mounted is unmounted at the end."""
    started: list[Kubelet] = []

    def start(plugins: str, **more: Any) -> Kubelet:
        root = Path(tempfile.mkdtemp(prefix="npc")).resolve()
        node = ScratchNode(root, plugins, fork=True, **({"supervisor": 'listen = ""\ncsi = true'} | more))
        folder = node.paths.plugins_registry
        folder.mkdir(parents=True)
        started.append(Kubelet(node, folder.parent))
        node.start()
        return started[-1]

    yield start
    for one in started:
        for channel in one.channels:
            channel.close()
        with suppress(Exception):  # it may be another process than the one that was started
            os.kill(int(one.node.status()["pid"]), signal.SIGKILL)
        one.node.kill()
        clean(one.node.root)
        remove(one.node.root)
