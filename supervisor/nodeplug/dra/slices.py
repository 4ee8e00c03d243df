"""A pool as `resource.k8s.io/v1` has it: ResourceSlices of a node.

Owns: every field of a slice that this front writes, and what is left out because the API has no place for it.
Refuses: what may be promised (`pools`), what the server has stored (`stored`), and requests.

Source: kubernetes 1.36, pkg/apis/resource/validation, and staging/src/k8s.io/dynamic-resource-allocation/structured,
which sorts the slices of a pool by name and takes the first device that fits.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Literal

from nodeplug.contract.values import AttributeValue
from nodeplug.dra.counters import left_of
from nodeplug.dra.names import DOMAIN, RESOURCE, attribute_name, counter_name, resource_value, taint_value
from nodeplug.dra.values import TAKEN, Pool, PoolDevice
from nodeplug.fields import write_quantity
from nodeplug.kubeapi.resources import RESOURCE_SLICES, Object

Effect = Literal["NoSchedule", "NoExecute", "None"]
_NUMA: Final = "resource.kubernetes.io/numaNode"
UNHEALTHY: Final = f"{DOMAIN}/unhealthy"
AWAY: Final = f"{DOMAIN}/away"
TAKEN_KEY: Final = f"{DOMAIN}/taken"
_DEVICES: Final = 64
"""Of a slice: what the API allows as soon as one of them has a taint or counters. Else it allows 128; but then a first
taint would move devices to other slices and change how many there are, which the scheduler sees as a pool in pieces."""
_SETS: Final = 8
"""Counter sets of a slice, which has no devices then."""
_ENTRIES: Final = 32
"""Attributes and capacities of a device together."""
_TEXT: Final = 64
"""Bytes of an attribute's text."""
_NAME: Final = 253
_INTEGERS: Final = range(-(1 << 63), 1 << 63)


def slices_of(
    driver: str,
    node_name: str,
    node_uid: str,
    pool: Pool,
    generation: int,
    taint: Effect,
    left_out: Sequence[PoolDevice] = (),
) -> list[Object]:
    """Return the slices of a pool; one without devices if it has none, which tells that the driver is here.

    Those of counter sets come last: a set that is new moves no device to another slice.

    Args:
        driver: see `names.driver_name`.
        node_name: the node that has the devices.
        node_uid: of its Node, with which the slices go.
        pool: what is published.
        generation: of the pool, higher than that of other contents that were published.
        taint: what an unhealthy device means for pods.
        left_out: devices that are not published: what containers have of them is missing from its set all the same.
    """
    devices = [_device(one, taint, pool.away) for one in pool.devices]
    named = {one.counters.of for one in pool.devices if one.counters is not None}
    left = left_of([*pool.devices, *left_out])
    sets = [{"name": counter_name(of), "counters": _counters(left[of])} for of in left if of in named]
    parts = [{"devices": devices[at : at + _DEVICES]} for at in range(0, len(devices) or 1, _DEVICES)]
    parts += [{"sharedCounters": sets[at : at + _SETS]} for at in range(0, len(sets), _SETS)]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid, "controller": True}
    return [
        {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": {"name": slice_name(driver, pool.name, index), "ownerReferences": [owner]},
            "spec": {
                "driver": driver,
                "nodeName": node_name,
                "pool": {"name": pool.name, "generation": generation, "resourceSliceCount": len(parts)},
                **part,
            },
        }
        for index, part in enumerate(parts)
    ]


