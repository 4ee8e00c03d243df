"""What the API server has stored of our slices, against what it was sent, and what is to be written to bring it there.

Owns: which differences count, what it means that a field has vanished, and the next generation of a pool.
Refuses: requests (`publication` makes them), and what a slice says (`slices`).

A field whose feature gate is off is dropped without a word, when it is created and when it is updated (kubernetes,
pkg/registry/resource/resourceslice/strategy.go). A device that was to be shared is then offered as a whole to the
first claim for a part, so what is new is compared in a dry run before it is stored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest
from nodeplug.fields import parse_quantity
from nodeplug.kubeapi.resources import Object

_DEFAULT: Final = "on by default from Kubernetes 1.36 on"
_SHARING: Final = (
    "DRAConsumableCapacity",
    (
        "a device cannot be shared there, and a claim for a part would get all of it: enable the gate in API server "
        "and scheduler, or serve the section as a device plugin"
    ),
)
_TAINTS: Final = (
    "DRADeviceTaints",
    "a device cannot be marked as unhealthy there, and is left out instead",
)
_COUNTERS: Final = (
    "DRAPartitionableDevices",
    (
        "devices that overlap would be allocated at once, and are not offered: enable the gate in API server and "
        "scheduler"
    ),
)
_GATED: Final[Mapping[str, tuple[str, str]]] = {
    "allowMultipleAllocations": _SHARING,
    "requestPolicy": _SHARING,
    "taints": _TAINTS,
    "sharedCounters": _COUNTERS,
    "consumesCounters": _COUNTERS,
}
"""By field: the feature gate, and what a cluster without it cannot do."""
_QUANTITIES: Final = frozenset({"value", "default", "min", "max", "step"})
_EXACT: Final = frozenset({"devices", "attributes", "capacity", "sharedCounters", "consumesCounters", "counters"})
"""Whose keys are ours alone: one that is stored and was not sent is a difference."""
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """What is stored otherwise than it was sent; false if nothing is.

    Attributes:
        dropped: the gated fields that have vanished, each once.
        others: every other difference, as a path and two values.
    """

    dropped: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dropped or self.others)

    @property
    def unshared(self) -> bool:
        """Whether devices that were to be shared are offered as wholes: such slices must not stay."""
        return any(_GATED[one] is _SHARING for one in self.dropped)

    @property
    def uncounted(self) -> bool:
        """Whether devices that overlap are offered as if they did not: they must not stay."""
        return any(_GATED[one] is _COUNTERS for one in self.dropped)

    @property
    def sentence(self) -> str:
        """What is wrong, for people; empty if nothing is."""
        lost: dict[tuple[str, str], list[str]] = {}
        for one in self.dropped:
            lost.setdefault(_GATED[one], []).append(one)
        said = [
            f"the API server dropped {' and '.join(fields)} of ResourceSlices: its feature gate {gate} ({_DEFAULT}) is "
            f"off; {why}"
            for (gate, why), fields in lost.items()
        ]
        if self.others:
            more = f" and {len(self.others) - _SHOWN} more" if len(self.others) > _SHOWN else ""
            said.append(
                f"ResourceSlices are stored otherwise than they were sent: {', '.join(self.others[:_SHOWN])}{more}"
            )
        return "; ".join(said)


@dataclass(frozen=True, slots=True)
class Changes:
    """What has to be written, in this order.

    Attributes:
        create: slices that are not there.
        replace: slices that are there with other contents, with the version that they replace.
        delete: names of slices that are to go.
    """

    create: tuple[Object, ...] = ()
    replace: tuple[Object, ...] = ()
    delete: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.create or self.replace or self.delete)


def difference(sent: Sequence[Object], stored: Sequence[Object]) -> Difference:
    """Return how stored slices differ from those that were sent, by name; what was not sent at all is not looked at.

    What the server adds does not count: times of taints, defaults of fields that were not sent, its own metadata.
    """
    found = {one["metadata"]["name"]: one for one in stored}
    dropped: dict[str, None] = {}
    others: list[str] = []
    for one in sent:
        name = one["metadata"]["name"]
        if name not in found:
            others.append(f"{name} is not there")
            continue
        for path, field, wanted, has in _differences(_of_ours(one), _of_ours(found[name]), name):
            if field in _GATED and _absent(field, has):
                dropped[field] = None
            else:
                others.append(f"{path} was sent as {wanted!r} and is {has!r}")
    return Difference(tuple(dropped), tuple(others))


def changes(wanted: Sequence[Object], stored: Sequence[Object]) -> Changes:
    """Return what has to be written so that a driver's slices on this node are those that are wanted.

    Of a pool of which something has changed, every slice is written with a generation above all that are stored:
    consumers take the newest, once it is complete. A slice that is missing among others of one generation, which are
    as they should be, is created with theirs.

    Args:
        wanted: of all pools, in any generation.
        stored: all slices of the driver on this node.
    """
    there = _by_pool(stored)
    made = [_of_pool(of_pool, there.pop(pool, [])) for pool, of_pool in _by_pool(wanted).items()]
    made.append(Changes(delete=tuple(one["metadata"]["name"] for found in there.values() for one in found)))
    return Changes(
        tuple(one for each in made for one in each.create),
        tuple(one for each in made for one in each.replace),
        tuple(one for each in made for one in each.delete),
    )


def generation_after(stored: Sequence[Object]) -> int:
    """Return a generation above those of a pool's stored slices."""
    return 1 + max((one["spec"]["pool"]["generation"] for one in stored), default=0)


