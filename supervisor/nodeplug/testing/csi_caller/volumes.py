"""What a pod and its cluster say of a CSI volume, and what kubelet makes of it.

Owns: volumes of pods and PersistentVolumes, the CSIDriver object, the volume's context and capability, and kubelet's
record beside a target.
Refuses: calls (`calls`), and directories (`caller`).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from nodeplug.contract.values import Pod
from nodeplug.pb import csi_v1_pb2 as pb

FsGroupPolicy = Literal["ReadWriteOnceWithFSType", "File", "None"]
LifecycleMode = Literal["Persistent", "Ephemeral"]
KUBELETS: Final = "csi.storage.k8s.io/"
TOKENS: Final = f"{KUBELETS}serviceAccount.tokens"
RECORD: Final = "vol_data.json"
"""Kubelet's record of a volume, beside its target (csi_plugin.go, volDataFileName)."""
_MODE = pb.VolumeCapability.AccessMode
_MODES: Final[Mapping[str, str]] = {
    "ReadWriteOnce": "SINGLE_NODE_WRITER",
    "ReadOnlyMany": "MULTI_NODE_READER_ONLY",
    "ReadWriteMany": "MULTI_NODE_MULTI_WRITER",
    "ReadWriteOncePod": "SINGLE_NODE_WRITER",
}
_MODES_OF_WRITERS: Final[Mapping[str, str]] = {
    **_MODES,
    "ReadWriteOnce": "SINGLE_NODE_MULTI_WRITER",
    "ReadWriteOncePod": "SINGLE_NODE_SINGLE_WRITER",
}
_NEVER: Final = "2106-02-07T06:28:15Z"


@dataclass(frozen=True, slots=True)
class CsiVolume:
    """A PersistentVolume over CSI, or without a handle a pod's own (inline) volume.

    Attributes:
        name: the PersistentVolume's, or the volume's in the pod.
        attributes: `volumeAttributes`.
        handle: `volumeHandle`.
        secrets: of the Secret behind `nodePublishSecretRef`, decoded.
        read_only: `readOnly`.
        fs_type: `fsType`.
        access_mode: the PersistentVolume's first; kubelet heeds no other. An inline volume's is ReadWriteOnce.
        mount_options: the PersistentVolume's.
        block: its `volumeMode` is Block: the pod gets a device.
    """

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    handle: str = ""
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    read_only: bool = False
    fs_type: str = ""
    access_mode: str = "ReadWriteOnce"
    mount_options: tuple[str, ...] = ()
    block: bool = False

    @property
    def inline(self) -> bool:
        """Whether the volume is a pod's own."""
        return not self.handle

    def handle_for(self, pod: Pod) -> str:
        """Return the id with which kubelet calls the driver (csi_mounter.go, makeVolumeHandle)."""
        return self.handle or f"csi-{hashlib.sha256(f'{pod.uid}{self.name}'.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class CsiDriverSpec:
    """What the CSIDriver object of the cluster says, as far as kubelet heeds it around a mount.

    Attributes:
        pod_info_on_mount: the driver is told about the pod.
        fs_group_policy: whose volumes kubelet changes to a pod's group.
        volume_lifecycle_modes: which volumes the driver has.
        token_requests: audiences of the service-account tokens that the driver gets; a new one with each publish.
        service_account_token_in_secrets: they come among the secrets instead of in the context.
    """

    pod_info_on_mount: bool = True
    fs_group_policy: FsGroupPolicy = "File"
    volume_lifecycle_modes: tuple[LifecycleMode, ...] = ("Persistent", "Ephemeral")
    token_requests: tuple[str, ...] = ()
    service_account_token_in_secrets: bool = False

    def tokens(self, pod: Pod, number: int) -> Mapping[str, str]:
        """Return what carries the tokens, with texts that no other number gives; empty if none are asked for."""
        if not self.token_requests:
            return {}
        made = {
            audience: {
                "token": f"token-{number}-of-{pod.service_account}-for-{audience}",
                "expirationTimestamp": _NEVER,
            }
            for audience in self.token_requests
        }
        return {TOKENS: json.dumps(made)}

    def owns(self, volume: CsiVolume) -> bool:
        """Whether kubelet changes the group of such a volume (csi_mounter.go, supportsFSGroup)."""
        if volume.read_only or self.fs_group_policy == "None":
            return False
        return self.fs_group_policy == "File" or bool(volume.fs_type and volume.access_mode == "ReadWriteOnce")


def context_of(volume: CsiVolume, pod: Pod, spec: CsiDriverSpec) -> dict[str, str]:
    """Return the volume's context: its attributes, and the pod's if the driver wants them (getPodInfoAttrs)."""
    context = dict(volume.attributes)
    if spec.pod_info_on_mount:
        told = {
            "pod.name": pod.name,
            "pod.namespace": pod.namespace,
            "pod.uid": pod.uid,
            "serviceAccount.name": pod.service_account,
            "ephemeral": "true" if volume.inline else "false",
        }
        context |= {KUBELETS + key: value for key, value in told.items()}
    return context


def capability_of(volume: CsiVolume, *, writers: bool, group: int | None = None) -> pb.VolumeCapability:
    """Return how a volume is to be mounted.

    Args:
        volume: which.
        writers: the driver has SINGLE_NODE_MULTI_WRITER, so it is told one pod from one node.
        group: the pod's fsGroup, for a driver that has VOLUME_MOUNT_GROUP.
    """
    modes = _MODES_OF_WRITERS if writers else _MODES
    mode = _MODE(mode=_MODE.Mode.Value(modes[volume.access_mode]))
    if volume.block:
        return pb.VolumeCapability(block=pb.VolumeCapability.BlockVolume(), access_mode=mode)
    mount = pb.VolumeCapability.MountVolume(
        fs_type=volume.fs_type,
        mount_flags=volume.mount_options,
        volume_mount_group="" if group is None else str(group),
    )
    return pb.VolumeCapability(mount=mount, access_mode=mode)


def write_record(folder: Path, volume: CsiVolume, handle: str, driver: str, node: str) -> None:
    """Write kubelet's record of a volume into the folder of its target."""
    attachment = hashlib.sha256(f"{handle}{driver}{node}".encode()).hexdigest()
    document = {
        "specVolID": volume.name,
        "volumeHandle": handle,
        "driverName": driver,
        "nodeName": node,
        "volumeLifecycleMode": "Ephemeral" if volume.inline else "Persistent",
        "attachmentID": f"csi-{attachment}",
    }
    (folder / RECORD).write_text(json.dumps(document), encoding="utf-8")


def read_handle(folder: Path) -> str:
    """Return the volume's id from kubelet's record; OSError or ValueError if there is none."""
    return str(_record(folder)["volumeHandle"])


def read_driver(folder: Path) -> str:
    """Return the driver's name from kubelet's record; OSError or ValueError if there is none."""
    return str(_record(folder)["driverName"])


def _record(folder: Path) -> Mapping[str, str]:
    document: Mapping[str, str] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    return document
