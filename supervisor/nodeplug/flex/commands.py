"""FlexVolume's verbs as values.

Owns: one value per verb, the driver-independent part of the options, and the table of verbs with every argument order
that callers use (kubernetes/community flexvolume.md; kubelet, pkg/volume/flexvolume).
Refuses: parsing, I/O.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from nodeplug.contract.values import Pod, Secrets

_NO_POD: Final = Pod()


@dataclass(frozen=True, slots=True)
class VolumeOptions:
    """The JSON argument, split into kubelet's part and the driver's; `pod`, `fs_group` and `secrets` only on mount.

    Attributes:
        fs_type: `kubernetes.io/fsType`, may be empty.
        read_only: whether `kubernetes.io/readwrite` is "ro".
        volume_name: `kubernetes.io/pvOrVolumeName`.
        pod: from `kubernetes.io/pod.*`.
        fs_group: the pod's fsGroup, or None.
        secrets: `kubernetes.io/secret/<key>`, decoded from base64.
        own: the driver's own options.
    """

    fs_type: str = ""
    read_only: bool = False
    volume_name: str = ""
    pod: Pod = _NO_POD
    fs_group: int | None = None
    secrets: Secrets = field(default_factory=Secrets)
    own: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Init:
    """Report the capabilities of the driver."""


@dataclass(frozen=True, slots=True)
class GetVolumeName:
    """Name the volume; kubelet ignores the result but not a failure."""

    options: VolumeOptions


@dataclass(frozen=True, slots=True)
class Attach:
    """Attach the volume to a node."""

    options: VolumeOptions
    node: str


@dataclass(frozen=True, slots=True)
class WaitForAttach:
    """Wait for the device of an attached volume."""

    device: str
    options: VolumeOptions


@dataclass(frozen=True, slots=True)
class IsAttached:
    """Return whether the volume is attached to a node."""

    options: VolumeOptions
    node: str


@dataclass(frozen=True, slots=True)
class MountDevice:
    """Mount the device once for the node (only drivers with attach)."""

    target: str
    device: str
    options: VolumeOptions


@dataclass(frozen=True, slots=True)
class UnmountDevice:
    """Undo `mountdevice`."""

    target: str


@dataclass(frozen=True, slots=True)
class Detach:
    """Detach a volume, named as kubelet names it, from a node."""

    volume_name: str
    node: str


@dataclass(frozen=True, slots=True)
class Mount:
    """Mount the volume for one pod; kubelets up to 1.5 pass `device`."""

    target: str
    options: VolumeOptions
    device: str = ""


@dataclass(frozen=True, slots=True)
class Unmount:
    """Undo `mount`."""

    target: str


@dataclass(frozen=True, slots=True)
class ExpandVolume:
    """Grow the volume; sizes in bytes."""

    options: VolumeOptions
    target: str
    new_size: int
    old_size: int


@dataclass(frozen=True, slots=True)
class ExpandFs:
    """Grow the mounted filesystem; sizes in bytes."""

    options: VolumeOptions
    device: str
    target: str
    new_size: int
    old_size: int


Command = (
    Init
    | GetVolumeName
    | Attach
    | WaitForAttach
    | IsAttached
    | MountDevice
    | UnmountDevice
    | Detach
    | Mount
    | Unmount
    | ExpandVolume
    | ExpandFs
)


@dataclass(frozen=True, slots=True)
class Verb:
    """One row of the table: the class of the value, and the argument orders that callers use, the written one first."""

    make: Callable[..., Command]
    forms: tuple[tuple[str, ...], ...]


VERBS: Final[Mapping[str, Verb]] = MappingProxyType(
    {
        "init": Verb(Init, ((),)),
        "getvolumename": Verb(GetVolumeName, (("options",),)),
        "attach": Verb(Attach, (("options", "node"),)),
        "waitforattach": Verb(WaitForAttach, (("device", "options"),)),
        "isattached": Verb(IsAttached, (("options", "node"), ("node", "options"))),
        "mountdevice": Verb(MountDevice, (("target", "device", "options"),)),
        "unmountdevice": Verb(UnmountDevice, (("target",),)),
        "detach": Verb(Detach, (("volume_name", "node"),)),
        "mount": Verb(Mount, (("target", "options"), ("target", "device", "options"))),
        "unmount": Verb(Unmount, (("target",),)),
        "expandvolume": Verb(ExpandVolume, (("options", "target", "new_size", "old_size"),)),
        "expandfs": Verb(ExpandFs, (("options", "device", "target", "new_size", "old_size"),)),
    }
)
_VERB_OF: Final = {verb.make: name for name, verb in VERBS.items()}


def verb_of(command: Command) -> str:
    """Return the verb that a value stands for."""
    return _VERB_OF[type(command)]
