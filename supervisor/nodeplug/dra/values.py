"""What this front computes with: devices as the scheduler sees them, and what it has allocated of them.

Owns: the values between slices, claims, records and CDI specs.
Refuses: objects of the API, protobuf, plugins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from nodeplug.contract.values import Counters, Device, DeviceId, ResourceName

TAKEN: Final = "held by a container of a device plugin"
"""Why a device is not for claims that nobody can use through one."""


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """One device of a pool: one that is whole, or all listed parts of something larger.

    Attributes:
        name: in the pool, a DNS label.
        resource: what its plugin claims.
        devices: as the plugin lists them, in its order; one if it is whole.
        amount: the size of one part, by capacity, such as `{"memory": 1 << 30}`; empty if it is whole.
        taken: held by others than claims, such as containers of kubelet's device manager: never for a claim.
        held: by claims, as far as that is recorded here.
    """

    name: str
    resource: ResourceName
    devices: tuple[Device, ...]
    amount: Mapping[str, int] = field(default_factory=dict)
    _: KW_ONLY
    taken: frozenset[DeviceId] = frozenset()
    held: frozenset[DeviceId] = frozenset()

    @property
    def shared(self) -> bool:
        """Whether several claims may have parts of it."""
        return bool(self.amount)

    @property
    def counters(self) -> Counters | None:
        """What it consumes as soon as a claim has some of it; all parts agree."""
        return self.devices[0].counters

    @property
    def usable(self) -> tuple[Device, ...]:
        """Those that can serve a claim, as far as their plugin says; what it withholds from kubelet can."""
        return tuple(one for one in self.devices if (one.healthy or one.withheld) and one.id not in self.taken)

    @property
    def free(self) -> tuple[Device, ...]:
        """Those that can serve a new one."""
        return tuple(one for one in self.usable if one.id not in self.held)

    @property
    def counted(self) -> tuple[Device, ...]:
        """Those that make up its capacity: what claims hold of it is subtracted by the scheduler, healthy or not."""
        usable = set(ids_of(self.usable))
        return tuple(one for one in self.devices if one.id in usable or (one.id in self.held - self.taken))

    @property
    def reason(self) -> str:
        """Why none is usable; empty if one is."""
        if self.usable:
            return ""
        ill = [one for one in self.devices if one.id not in self.taken]
        return next((one.reason for one in ill if one.reason), "no reason is given") if ill else TAKEN


@dataclass(frozen=True, slots=True)
class Pool:
    """The devices of one resource of this node.

    Attributes:
        name: see `names.pool_name`.
        resource: what the plugin claims.
        devices: in the order in which the scheduler is to try them.
        away: why the plugin cannot serve new claims at present, whatever its devices are like; empty if it can.
    """

    name: str
    resource: ResourceName
    devices: tuple[PoolDevice, ...]
    away: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """One result of an allocation (DeviceRequestAllocationResult): a device for a request, or some of it.

    Attributes:
        request: of the claim, `name` or `name/subrequest`.
        pool: of the device.
        device: its name there.
        share_id: which of a device's allocations it is; empty if the device is allocated as a whole.
        consumed: how much of it, by capacity; empty if the device is allocated as a whole.
        admin: for observation alone: it consumes nothing.
    """

    request: str
    pool: str
    device: str
    share_id: str = ""
    consumed: Mapping[str, int] = field(default_factory=dict)
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the scheduler has written into a claim, as far as one driver is concerned.

    Attributes:
        uid: of the claim.
        namespace: of the claim.
        name: of the claim.
        shares: in the order of the claim.
        config: opaque parameters for this driver, those of classes before those of the claim, each with the requests
            that it is for; none means all of them.
    """

    uid: str
    namespace: str
    name: str
    shares: tuple[Share, ...]
    config: tuple[tuple[frozenset[str], Mapping[str, Any]], ...] = ()


def ids_of(devices: Sequence[Device]) -> tuple[DeviceId, ...]:
    """Return the ids of devices, in their order."""
    return tuple(one.id for one in devices)