def slice_name(driver: str, pool: str, index: int) -> str:
    """Return the name of a slice: in the whole cluster no other pool has it, and names sort by index."""
    digest = sha256(f"{driver}\0{pool}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    plain = re.sub(r"[^a-z0-9]+", "-", f"{pool}-{driver}".lower())
    place = f"{index:04d}"
    return f"{place}-{plain[: _NAME - len(place) - len(digest) - 2].strip('-')}-{digest}"


def left_out(pool: Pool) -> list[str]:
    """Return what of a pool is not in its slices, as sentences: each is to be told once."""
    devices: dict[tuple[str, ...], list[str]] = {}
    for one in pool.devices:
        if names := _entries(one)[2]:
            devices.setdefault(names, []).append(one.name)
    return [
        f"{', '.join(names)} of {_shown(found)} ({pool.resource}) cannot be published: a device has at most {_ENTRIES} "
        "attributes and capacities together, and numbers have 64 bits"
        for names, found in devices.items()
    ]


def _shown(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if names[1:] else names[0]


def quantity(value: int) -> str:
    """Write a number as the server writes it, which is how it is stored and compared (CanonicalizeBytes)."""
    if isinstance(binary := write_quantity(value), str):
        return binary
    power = 0
    while value and value % 1000 == 0:
        value, power = value // 1000, power + 1
    return f"{value}{('', 'k', 'M', 'G', 'T', 'P', 'E')[power]}"


def _text(text: str) -> str:
    """Return a text as an attribute has it: what is too long is cut off."""
    return text.encode("utf-8", "replace")[:_TEXT].decode("utf-8", "ignore")


def _device(device: PoolDevice, taint: Effect, away: str) -> Object:
    attributes, capacity, _ = _entries(device)
    made: Object = {"name": device.name, "attributes": attributes}
    if capacity:
        made["capacity"] = capacity
    if device.shared:
        made["allowMultipleAllocations"] = True
    # What a container has by kubelet's device plugins its set lacks already (`left_of`).
    if (counters := device.counters) is not None and not device.taken:
        consumed = _counters(counters.consumed)
        made["consumesCounters"] = [{"counterSet": counter_name(counters.of), "counters": consumed}]
    if taints := _taints(device, taint, away):
        made["taints"] = taints
    return made


def _counters(amounts: Mapping[str, int]) -> Object:
    return {counter_name(name): {"value": quantity(amount)} for name, amount in amounts.items()}


def _entries(device: PoolDevice) -> tuple[Object, Object, tuple[str, ...]]:
    """Return attributes, capacities, and the names of those for which there is no place."""
    attributes: Object = {RESOURCE: {"string": resource_value(device.resource)}}
    capacity: Object = {}
    dropped: list[str] = []
    for name, size in _capacities(device):
        if len(attributes) + len(capacity) < _ENTRIES and size is not None:
            capacity[attribute_name(name)] = size
        else:
            dropped.append(name)
    for name, value in _attributes(device):
        if len(attributes) + len(capacity) < _ENTRIES and value is not None:
            attributes.setdefault(attribute_name(name), value)
        else:
            dropped.append(name)
    return attributes, capacity, tuple(dropped)


def _capacities(device: PoolDevice) -> Iterator[tuple[str, Object | None]]:
    """Yield each capacity; None is one that the API cannot have.

    Of a shared device there are those of its parts alone: a claim that asks for none of another would get all of it.
    """
    if not device.shared:
        for name, size in device.devices[0].capacity.items():
            yield name, {"value": quantity(size)} if 0 <= size < _INTEGERS.stop else None
    for name, amount in device.amount.items():
        yield name, _shared_capacity(amount, len(device.counted))


def _shared_capacity(amount: int, parts: int) -> Object:
    """Return a capacity of which claims get whole parts, and by default all.

    The server refuses a range whose second step is beyond the value, and any range of nothing. There a default above
    the value keeps those out that ask for no amount.
    """
    every: Object = {"value": quantity(parts * amount)}
    if parts == 0:
        return {**every, "requestPolicy": {"default": quantity(amount)}}
    grid = {"min": quantity(amount), **({"step": quantity(amount)} if parts > 1 else {})}
    return {**every, "requestPolicy": {"default": every["value"], "validRange": grid}}


def _attributes(device: PoolDevice) -> Iterator[tuple[str, Object | None]]:
    """Yield what is true of all parts; None is a value that the API cannot have."""
    first, *others = device.devices
    if len(first.numa_nodes) == 1 and all(one.numa_nodes == first.numa_nodes for one in others):
        yield _NUMA, {"int": first.numa_nodes[0]}
    different = [one.attributes for one in others if one.attributes is not first.attributes]
    for name, value in first.attributes.items():
        if name != RESOURCE and all(_same(one, name, value) for one in different):
            yield name, _value(value)


def _same(attributes: Mapping[str, AttributeValue], name: str, value: AttributeValue) -> bool:
    other = attributes.get(name)
    return other == value and type(other) is type(value)


def _value(value: Any) -> Object | None:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value} if value in _INTEGERS else None
        case str():
            return {"string": _text(value)}
        case _:
            return None


def _taints(device: PoolDevice, effect: Effect, away: str) -> list[Object]:
    """Return the taint of a device that cannot serve.

    One that others hold is kept from claims in any case, and nobody is evicted because a plugin does not run.
    """
    if away:
        return [{"key": AWAY, "value": taint_value(away), "effect": "NoSchedule"}]
    if not (reason := device.reason):
        return []
    if reason == TAKEN:
        return [{"key": TAKEN_KEY, "value": taint_value(reason), "effect": "NoSchedule"}]
    return [{"key": UNHEALTHY, "value": taint_value(reason), "effect": effect}]
