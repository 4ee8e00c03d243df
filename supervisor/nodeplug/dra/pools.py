"""From the device list of a plugin to the pool that the scheduler chooses from.

Owns: which devices are parts of one, which of them may be promised, and the order in which the scheduler tries them.
Refuses: objects of the API (`slices` writes them), and a list of which no true promise can be made.

What the scheduler has promised, it subtracts from a device's capacity itself. So what claims hold stays in it, and
only what nobody may get through a claim is taken out.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from nodeplug.contract.errors import InvalidRequest
from nodeplug.contract.values import Device, DeviceId, ResourceName
from nodeplug.dra.counters import check_counters, consumption, written
from nodeplug.dra.names import device_name, pool_name
from nodeplug.dra.values import Pool, PoolDevice

Order = Literal["listed", "most-free-first"]
_LARGEST: Final = (1 << 63) - 1
"""Of a quantity that is read back as a number, and of what the scheduler adds up."""


def pool_of(
    node: str,
    resource: ResourceName,
    devices: Sequence[Device],
    taken: Container[DeviceId] = (),
    held: Container[DeviceId] = (),
    *,
    order: Order = "listed",
) -> Pool:
    """Return the pool of a resource.

    Args:
        node: its name in the cluster.
        resource: what the plugin claims.
        devices: as the plugin lists them.
        taken: held by others than claims, such as containers that kubelet's device manager has given them.
        held: by claims.
        order: `listed` fills one device before the next; `most-free-first` spreads, at the price of a pool that changes
            with each claim.

    Raises:
        InvalidRequest: two devices have one name, or what is said of parts of one thing, or of devices that overlap,
            cannot all be true.
    """
    check_counters(resource, devices)
    found: dict[str, list[Device]] = {}
    owners: dict[str, tuple[DeviceId, bool]] = {}
    for device in devices:
        of = (device.id, False) if device.part is None else (device.part.of, True)
        name = device_name(of[0])
        if owners.setdefault(name, of) != of:
            raise InvalidRequest(f"{resource} lists {_called(owners[name])} and {_called(of)}, which are both {name!r}")
        found.setdefault(name, []).append(device)
    made = [_device(name, resource, parts, taken, held) for name, parts in found.items()]
    if order == "most-free-first":
        made.sort(key=lambda one: -len(one.free))
    return Pool(pool_name(node, resource), resource, tuple(made))


def without_unusable(pool: Pool) -> Pool:
    """Return a pool without the devices that a taint would keep from claims, for a cluster that knows no taints.

    A claim that holds one of them keeps it: only new ones are not to find it. One that overlaps others stays in the
    pool meanwhile, where the scheduler knows what it consumes; there it is in use.
    """
    there = (one for one in pool.devices if one.usable or (one.counters is not None and one.held))
    return replace(pool, devices=tuple(there) if not pool.away else ())


def without_overlapping(pool: Pool) -> Pool:
    """Return a pool without the devices that overlap others, for a cluster that does not count what these take."""
    return replace(pool, devices=tuple(one for one in pool.devices if one.counters is None))


def _called(owner: tuple[DeviceId, bool]) -> str:
    return f"parts of {owner[0]!r}" if owner[1] else f"device {owner[0]!r}"


def _device(
    name: str,
    resource: ResourceName,
    devices: Sequence[Device],
    taken: Container[DeviceId],
    held: Container[DeviceId],
) -> PoolDevice:
    if len({one.id for one in devices}) < len(devices):
        twice = next(one.id for number, one in enumerate(devices) if one.id in {two.id for two in devices[:number]})
        raise InvalidRequest(f"{resource} lists {twice!r} twice")
    return PoolDevice(
        name,
        resource,
        tuple(devices),
        _amount(resource, devices),
        taken=frozenset(one.id for one in devices if one.id in taken),
        held=frozenset(one.id for one in devices if one.id in held),
    )


def _amount(resource: ResourceName, devices: Sequence[Device]) -> dict[str, int]:
    """Return the size of a part; empty for a device that is whole."""
    part = devices[0].part
    if part is None:
        return {}
    whole = f"the parts of {part.of!r} that {resource} lists"
    _agree(f"{whole} differ in size", devices, lambda one: one.part.amount if one.part is not None else {})
    _agree(f"{whole} differ in the capacity of the whole", devices, lambda one: one.capacity)
    _agree(f"{whole} differ in what the whole consumes", devices, consumption)
    if len(part.amount) != 1:
        raise InvalidRequest(
            f"{whole} have {len(part.amount)} amounts ({', '.join(part.amount) or 'none'}), and one is needed: the "
            "scheduler counts each capacity apart, and a part is all of its amounts or nothing"
        )
    ((capacity, size),) = part.amount.items()
    if size < 1 or size * len(devices) > _LARGEST:
        raise InvalidRequest(f"{whole} have {size} of {capacity} each: it must be at least 1, and their sum below 2^63")
    return {capacity: size}


def _agree(complaint: str, devices: Sequence[Device], said: Callable[[Device], Mapping[str, int]]) -> None:
    """Check that all devices say the same.

    Raises:
        InvalidRequest: two do not; the message has both.
    """
    first = said(devices[0])
    for one in devices:
        if (other := said(one)) is not first and other != first:
            raise InvalidRequest(
                f"{complaint}: {devices[0].id!r} has {written(first)}, and {one.id!r} has {written(other)}"
            )
