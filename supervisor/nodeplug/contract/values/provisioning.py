"""Volumes that a driver makes and removes, in the terms of CSI's controller service.

Owns: one value per verb. Reserved: no front serves them yet.
Refuses: protobuf, and PersistentVolume objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeplug.contract.values.requests import Request
from nodeplug.contract.values.volumes import AccessMode, Secrets, VolumeId, VolumeRequest

__all__ = [
    "ProvisionedVolume",
    "Snapshot",
    "Topology",
    "VolumeCapacity",
    "VolumeCreate",
    "VolumeDelete",
    "VolumeList",
    "VolumeSnapshot",
    "VolumeSnapshotDelete",
    "VolumeSnapshotList",
]

Topology = Mapping[str, str]
"""Where a volume can be used: segments by key, such as `{"example.com/node": "a"}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeCreate(Request):
    """Make a volume; a repeated call with the same name answers the same volume.

    Attributes:
        driver: the claim, `vendor/driver`.
        name: unique per driver, made by the caller.
        size: bytes, at least; 0 is the driver's choice.
        limit: bytes, at most; 0 is no limit.
        access_modes: all of which the volume must serve.
        block: a block device instead of a filesystem.
        fs_type: empty is the driver's choice.
        mount_flags: options for mount(8). May be secret.
        parameters: of the StorageClass; keys of Kubernetes' own are taken out.
        secrets: decoded.
        source: a volume or a snapshot whose contents it begins with; empty for an empty volume.
        topology: where it must be usable, the best place first; empty is anywhere.
    """

    driver: str
    name: str
    size: int = 0
    limit: int = 0
    access_modes: tuple[AccessMode, ...] = ()
    block: bool = False
    fs_type: str = ""
    mount_flags: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=Secrets)
    source: str = ""
    topology: tuple[Topology, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionedVolume:
    """A volume that exists.

    Attributes:
        volume_id: what `volume_id` answers for its options.
        size: bytes.
        options: the driver's own options for it, without the size: they never change.
        topology: where it can be used; empty is anywhere.
        condition: what is wrong with it, for people; empty when it is well.
    """

    volume_id: VolumeId
    size: int
    options: Mapping[str, str] = field(default_factory=dict)
    topology: tuple[Topology, ...] = ()
    condition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeDelete(VolumeRequest):
    """Remove a volume and its data; succeed when it is not there, raise InUse while a pod has it.

    Attributes:
        secrets: decoded.
    """

    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeList(Request):
    """Tell every volume of the driver that this node can reach.

    Attributes:
        driver: the claim, `vendor/driver`.
    """

    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeCapacity(Request):
    """How many bytes are left for new volumes? The answer is a number, for all volumes together.

    Attributes:
        driver: the claim, `vendor/driver`.
        parameters: of the StorageClass; empty is any.
        topology: where; empty is anywhere.
    """

    driver: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    topology: Topology = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSnapshot(VolumeRequest):
    """Make a snapshot of a volume; a repeated call with the same name answers the same snapshot.

    Attributes:
        name: unique per driver, made by the caller.
        parameters: of the VolumeSnapshotClass.
        secrets: decoded.
    """

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSnapshotDelete(Request):
    """Remove a snapshot; succeed when it is not there.

    Attributes:
        driver: the claim, `vendor/driver`.
        snapshot_id: of the snapshot.
        secrets: decoded.
    """

    driver: str
    snapshot_id: str
    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSnapshotList(Request):
    """Tell every snapshot of the driver that this node can reach.

    Attributes:
        driver: the claim, `vendor/driver`.
    """

    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that exists.

    Attributes:
        snapshot_id: names it for ever.
        volume_id: of what.
        size: bytes of a volume that begins with it.
        created: seconds since the epoch.
        ready: a volume can begin with it.
    """

    snapshot_id: str
    volume_id: VolumeId
    size: int
    created: float
    ready: bool = True
