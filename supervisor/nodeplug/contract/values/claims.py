"""What a plugin answers to.

Owns: the claim and, for volumes, what `init` tells kubelet beyond the hooks.
Refuses: checking names (the registry does that).
"""

from dataclasses import dataclass
from typing import Literal

ClaimKind = Literal["cni", "device", "volume"]


@dataclass(frozen=True, slots=True)
class VolumeCapabilities:
    """What FlexVolume `init` tells kubelet about a driver beyond the hooks that it has.

    Attributes:
        fs_group: kubelet changes the group of the whole tree after mount; False for network filesystems.
        selinux_relabel: kubelet relabels the tree.
        metrics: kubelet reports usage by statfs of the mount.
    """

    fs_group: bool = True
    selinux_relabel: bool = True
    metrics: bool = True


@dataclass(frozen=True, slots=True)
class Claim:
    """One name that a plugin answers to.

    Attributes:
        kind: "cni" (name = the executable's name), "device" (a resource) or "volume" (`vendor/driver`).
        name: unique per kind on the node; two owners of one claim refuse to load.
        capabilities: for volumes only.
        gives_way: for CNI only: the executable is installed where no other program has the name, and never takes it.
    """

    kind: ClaimKind
    name: str
    capabilities: VolumeCapabilities = VolumeCapabilities()
    gives_way: bool = False

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"
