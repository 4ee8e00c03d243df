"""Volumes, in the terms that FlexVolume and CSI share: attach, stage, publish, expand.

Owns: one value per verb, and secrets that are not shown.
Refuses: argv, JSON, base64, protobuf (the codecs decode once). What FlexVolume lacks has a default that says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NewType

from nodeplug.contract.values.requests import Request

__all__ = [
    "AccessMode",
    "DriverRequest",
    "Pod",
    "Secrets",
    "VolumeAttach",
    "VolumeAttached",
    "VolumeDetach",
    "VolumeExpand",
    "VolumeId",
    "VolumeIdentify",
    "VolumeIsAttached",
    "VolumeOptionsRequest",
    "VolumePublish",
    "VolumeRequest",
    "VolumeStage",
    "VolumeStats",
    "VolumeStatsRequest",
    "VolumeUnpublish",
    "VolumeUnstage",
    "VolumeUse",
    "VolumeWaitAttached",
]

VolumeId = NewType("VolumeId", str)
"""Names one volume of one driver: two pods with the same id share the staged filesystem. CSI calls it `volume_id`, a
PersistentVolume `volumeHandle`."""
AccessMode = Literal[
    "SINGLE_NODE_WRITER",
    "SINGLE_NODE_READER_ONLY",
    "MULTI_NODE_READER_ONLY",
    "MULTI_NODE_SINGLE_WRITER",
    "MULTI_NODE_MULTI_WRITER",
    "SINGLE_NODE_SINGLE_WRITER",
    "SINGLE_NODE_MULTI_WRITER",
]
"""How pods and nodes may share a volume (CSI specification 1.12, `VolumeCapability.AccessMode`)."""


class Secrets(Mapping[str, bytes]):
    """Decoded secrets whose repr shows only the names."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> bytes:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        """Cross to another process in base64."""
        from nodeplug.contract.crossing import in_base64  # noqa: PLC0415 - only pydantic asks, so it is there

        return in_base64(cls)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(f'{name}=***' for name in self._values)})"


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod as kubelet names it: a hint, never an authorisation (user options can override it on the wire).

    Attributes:
        name: of the pod.
        namespace: of the pod.
        uid: of the pod.
        service_account: of the pod.
    """

    name: str = ""
    namespace: str = ""
    uid: str = ""
    service_account: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRequest(Request):
    """What every request to a driver carries.

    Attributes:
        driver: the claim, `vendor/driver`.
    """

    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeIdentify(DriverRequest):
    """Which volume do the options mean? Return its id, as a PersistentVolume's `volumeHandle` would be.

    Attributes:
        options: the driver's own options, all strings, without kubelet's keys. CSI calls them volume context.
    """

    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRequest(DriverRequest):
    """What every volume verb carries. Those that undo carry only this and a path: nothing else is kept.

    Attributes:
        volume_id: from `volume_id`, or the digest of the options.
    """

    volume_id: VolumeId


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeOptionsRequest(VolumeRequest):
    """What the verbs carry for which the caller gives the volume's options.

    Attributes:
        options: the driver's own options, all strings, without kubelet's keys. CSI calls them volume context.
    """

    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeAttach(VolumeOptionsRequest):
    """Attach the volume to a node.

    Attributes:
        node: the name of the Node.
    """

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeAttached:
    """How a volume is attached.

    Attributes:
        device: the path of its device on the node; empty if there is none.
        context: what `volume_stage` and `volume_publish` get as `publish_context`; FlexVolume carries none.
    """

    device: str = ""
    context: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeDetach(DriverRequest):
    """Detach a volume from a node.

    Attributes:
        volume_name: kubelet's name for the volume, which FlexVolume passes instead of id and options.
        node: the name of the Node.
    """

    volume_name: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeIsAttached(VolumeOptionsRequest):
    """Whether the volume is attached to a node.

    Attributes:
        node: the name of the Node.
    """

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeWaitAttached(VolumeOptionsRequest):
    """Wait until a device exists; return its path.

    Attributes:
        device: the path that attach returned.
    """

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeUse(VolumeOptionsRequest):
    """What the verbs that bring a volume to a node or a pod carry.

    Attributes:
        fs_type: the filesystem that the user wants; empty leaves it to the driver.
        read_only: the pod may not write.
        fs_group: the pod's fsGroup, for drivers that change the group themselves; None if there is none, or
            kubelet does it. FlexVolume passes it only at publish.
        secrets: decoded; never put them into a message, log or record.
        access_mode: how it is shared; None if the caller does not say (FlexVolume).
        block: a block device instead of a filesystem: the path is then a file to bind the device on.
        mount_flags: options for mount(8) from the StorageClass or PersistentVolume; FlexVolume has none. May be secret.
        publish_context: what attaching returned, for CSI drivers with a controller.
        must_exist: the volume was provisioned: if it is not found, raise NotFound instead of creating it.
    """

    fs_type: str = ""
    read_only: bool = False
    fs_group: int | None = None
    secrets: Secrets = field(default_factory=Secrets)
    access_mode: AccessMode | None = None
    block: bool = False
    mount_flags: tuple[str, ...] = ()
    publish_context: Mapping[str, str] = field(default_factory=dict)
    must_exist: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStage(VolumeUse):
    """Mount the volume once for the node.

    Attributes:
        staging_path: a directory that exists and is empty.
        device: the path of the attached device; empty for drivers without attach.
    """

    staging_path: str
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumePublish(VolumeUse):
    """Mount the volume for one pod; the host undoes a mount that an error leaves behind.

    Attributes:
        target_path: a directory that exists.
        staging_path: where the volume is staged, or empty when the driver does not stage.
        pod: for whom.
        ephemeral: the volume lives and ends with this pod (CSI inline volumes).
    """

    target_path: str
    staging_path: str = ""
    pod: Pod = Pod()
    ephemeral: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeUnpublish(VolumeRequest):
    """Unmount the volume for one pod; succeed if it is not there.

    Attributes:
        target_path: of the publish; it may be gone.
    """

    target_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeUnstage(VolumeRequest):
    """Unmount the volume from the node; succeed if it is not there.

    Attributes:
        staging_path: of the stage; it may be gone.
    """

    staging_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeExpand(VolumeOptionsRequest):
    """Grow the volume, and its filesystem if that is mounted; succeed if it is already as large.

    Attributes:
        new_size: at least so many bytes.
        limit: at most so many bytes; 0 means no limit.
        mount_path: where the filesystem is mounted; empty if it is not, or if the caller grows it later.
    """

    new_size: int
    limit: int = 0
    mount_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStatsRequest(VolumeRequest):
    """Ask for the usage of a volume.

    Attributes:
        mount_path: of a publish.
        staging_path: of the stage, or empty.
    """

    mount_path: str
    staging_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStats:
    """Usage of a volume.

    Attributes:
        total: bytes.
        used: bytes; 0 for a device, of which nobody knows what is used.
        available: bytes; 0 for a device: one that is all used would set off the alerts of volumes that fill up.
        inodes: how many there can be; 0 means unknown.
        inodes_used: how many there are.
        condition: what is wrong with the volume, for people; empty if it is healthy.
    """

    total: int
    used: int
    available: int
    inodes: int = 0
    inodes_used: int = 0
    condition: str = ""