def _by_pool(slices: Sequence[Object]) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = {}
    for one in slices:
        found.setdefault(one["spec"]["pool"]["name"], []).append(one)
    return found


def _of_pool(wanted: Sequence[Object], stored: Sequence[Object]) -> Changes:
    there = {one["metadata"]["name"]: one for one in stored}
    names = {one["metadata"]["name"] for one in wanted}
    delete = tuple(name for name in there if name not in names)
    generations = {one["spec"]["pool"]["generation"] for one in stored}
    if len(generations) == 1 and not delete:
        same = [_at(one, *generations) for one in wanted]
        if not difference([one for one in same if one["metadata"]["name"] in there], stored):
            return Changes(create=tuple(one for one in same if one["metadata"]["name"] not in there))
    anew = [_at(one, generation_after(stored)) for one in wanted]
    return Changes(
        tuple(one for one in anew if one["metadata"]["name"] not in there),
        tuple(_over(one, there[name]) for one in anew if (name := one["metadata"]["name"]) in there),
        delete,
    )


def _at(one: Object, generation: int) -> Object:
    return {**one, "spec": {**one["spec"], "pool": {**one["spec"]["pool"], "generation": generation}}}


def _over(one: Object, stored: Object) -> Object:
    """Return a slice as it replaces a stored one: taints that stay keep their time, which tolerations count from."""
    version = stored["metadata"].get("resourceVersion")
    there = {device["name"]: device.get("taints") or [] for device in stored["spec"].get("devices") or []}
    devices = [
        {**device, "taints": there[device["name"]]}
        if device.get("taints") and device["taints"] == _without_times(there.get(device["name"], []))
        else device
        for device in one["spec"].get("devices") or []
    ]
    metadata = {**one["metadata"], **({"resourceVersion": version} if version else {})}
    # A slice of counters must not even have an empty list of devices.
    spec = {**one["spec"], **({"devices": devices} if "devices" in one["spec"] else {})}
    return {**one, "metadata": metadata, "spec": spec}


def _of_ours(one: Object) -> Object:
    """Return what of a slice is written here: whose it is, and what it says."""
    spec = one["spec"]
    counters = _by("name", spec, "sharedCounters")
    devices = [{"at": at, **device} for at, device in enumerate(spec.get("devices") or [])]
    return {
        "ownerReferences": one["metadata"].get("ownerReferences") or [],
        **spec,
        **counters,
        "devices": {device["name"]: {**device, **_by("counterSet", device, "consumesCounters")} for device in devices},
    }


def _by(key: str, holder: Object, field: str) -> Object:
    """Return a list of a holder as what is in it by name, so that amounts in it are compared as amounts."""
    return {field: {one[key]: one for one in holder[field]}} if holder.get(field) else {}


def _differences(wanted: Object, has: Object, path: str, *, exact: bool = False) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield path, name and both values of each field that differs.

    Args:
        wanted: what was sent.
        has: what is stored.
        path: to these.
        exact: fields that are stored and were not sent differ as well, and not only gated ones.
    """
    for field in dict.fromkeys([*wanted, *(one for one in has if exact or one in _GATED)]):
        sent, stored, where = wanted.get(field), has.get(field), f"{path}.{field}"
        if isinstance(sent, dict) and isinstance(stored, dict):
            yield from _differences(sent, stored, where, exact=field in _EXACT or path.endswith(".attributes"))
        elif not _same(field, sent, stored):
            yield where, field, sent, stored


def _absent(field: str, value: Any) -> bool:
    """Whether the server leaves it out of its answer."""
    return value is None or value in ([], {}) or (value is False and field in _GATED)


def _same(field: str, sent: Any, stored: Any) -> bool:
    if _absent(field, sent) and _absent(field, stored):
        return True
    if field == "taints" and isinstance(sent, list) and isinstance(stored, list):
        return _without_times(sent) == _without_times(stored)
    if field in _QUANTITIES and isinstance(sent, str) and isinstance(stored, str):
        return _number(sent) == _number(stored)
    return type(sent) is type(stored) and bool(sent == stored)


def _without_times(taints: Sequence[Object]) -> list[Object]:
    return [{name: value for name, value in one.items() if name != "timeAdded"} for one in taints]


def _number(text: str) -> int | str:
    try:
        return parse_quantity(text)
    except InvalidRequest:
        return text
