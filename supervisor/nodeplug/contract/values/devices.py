"""Devices, in the terms of kubelet's device-plugin API v1beta1.

Owns: the listed device, the grant, and one value per verb.
Refuses: protobuf.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NewType

from nodeplug.contract.values.requests import Request

__all__ = [
    "AttributeValue",
    "Counters",
    "Device",
    "DeviceAllocate",
    "DeviceContainer",
    "DeviceId",
    "DeviceList",
    "DeviceMount",
    "DeviceNode",
    "DevicePlace",
    "DevicePrefer",
    "DevicePrestart",
    "DeviceReleased",
    "DeviceRequest",
    "Grant",
    "Holding",
    "Part",
    "ResourceClaim",
    "ResourceName",
]

ResourceName = NewType("ResourceName", str)
"""An extended resource such as `example.com/fuse` (kubelet: IsExtendedResourceName)."""
DeviceId = NewType("DeviceId", str)
"""Opaque to kubelet, unique in its resource, at most 63 characters. Use a DNS label: DRA requires it."""
AttributeValue = int | bool | str
"""Of an attribute of a device, as `resource.k8s.io/v1` has them; text has at most 64 bytes."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node for the container.

    Attributes:
        host_path: absolute, usually below `/dev`.
        container_path: absolute; empty means the same path.
        permissions: any of `r`, `w`, `m` (mknod), for the cgroup.
    """

    host_path: str
    container_path: str = ""
    _: KW_ONLY
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class DeviceMount:
    """A host path for the container.

    Attributes:
        host_path: absolute; a file or a directory that exists.
        container_path: absolute.
        read_only: of the bind mount.
    """

    host_path: str
    container_path: str
    _: KW_ONLY
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a container gets for its devices (v1beta1 ContainerAllocateResponse).

    Kubelet stores it in its checkpoint and never asks again: paths and values must stay true for the pod's life.

    Attributes:
        env: if two resources of one container set the same name, kubelet keeps one at random.
        nodes: device nodes.
        mounts: host paths.
        annotations: for the container's CRI config; they never reach the pod object. Only for callers that have them:
            kubelet's device plugins, not DRA.
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
class Part:
    """A device that is one of several equal shares of something larger.

    Attributes:
        of: the id of the whole, the same for all of its parts.
        amount: the size of one part, by capacity: `{"memory": 1 << 30}` in bytes. DRA takes one capacity.
    """

    of: DeviceId
    amount: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Counters:
    """What a device takes of something that devices overlap in: of a card that is given away whole, or cut in ways.

    A device is free as long as enough is left of every counter that it consumes. All devices of one set are of one
    resource, as a set belongs to one pool of the scheduler. They agree on what is available, and each consumes some of
    it. Only for callers that count: DRA with the feature gate DRAPartitionableDevices, not kubelet's device plugins,
    which get no list with such devices.

    Attributes:
        of: the name of the counter set, such as the id of the card.
        available: how much the set has, by counter, in bytes or units; at most 32 counters.
        consumed: how much of these the device takes, whoever gets it; of a device with parts the first claim takes it,
            and all parts name the same.
    """

    of: str
    available: Mapping[str, int]
    consumed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Device:
    """One unit of a resource, in one snapshot.

    Attributes:
        id: stable for as long as the device exists.
        healthy: whether it can serve; an unhealthy device lowers allocatable; running pods keep it.
        reason: why it is unhealthy, for people.
        numa_nodes: empty means no preference (the wire field stays unset: old kubelets reject an empty topology).
        grant: the response to Allocate if the plugin has no `device_allocate`.
        attributes: properties to choose by; kubelet's device plugins cannot pass them on,
            `nodeplug status --json` shows them. A name may have a domain, as `resource.kubernetes.io/pciBusID`.
        capacity: how much the whole device has, by name, in bytes or units; shown in the same place.
        part: what the device is a share of, if it is one.
        counters: what it takes of a counter set that it shares with devices that overlap it, if there are any.
        withheld: an unhealthy device that could serve: it is free, and kubelet is told otherwise so that the sum of
            what is free promises no more than a container can get. Kubelet's older choice of it is granted.
    """

    id: DeviceId
    _: KW_ONLY
    healthy: bool = True
    reason: str = ""
    numa_nodes: tuple[int, ...] = ()
    grant: Grant = field(default_factory=Grant)
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    part: Part | None = None
    withheld: bool = False
    counters: Counters | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceClaim:
    """The claim of `resource.k8s.io` for which devices are allocated.

    Attributes:
        uid: of the claim; an id is never allocated to two claims at once, but for `admin_access`.
        namespace: of the claim.
        name: of the claim.
        request: the name of the request within the claim.
        admin_access: it only observes devices that others may hold: not to be counted, nor told of as a holder's.
    """

    uid: str
    namespace: str
    name: str
    request: str
    admin_access: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest(Request):
    """What every device verb carries.

    Attributes:
        resource: the claim, an extended resource.
    """

    resource: ResourceName


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceList(DeviceRequest):
    """ListAndWatch: every device of `resource` as it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAllocate(DeviceRequest):
    """Allocate for one container.

    It may be repeated for ids that are already allocated, and must then return the same; it depends on nothing but the
    request.

    Attributes:
        ids: what the container gets; at least one, each once.
        devices: the listed devices of `ids`, in the same order, all healthy.
        claim: for which the ids are allocated, if the caller has claims (DRA); kubelet's device plugins have none.
        config: the opaque parameters that are for the claim's request, those of its class before those of the claim.
    """

    ids: tuple[DeviceId, ...]
    devices: tuple[Device, ...]
    claim: ResourceClaim | None = None
    config: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrefer(DeviceRequest):
    """GetPreferredAllocation: choose `size` ids from `available`.

    Attributes:
        available: free ids that kubelet may allocate, including those of `must_include`.
        must_include: ids that the result must contain; they count towards `size`.
        size: how many ids.
    """

    available: tuple[DeviceId, ...]
    must_include: tuple[DeviceId, ...]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrestart(DeviceRequest):
    """PreStartContainer: before each start of a container that holds `ids` (kubelet allows 30 s).

    Attributes:
        ids: what the container holds.
    """

    ids: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlace(DeviceRequest):
    """Which devices would serve a container? Reserved. A pure function of the request, for simulations.

    It is called where there is no hardware, without `start`: `devices` is all that is known of the node.

    Attributes:
        devices: every device of the node.
        available: free ids.
        must_include: ids that the result must contain; they count towards `size`.
        size: how many ids.
    """

    devices: tuple[Device, ...]
    available: tuple[DeviceId, ...]
    must_include: tuple[DeviceId, ...] = ()
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceContainer(DeviceRequest):
    """Before the process of a container that holds `ids` starts. Reserved.

    Attributes:
        ids: what the container holds.
        container_id: the runtime's id.
        pid: of the container's first process, which has not executed its program yet; 0 if there is none yet.
        cgroup: the container's cgroup, below /sys/fs/cgroup; empty if unknown.
        namespace: of the pod.
        pod: its name.
        container: its name.
    """

    ids: tuple[DeviceId, ...]
    container_id: str
    pid: int = 0
    cgroup: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReleased(DeviceRequest):
    """A container no longer holds `ids`; derived from podresources, since kubelet has no Deallocate.

    Several containers may have held the same ids: never count per container.

    Attributes:
        ids: what it held.
        namespace: of the pod.
        pod: its name; may be empty.
        container: its name; may be empty.
        claim: for which the ids were held, where the caller has claims (DRA).
    """

    ids: tuple[DeviceId, ...]
    namespace: str
    pod: str
    container: str
    claim: ResourceClaim | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The devices of one resource that a container holds, as kubelet reports in podresources (which has no pod UID).

    Several containers may hold the same ids: never add them up.

    Attributes:
        resource: an extended resource.
        ids: what the container holds; of a claim, all that one of its requests has.
        namespace: of the pod.
        pod: its name; empty where kubelet has told of no container that uses the claim.
        container: its name; empty where the pod's is.
        claim: for which the ids are held, where the caller has claims (DRA).
    """

    resource: ResourceName
    ids: tuple[DeviceId, ...]
    namespace: str
    pod: str
    container: str
    claim: ResourceClaim | None = None
