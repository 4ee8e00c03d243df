"""Kubelet's side of CSI, on a driver's real sockets.

Owns: what kubelet does around each call (pkg/volume/csi): capabilities asked before it, the target's folder with its
record, what a final and an uncertain failure leave, the pod's fsGroup, the folder for staging of PersistentVolumes, and
the device of a block volume.
Refuses: knowledge of the driver, drivers that stage at kubelet's path (nodeplug serves none), and an API server: what
objects say is given by the test.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.contract.mounts import mounted_at
from nodeplug.contract.values import Pod
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.testing.csi_caller.calls import CsiFailure, CsiTimeouts, NodeCalls
from nodeplug.testing.csi_caller.devices import Devices
from nodeplug.testing.csi_caller.registration import Registered, register
from nodeplug.testing.csi_caller.volumes import (
    RECORD,
    CsiDriverSpec,
    CsiVolume,
    capability_of,
    context_of,
    read_driver,
    read_handle,
    write_record,
)
from nodeplug.testing.flex_caller.defaults import Backoff, own

_STAGING: Final = "STAGE_UNSTAGE_VOLUME"
_WRITERS: Final = "SINGLE_NODE_MULTI_WRITER"
_GROUP: Final = "VOLUME_MOUNT_GROUP"


@dataclass(slots=True)
class CsiCaller:
    """One CSI driver on one node, called as kubelet calls it.

    Attributes:
        kubelet_root: kubelet's --root-dir, with `plugins_registry`; pods' directories are made below it.
        driver: the CSI driver's name, such as `loopfile.nodeplug`.
        spec: what its CSIDriver object says.
        node: the node's name.
        timeouts: kubelet's.
        calls: the RPCs that were called, in order.
        uncertain: targets that the driver may still be mounting: kubelet unpublishes them before it forgets the pod.
        backoff: for `mount_until` and `unmount_until`.
    """

    kubelet_root: Path
    driver: str
    spec: CsiDriverSpec = field(default_factory=CsiDriverSpec)
    node: str = "node-1"
    timeouts: CsiTimeouts = field(default_factory=CsiTimeouts)
    calls: list[str] = field(default_factory=list)
    uncertain: set[Path] = field(default_factory=set)
    backoff: Backoff = field(default_factory=Backoff)
    _registered: Registered | None = None
    _publishes: int = 0

    def target(self, pod: Pod, name: str) -> Path:
        """Where kubelet wants a volume of a pod."""
        escaped = name.replace("/", "~")
        return self.kubelet_root / "pods" / pod.uid / "volumes" / "kubernetes.io~csi" / escaped / "mount"

    def global_mount(self, handle: str) -> Path:
        """Where kubelet would have a PersistentVolume staged."""
        digest = hashlib.sha256(handle.encode()).hexdigest()
        return self.kubelet_root / "plugins" / "kubernetes.io" / "csi" / self.driver / digest / "globalmount"

    def register(self) -> Registered:
        """Get to know the driver, as kubelet does when it starts or when a socket appears in its folder.

        Raises:
            CsiFailure: it does not appear in `timeouts.appear`, or kubelet refuses it.
        """
        self._registered = register(self.kubelet_root / "plugins_registry", self.driver, self.timeouts, self.calls)
        return self._registered

    # --- what kubelet does for a pod

    def mount(self, pod: Pod, volume: CsiVolume, *, fs_group: int | None = None, policy: str = "Always") -> Path:
        """Give a pod its volume.

        Do it again to publish again: kubelet does after its own restart, and every minute or so for a driver with
        `requiresRepublish`. It looks for no mount before.

        Args:
            pod: its uid names its directory.
            volume: what it asks for.
            fs_group: the pod's fsGroup.
            policy: the pod's fsGroupChangePolicy.

        Returns:
            The target; of a block volume, the device.

        Raises:
            CsiFailure: as kubelet reports it, also when a block volume's target is no device. After a final one, the
                target's folder and record are removed unless something is mounted; otherwise they stay, and the target
                is in `uncertain`.
        """
        node = self._node()
        self._check_mode(volume)
        if volume.block:
            return self._map_device(node, pod, volume)
        if not volume.inline:
            self._mount_device(node, volume)
        target = self.target(pod, volume.name)
        request = self._request(node, pod, volume, fs_group)
        target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        write_record(target.parent, volume, request.volume_id, self.driver, self.node)
        try:
            node.publish(request)
        except CsiFailure as error:
            self._failed(target, error)
            raise
        self.uncertain.discard(target)
        told = request.volume_capability.mount.volume_mount_group
        if fs_group is not None and not told and self.spec.owns(volume):
            own(target, fs_group, policy=policy)
        return target

    def unmount(self, pod: Pod, name: str) -> None:
        """Take a volume from a pod; one without a folder is gone, without a call.

        Raises:
            CsiFailure: as kubelet reports it, also when the driver leaves the target, mounted or not empty.
        """
        target = self.target(pod, name)
        if self._devices.record(name).exists():
            self._unmap_device(pod, name)
            return
        if not target.parent.exists():
            return
        node = self._node()
        try:
            handle = read_handle(target.parent)
        except (OSError, ValueError, KeyError) as error:
            raise CsiFailure("unmount", f"failed to load volume data file {target.parent / RECORD}: {error}") from None
        node.unpublish(handle, target)
        self._remove_mount_dir(target)
        if mounted_at(str(target)) is not None:
            raise CsiFailure("NodeUnpublishVolume", f"the driver succeeded, and {target} is still mounted")
        self.uncertain.discard(target)

    def unpublish(self, pod: Pod, volume: CsiVolume) -> None:
        """Call NodeUnpublishVolume alone, as kubelet repeats it when an answer was lost; CsiFailure if it fails."""
        self._node().unpublish(volume.handle_for(pod), self._place(pod, volume))

    def mount_until(self, pod: Pod, volume: CsiVolume, tries: int, *, fs_group: int | None = None) -> Path:
        """Mount, with at most `tries` attempts and kubelet's waits between them; CsiFailure of the last."""
        operation = f"mount {pod.uid} {volume.name}"
        return self.backoff.repeat(operation, lambda: self.mount(pod, volume, fs_group=fs_group), tries, CsiFailure)

    def unmount_until(self, pod: Pod, name: str, tries: int) -> None:
        """Unmount, with at most `tries` attempts and kubelet's waits between them; CsiFailure of the last."""
        self.backoff.repeat(f"unmount {pod.uid} {name}", lambda: self.unmount(pod, name), tries, CsiFailure)

    def stats(self, pod: Pod, name: str) -> dict[str, dict[str, int]] | None:
        """Measure a pod's volume, by unit; None when the driver does not (csi_metrics.go).

        Raises:
            CsiFailure: as kubelet logs it once a minute.
        """
        node, devices = self._node(), self._devices
        if not node.supports("GET_VOLUME_STATS"):
            return None
        place, record = self.target(pod, name), self.target(pod, name).parent
        if devices.record(name).exists():
            place, record = devices.mapped(pod, name), devices.record(name)
        return {unit: dict(usage) for unit, usage in node.stats(read_handle(record), place).items()}

    def expand(self, pod: Pod, volume: CsiVolume, size: int) -> int:
        """Grow a published PersistentVolume on this node (expander.go); an inline one never grows.

        Args:
            pod: who has it.
            volume: what.
            size: the bytes that the claim has got by now.

        Returns:
            The bytes that the driver answers.

        Raises:
            CsiFailure: as kubelet reports it; `infeasible` says whether it gives up.
        """
        node = self._node()
        if volume.inline or not node.supports("EXPAND_VOLUME"):
            raise CsiFailure("NodeExpandVolume", f"CSI plugin {self.driver} does not support node expansion")
        request = pb.NodeExpandVolumeRequest(
            volume_id=volume.handle,
            volume_path=str(self._place(pod, volume)),
            staging_target_path=str(self.global_mount(volume.handle)),
            capacity_range=pb.CapacityRange(required_bytes=size),
            volume_capability=capability_of(volume, writers=node.supports(_WRITERS)),
        )
        return node.expand(request)

    def volumes(self) -> list[tuple[Pod, str]]:
        """Return the pods that have volumes of this driver, and the volumes' names, by kubelet's records."""
        pods = self.kubelet_root / "pods"
        records = sorted(pods.glob(f"*/volumes/kubernetes.io~csi/*/{RECORD}"))
        mine = [path for path in records if read_driver(path.parent) == self.driver]
        mounted = [(Pod(uid=path.relative_to(pods).parts[0]), path.parent.name) for path in mine]
        return mounted + self._devices.volumes(self.driver)

    # --- block volumes

    @property
    def _devices(self) -> Devices:
        return Devices(self.kubelet_root)

    def _place(self, pod: Pod, volume: CsiVolume) -> Path:
        return self._devices.target(pod, volume.name) if volume.block else self.target(pod, volume.name)

    def _map_device(self, node: NodeCalls, pod: Pod, volume: CsiVolume) -> Path:
        """Have a device published (SetUpDevice and MapPodDevice): without fsGroup, mount options and tokens."""
        if volume.inline:
            raise CsiFailure("mount", "a pod's own volume cannot be a block device")
        self._refuse_staging(node)
        target = self._devices.prepare(pod, volume, self.driver, self.node)
        request = pb.NodePublishVolumeRequest(
            volume_id=volume.handle,
            target_path=str(target),
            staging_target_path=str(self._devices.staging(volume.name)),
            readonly=volume.read_only,
            volume_capability=capability_of(volume, writers=node.supports(_WRITERS)),
            volume_context=context_of(volume, pod, self.spec),
            secrets={name: value.decode() for name, value in volume.secrets.items()},
        )
        try:
            node.publish(request)
        except CsiFailure as error:
            if not error.final:
                self.uncertain.add(target)
            raise
        self.uncertain.discard(target)
        if not target.is_block_device():
            raise CsiFailure("NodePublishVolume", f"the driver succeeded, and {target} is no block device")
        return target

    def _unmap_device(self, pod: Pod, name: str) -> None:
        """Take a device from a pod (UnmapPodDevice), and after the last one what kubelet knows of the volume."""
        target = self._devices.target(pod, name)
        self._node().unpublish(read_handle(self._devices.record(name)), target)
        self._devices.remove(pod, name)
        self.uncertain.discard(target)

    # --- its parts

    def _node(self) -> NodeCalls:
        """Return the driver's calls; a driver whose socket was replaced is asked who it is again."""
        if self._registered is None or not self._registered.lasts:
            self.register()
        assert self._registered is not None
        return NodeCalls(self._registered.endpoint, self.timeouts.call, self.calls)

    def _check_mode(self, volume: CsiVolume) -> None:
        mode = "Ephemeral" if volume.inline else "Persistent"
        if mode not in self.spec.volume_lifecycle_modes:
            raise CsiFailure(
                "mount", f'volume mode "{mode}" not supported by driver {self.driver} (no CSIDriver object)'
            )

    def _mount_device(self, node: NodeCalls, volume: CsiVolume) -> None:
        """Make the folder for staging, which kubelet does for a driver that does not stage, too (MountDevice)."""
        self._refuse_staging(node)
        self.global_mount(volume.handle).mkdir(mode=0o750, parents=True, exist_ok=True)

    def _refuse_staging(self, node: NodeCalls) -> None:
        if node.supports(_STAGING):
            raise CsiFailure(
                "NodeStageVolume", f"{self.driver} stages at kubelet's path, which this caller does not act"
            )

    def _request(
        self, node: NodeCalls, pod: Pod, volume: CsiVolume, fs_group: int | None
    ) -> pb.NodePublishVolumeRequest:
        if not volume.inline:
            node.supports(_STAGING)  # once more, for this call (SetUpAt)
        self._publishes += 1
        tokens = self.spec.tokens(pod, self._publishes)
        hidden = self.spec.service_account_token_in_secrets
        secrets = {name: value.decode() for name, value in volume.secrets.items()}
        group = fs_group if node.supports(_GROUP) else None
        return pb.NodePublishVolumeRequest(
            volume_id=volume.handle_for(pod),
            target_path=str(self.target(pod, volume.name)),
            readonly=volume.read_only,
            volume_capability=capability_of(volume, writers=node.supports(_WRITERS), group=group),
            volume_context={**context_of(volume, pod, self.spec), **({} if hidden else tokens)},
            secrets={**secrets, **(tokens if hidden else {})},
        )

    def _failed(self, target: Path, error: CsiFailure) -> None:
        if not error.final:
            self.uncertain.add(target)
            return
        with suppress(CsiFailure):  # kubelet logs it
            self._remove_mount_dir(target)

    def _remove_mount_dir(self, target: Path) -> None:
        """Remove a target that is not mounted, its record and their folder (csi_mounter.go, removeMountDir)."""
        if mounted_at(str(target)) is not None:
            return
        try:
            with suppress(FileNotFoundError):
                target.rmdir()
            (target.parent / RECORD).unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                target.parent.rmdir()
        except OSError as error:
            raise CsiFailure("unmount", f"failed to clean mount dir [{target}]: {error.strerror}") from None
