"""Volumes that a driver creates and deletes, in the terms of CSI's controller service.

Owns: one value per verb.
Refuses: protobuf, and PersistentVolume objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeplug.contract.values.volumes import AccessMode, DriverRequest, Secrets, VolumeId, VolumeRequest

__all__ = [
    "ProvisionedVolume",
    "Snapshot",
    "Topology",
    "VolumeCapacity",
    "VolumeCreate",
    "VolumeDelete",
    "VolumeList",
    "VolumeRoom",
    "VolumeSnapshot",
    "VolumeSnapshotDelete",
    "VolumeSnapshotList",
]

Topology = Mapping[str, str]
"""Where a volume can be used: segments by key, such as `{"example.com/node": "a"}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeCreate(DriverRequest):
    """Create a volume; a repeated call with the same name returns the same volume.

    Attributes:
        name: unique per driver, chosen by the caller.
        size: at least so many bytes; 0 leaves it to the driver.
        limit: at most so many bytes; 0 means no limit.
        access_modes: all of which the volume must serve.
        block: a block device instead of a filesystem.
        fs_type: empty leaves it to the driver.
        mount_flags: options for mount(8). May be secret.
        parameters: of the StorageClass, without Kubernetes' own keys.
        secrets: decoded.
        source: a volume to copy the contents of; empty for an empty volume, or one from a snapshot.
        snapshot: a snapshot to copy the contents of; empty if there is none.
        topology: where it must be usable, the preferred place first; empty means anywhere.
    """

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
    snapshot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionedVolume:
    """A volume that exists.

    Attributes:
        volume_id: what `volume_id` returns for its options.
        size: bytes.
        options: the driver's own options for it, without the size: they never change.
        topology: where it can be used; empty means anywhere, or for a claim with `node_local` this node.
        condition: what is wrong with it, for people; empty if it is healthy.
    """

    volume_id: VolumeId
    size: int
    options: Mapping[str, str] = field(default_factory=dict)
    topology: tuple[Topology, ...] = ()
    condition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeDelete(VolumeRequest):
    """Delete a volume and its data; succeed if it does not exist, raise InUse while a pod uses it.

    Attributes:
        secrets: decoded.
    """

    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeList(DriverRequest):
    """List every volume of the driver that this node can reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRoom:
    """How much room there is for new volumes.

    Attributes:
        available: bytes for all of them together.
        largest: bytes that one of them may have; None: nobody says.
    """

    available: int
    largest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeCapacity(DriverRequest):
    """How many bytes are left for new volumes, all together?

    Attributes:
        parameters: of the StorageClass; empty means any.
        topology: where; empty means anywhere.
    """

    parameters: Mapping[str, str] = field(default_factory=dict)
    topology: Topology = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSnapshot(VolumeRequest):
    """Create a snapshot of a volume; a repeated call with the same name returns the same snapshot.

    Attributes:
        name: unique per driver, chosen by the caller.
        parameters: of the VolumeSnapshotClass.
        secrets: decoded.
    """

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSnapshotDelete(DriverRequest):
    """Delete a snapshot; succeed if it does not exist.

    Attributes:
        snapshot_id: of the snapshot.
        secrets: decoded.
    """

    snapshot_id: str
    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSnapshotList(DriverRequest):
    """List every snapshot of the driver that this node can reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that exists.

    Attributes:
        snapshot_id: its permanent name.
        volume_id: of the volume it was taken of.
        size: bytes of a volume that is created from it.
        created: seconds since the epoch.
        ready: a volume can be created from it.
    """

    snapshot_id: str
    volume_id: VolumeId
    size: int
    created: float
    ready: bool = True
