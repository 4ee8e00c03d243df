"""What crosses the contract: one frozen, slotted value per verb.

Owns: the vocabulary between the host and plugins, in the terms of the CNI specification, kubelet's device-plugin API
and the volume drivers.
Refuses: wire formats (the codecs know those), I/O, defaults that hide a missing answer. One type per verb, because an
optional field that "is always set for ADD" makes every author's code unsound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from types import MappingProxyType
from typing import Any, Literal, NewType

from nodeplug.netns import Netns

ResourceName = NewType("ResourceName", str)
"""An extended resource such as `example.com/fuse` (kubelet: IsExtendedResourceName)."""
DeviceId = NewType("DeviceId", str)
"""Opaque to kubelet, unique in its resource, at most 63 characters."""
VolumeId = NewType("VolumeId", str)
"""Names one volume of one driver on this node: two pods with the same id share the staged filesystem."""

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
    """

    kind: ClaimKind
    name: str
    capabilities: VolumeCapabilities = VolumeCapabilities()

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


# --- devices ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node for the container; permissions are any of r, w, m (mknod)."""

    host_path: str
    container_path: str = ""
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class DeviceMount:
    """A host path for the container."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Grant:
    """What a container gets for its devices (v1beta1 ContainerAllocateResponse).

    Kubelet stores it in its checkpoint and never asks again: paths and values must stay true for the pod's life.

    Attributes:
        env: where two resources of one container set the same name, kubelet keeps one at random.
        nodes: device nodes.
        mounts: host paths.
        annotations: for the container's CRI config; they never reach the pod object.
        cdi: fully qualified CDI names, `vendor.com/class=name`.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[DeviceMount, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()

    @staticmethod
    def merged(grants: Sequence["Grant"]) -> "Grant":
        """Join several grants: equal nodes, mounts and CDI names once, later env and annotations over earlier."""
        return Grant(
            env={name: value for grant in grants for name, value in grant.env.items()},
            nodes=tuple(dict.fromkeys(node for grant in grants for node in grant.nodes)),
            mounts=tuple(dict.fromkeys(mount for grant in grants for mount in grant.mounts)),
            annotations={name: value for grant in grants for name, value in grant.annotations.items()},
            cdi=tuple(dict.fromkeys(name for grant in grants for name in grant.cdi)),
        )


@dataclass(frozen=True, slots=True)
class Device:
    """One unit of a resource, in one snapshot.

    Attributes:
        id: stable for as long as the device exists.
        healthy: an unhealthy device lowers allocatable; running pods keep it.
        reason: why it is unhealthy, for people.
        numa_nodes: empty means no preference (the wire field stays unset: old kubelets reject an empty topology).
        grant: what Allocate answers when the plugin has no `device_allocate`.
    """

    id: DeviceId
    healthy: bool = True
    reason: str = ""
    numa_nodes: tuple[int, ...] = ()
    grant: Grant = field(default_factory=Grant)


@dataclass(frozen=True, slots=True)
class DeviceAllocate:
    """Allocate for one container: `devices` holds the listed devices of `ids`, in the same order."""

    resource: ResourceName
    ids: tuple[DeviceId, ...]
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class DevicePrefer:
    """GetPreferredAllocation: choose `size` ids out of `available`; `must_include` count towards `size`."""

    resource: ResourceName
    available: tuple[DeviceId, ...]
    must_include: tuple[DeviceId, ...]
    size: int


@dataclass(frozen=True, slots=True)
class DevicePrestart:
    """PreStartContainer: before each start of a container that holds `ids` (kubelet allows 30 s)."""

    resource: ResourceName
    ids: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class DeviceReleased:
    """A container no longer holds `ids`; derived from podresources, since kubelet has no Deallocate."""

    resource: ResourceName
    ids: tuple[DeviceId, ...]
    namespace: str
    pod: str
    container: str


# --- CNI --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CniInterface:
    """An interface of a result; `sandbox` is CNI_NETNS as received, or empty for a host interface."""

    name: str
    mac: str = ""
    sandbox: str = ""
    mtu: int = 0
    socket_path: str = ""
    pci_id: str = ""


@dataclass(frozen=True, slots=True)
class CniIp:
    """An address of a result; `interface` is an index into the result's interfaces (None in an IPAM result)."""

    address: IPv4Interface | IPv6Interface
    gateway: IPv4Address | IPv6Address | None = None
    interface: int | None = None


@dataclass(frozen=True, slots=True)
class CniRoute:
    """A route of a result; the numbers are None when not set (specification 1.1.0)."""

    dst: IPv4Network | IPv6Network
    gw: IPv4Address | IPv6Address | None = None
    mtu: int | None = None
    advmss: int | None = None
    priority: int | None = None
    table: int | None = None
    scope: int | None = None


@dataclass(frozen=True, slots=True)
class CniDns:
    """Name resolution as a result carries it."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CniResult:
    """What ADD answers, in the newest form; the host converts it to the version of the request."""

    interfaces: tuple[CniInterface, ...] = ()
    ips: tuple[CniIp, ...] = ()
    routes: tuple[CniRoute, ...] = ()
    dns: CniDns = CniDns()


@dataclass(frozen=True, slots=True, kw_only=True)
class CniRequest:
    """What every CNI verb carries.

    Attributes:
        claim: the name under which the plugin was executed.
        network: `name` of the configuration.
        version: `cniVersion` of the configuration.
        config: the whole plugin object from stdin, unknown keys included. Use `nodeplug.fold` for keys that runtimes
            spell with capitals.
        path: CNI_PATH, split.
        host_netns: the *caller's* namespace, where host-side work belongs. The call's thread starts inside it.
    """

    claim: str
    network: str
    version: str
    config: Mapping[str, Any]
    path: tuple[str, ...] = ()
    host_netns: Netns


@dataclass(frozen=True, slots=True, kw_only=True)
class CniAttachmentRequest(CniRequest):
    """What the verbs about one attachment carry: its key is (network, container_id, ifname).

    Attributes:
        args: CNI_ARGS, in the order received.
        prev_result: of the plugin before in the list on ADD, the final result on CHECK and DEL.
    """

    container_id: str
    ifname: str
    args: Mapping[str, str] = field(default_factory=dict)
    prev_result: CniResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CniAdd(CniAttachmentRequest):
    """ADD: attach `ifname` in `netns`; a repeated ADD of one attachment answers the same result."""

    netns: Netns


@dataclass(frozen=True, slots=True, kw_only=True)
class CniDel(CniAttachmentRequest):
    """DEL: must succeed when repeated, without a namespace, and after an ADD that failed half-way."""

    netns: Netns | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CniCheck(CniAttachmentRequest):
    """CHECK: raise when the attachment is not as `prev_result` says; extra routes are allowed."""

    netns: Netns
    prev_result: CniResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidAttachment:
    """One attachment that GC must keep."""

    container_id: str
    ifname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CniGc(CniRequest):
    """GC: `valid` is None when the caller said nothing (then destroy nothing), and empty when nothing is attached."""

    valid: tuple[ValidAttachment, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CniStatus(CniRequest):
    """STATUS: raise NotReady or LimitedConnectivity when an ADD would fail."""


# --- volumes ----------------------------------------------------------------------------------------------------


class Secrets(Mapping[str, bytes]):
    """Decoded secrets whose repr shows the names alone."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> bytes:
        return self._values[name]

    def __iter__(self) -> Any:
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


def fold(value: Any) -> Any:
    """Copy decoded JSON with every object key in lower case.

    Go matches keys without regard to case and the callers use that: containerd sends `HostPort` where podman sends
    `hostPort`. Of two keys that fold to one, the later wins.
    """
    if isinstance(value, Mapping):
        return {str(key).lower(): fold(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fold(item) for item in value]
    return value
