"""What a plugin serves.

Owns: the claims, and what a volume driver says about itself beyond its hooks.
Refuses: to check names (the registry does that).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

__all__ = ["Claim", "ClaimKind", "CniClaim", "DeviceClaim", "ExclusiveClaim", "ExtenderClaim", "FsGroup", "VolumeClaim"]

ClaimKind = Literal["cni", "device", "volume", "extender", "exclusive"]
FsGroup = Literal["kubelet", "driver", "none"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One name that a plugin serves. Return one of its subclasses; of two owners of one claim the second is refused.

    Attributes:
        name: unique per kind on the node.
        kind: of the name.
    """

    kind: ClassVar[ClaimKind]
    name: str

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Refuse what the contract before 1.0 had: one class with the kind as an argument."""
        if cls is Claim:
            raise TypeError(
                "Claim(kind, name) was removed in API 1: return CniClaim(name), DeviceClaim(name) or VolumeClaim(name)"
            )
        return object.__new__(cls)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class CniClaim(Claim):
    """A CNI plugin: `name` is the executable's, the `type` in network configurations.

    Attributes:
        gives_way: the executable is installed only where no other program has the name.
        uses_netns: ADD and CHECK work in the container's namespace, and are refused without one. False for an IPAM
            plugin: CNI_NETNS may be any text, as `CNI_NETNS=/dev/null` of those who test address allocation alone.
    """

    kind = "cni"
    gives_way: bool = field(default=False, kw_only=True, compare=False)
    uses_netns: bool = field(default=True, kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class DeviceClaim(Claim):
    """An extended resource such as `example.com/fuse` (kubelet: IsExtendedResourceName).

    Attributes:
        counted: what is listed is there to be counted by others, and never allocated to containers. Dynamic Resource
            Allocation, which would allocate it, leaves it out.
    """

    kind = "device"
    counted: bool = field(default=False, kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class VolumeClaim(Claim):
    """A volume driver, `vendor/driver`.

    Attributes:
        fs_group: who changes the volume's group to the pod's fsGroup. "kubelet": for the whole tree, after
            the mount. "driver": `volume_publish` does, from `fs_group` of the request. "none": nobody, as on network
            filesystems.
        selinux_relabel: the runtime relabels the tree.
        metrics: the usage is what statfs of the mount says; with FlexVolume kubelet asks itself, and waits for a server
            that hangs. False: over CSI there is a usage all the same if the driver has `volume_stats`.
        csi_name: the name of the CSI driver; empty means `driver.vendor`.
        inline: a pod may name the volume in its own specification (CSI ephemeral volumes). Its author then chooses the
            options, where a PersistentVolume has those of an administrator: only for volumes that are the pod's own.
        block: pods may ask for the volume as a block device (CSI, `volumeMode: Block`).
        max_volumes: how many volumes a node can have, which the scheduler heeds (CSI); 0 means no limit.
        republish: kubelet publishes a mounted volume again and again, about every minute, so that `volume_refresh` can
            renew what expires (CSIDriver, `requiresRepublish`).
        tokens: audiences of the pod's service-account tokens that the driver needs; they come among the secrets, as
            `csi.storage.k8s.io/serviceAccount.tokens`, JSON by audience (CSIDriver, `tokenRequests`). An empty audience
            is the API server's.
        node_local: a volume is on the node that created it, and on no other (CSI topology).
        clones: `volume_create` can copy another volume.
    """

    kind = "volume"
    fs_group: FsGroup = field(default="kubelet", kw_only=True, compare=False)
    selinux_relabel: bool = field(default=True, kw_only=True, compare=False)
    metrics: bool = field(default=True, kw_only=True, compare=False)
    csi_name: str = field(default="", kw_only=True, compare=False)
    inline: bool = field(default=False, kw_only=True, compare=False)
    block: bool = field(default=False, kw_only=True, compare=False)
    max_volumes: int = field(default=0, kw_only=True, compare=False)
    republish: bool = field(default=False, kw_only=True, compare=False)
    tokens: tuple[str, ...] = field(default=(), kw_only=True, compare=False)
    node_local: bool = field(default=False, kw_only=True, compare=False)
    clones: bool = field(default=False, kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class ExtenderClaim(Claim):
    """A scheduler extender: `name` is the path of its `urlPrefix`, such as `example` in `http://127.0.0.1:9810/example`.

    Its verbs are `filter`, `prioritize`, `preempt` and `bind`, which kube-scheduler appends to the path.
    """

    kind = "extender"


@dataclass(frozen=True, slots=True)
class ExclusiveClaim(Claim):
    """Something on the node that only one section may have, such as its GPUs. Nothing calls it by this name.

    Of two sections with the same exclusive claim the second in the order of the configuration is refused at load. What
    sections of other names have left is in `Host.former_sections`.

    Attributes:
        advice: what to do about a second section, for the message that refuses it.
    """

    kind = "exclusive"
    advice: str = field(default="disable one of the two", kw_only=True, compare=False)
