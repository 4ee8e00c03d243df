"""Volumes, in the terms that FlexVolume and CSI share: attach, stage, publish, expand.

Owns: one value per verb, and secrets that do not show themselves.
Refuses: argv, JSON, base64 (the codec decodes once).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NewType

VolumeId = NewType("VolumeId", str)
"""Names one volume of one driver on this node: two pods with the same id share the staged filesystem."""


class Secrets(Mapping[str, bytes]):
    """Decoded secrets whose repr shows the names alone."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> bytes:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(f'{name}=***' for name in self._values)})"


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod as kubelet names it: a hint, never an authorisation (user options can override it on the wire)."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    service_account: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRequest:
    """What every volume verb carries.

    Attributes:
        driver: the claim, `vendor/driver`.
        volume_id: from `volume_id`, or the digest of the options.
        options: the driver's own options, all strings; kubelet's keys are taken out.
    """

    driver: str
    volume_id: VolumeId
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeAttach(VolumeRequest):
    """Attach the volume to `node`; the answer is the device path (may be empty)."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeDetach(VolumeRequest):
    """Detach from `node`; `volume_id` is kubelet's volume name here, and there are no options on the wire."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeIsAttached(VolumeRequest):
    """Whether the volume is attached to `node`."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeWaitAttached(VolumeRequest):
    """Wait until `device` is there; the answer is its path."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStage(VolumeRequest):
    """Mount the volume once for the node, at `staging_path` (exists, empty)."""

    staging_path: str
    device: str = ""
    fs_type: str = ""
    read_only: bool = False
    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumePublish(VolumeRequest):
    """Give the volume to one pod, at `target_path` (exists); a mount left behind by an error is undone by the host.

    Attributes:
        staging_path: where the volume is staged, or empty when the driver does not stage.
        fs_group: the pod's fsGroup, or None.
    """

    target_path: str
    staging_path: str = ""
    fs_type: str = ""
    read_only: bool = False
    fs_group: int | None = None
    pod: Pod = Pod()
    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeUnpublish(VolumeRequest):
    """Take the volume away from one pod; succeed when it is not there."""

    target_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeUnstage(VolumeRequest):
    """Unmount the volume from the node; succeed when it is not there."""

    staging_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeExpand(VolumeRequest):
    """Grow the volume itself to `new_size` bytes; the answer is the new size."""

    new_size: int
    old_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeExpandFs(VolumeRequest):
    """Grow the filesystem that is mounted at `mount_path` to `new_size` bytes."""

    mount_path: str
    device: str
    new_size: int
    old_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStatsRequest(VolumeRequest):
    """Ask for the usage of the volume at `mount_path`."""

    mount_path: str


@dataclass(frozen=True, slots=True)
class VolumeStats:
    """Usage in bytes and inodes; `condition` is empty when the volume is well."""

    total: int
    used: int
    available: int
    inodes: int = 0
    inodes_used: int = 0
    condition: str = ""
