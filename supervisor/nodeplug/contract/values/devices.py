"""Devices, in the terms of kubelet's device-plugin API v1beta1.

Owns: the listed device, the grant, and one value per verb.
Refuses: protobuf.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType

ResourceName = NewType("ResourceName", str)
"""An extended resource such as `example.com/fuse` (kubelet: IsExtendedResourceName)."""
DeviceId = NewType("DeviceId", str)
"""Opaque to kubelet, unique in its resource, at most 63 characters."""


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


@dataclass(frozen=True, slots=True)
class Holding:
    """The devices of one resource that a container holds, as kubelet tells in podresources (which has no pod UID)."""

    resource: ResourceName
    ids: tuple[DeviceId, ...]
    namespace: str
    pod: str
    container: str
