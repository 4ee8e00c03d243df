"""Rules for what a list of devices becomes for a scheduler, without a daemon: Dynamic Resource Allocation.

Owns: parts of one whole, devices that overlap, and what is said of devices to choose by.
Refuses: claims (`grants_by_claim`), and what kubelet's device plugins can carry (`device`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest
from nodeplug.contract.values import Counters, Device, DeviceId, ResourceName
from nodeplug.dra.counters import check_counters
from nodeplug.dra.names import attribute_name
from nodeplug.testing.conformance.claimed_node import resources
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.report import few
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.verdict import Broken, NotApplicable

_API: Final = "resource.k8s.io/v1"
_ENTRIES: Final = 31
"""Attributes and capacities of a device together; one more is the resource."""
_TEXT: Final = 64
_BITS: Final = 63
Described = Mapping[str, Any]


def _devices(exam: Examination) -> Iterator[tuple[str, list[Described]]]:
    for resource in resources(exam):
        yield resource, exam.rehearsal().document["devices"][resource]["described"]


@rule(
    "device",
    f"{_API}: a device has one capacity, and the scheduler counts it",
    "Give every part of one thing the same one amount, above 0, and the same capacity of the whole.",
)
def parts_of_one_thing_agree(exam: Examination) -> str:
    """Parts of one thing have one amount, all the same, and say the same of the whole."""
    any_parts = False
    for resource, devices in _devices(exam):
        wholes = {one["id"] for one in devices if one["part"] is None}
        first: dict[str, Described] = {}
        for one in devices:
            if one["part"] is None:
                continue
            any_parts = True
            of, amount = one["part"]
            if of in wholes:
                raise Broken(f"{resource} lists {of!r} as a whole, and {one['id']!r} as a part of it")
            if len(amount) != 1 or min(amount.values()) < 1:
                raise Broken(f"{resource}: the part {one['id']!r} has the amounts {amount}, and one above 0 is needed")
            other = first.setdefault(of, one)
            for what, mine, its in (
                ("amount", amount, other["part"][1]),
                ("capacity", one["capacity"], other["capacity"]),
                ("consumption", one["counters"], other["counters"]),
            ):
                if mine != its:
                    raise Broken(f"{resource}: the {what} of {one['id']!r} is {mine}, that of {other['id']!r} is {its}")
    if not any_parts:
        raise NotApplicable("no device is a part of another")
    return ""


@rule(
    "device",
    f"{_API}: consumesCounters, sharedCounters",
    "Say the same of a counter set in each of its devices; consume of what it has, and never more than there is.",
)
def counter_sets_agree(exam: Examination) -> str:
    """Devices that overlap agree on what is available of their counter set, and each consumes some of it."""
    sets: dict[str, None] = {}
    for resource, devices in _devices(exam):
        try:
            check_counters(ResourceName(resource), [_counted(one) for one in devices])
        except InvalidRequest as error:
            raise Broken(error.message) from None
        sets |= {f"{one['counters'][0]} of {resource}": None for one in devices if one["counters"] is not None}
    if not sets:
        raise NotApplicable("no device overlaps another")
    return few(list(sets))


def _counted(device: Described) -> Device:
    counters = None if device["counters"] is None else Counters(*device["counters"])
    return Device(DeviceId(device["id"]), counters=counters)


@rule(
    "device",
    f"{_API}: what it does not take is left out or cut off, and no claim can choose by it",
    "Name them as C identifiers, with a domain where another driver has the same; shorten texts; leave out the rest.",
)
def attributes_are_published(exam: Examination) -> str:
    """Attributes and capacities have names and values that the API takes as they are, and at most 31 per device."""
    told: set[str] = set()
    for resource, devices in _devices(exam):
        for one in devices:
            named = {**one["attributes"], **one["capacity"]}
            told |= named.keys()
            if wrong := next(filter(None, (_wrong(name, value) for name, value in named.items())), ""):
                raise Broken(f"{resource}: {one['id']!r} has {wrong}")
            if any(not _counts(size) for size in one["capacity"].values()):
                raise Broken(f"{resource}: {one['id']!r} has the capacity {one['capacity']}, which is no number from 0")
            parts = one["part"][1] if one["part"] is not None else {}
            if (count := len(named.keys() | parts.keys())) > _ENTRIES:
                raise Broken(f"{resource}: {one['id']!r} has {count} attributes and capacities, at most {_ENTRIES} fit")
    if not told:
        raise NotApplicable("no device has attributes or capacities")
    return ", ".join(sorted(told))


def _counts(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 0


def _wrong(name: str, value: object) -> str:
    """Say what the API does not take; empty if it takes it."""
    if attribute_name(name) != name:
        return f"the name {name!r}, which is no C identifier of at most 32 characters"
    match value:
        case bool():
            return ""
        case int():
            return "" if -(1 << _BITS) <= value < 1 << _BITS else f"{name} = {value}, which has more than 64 bits"
        case str():
            size = len(value.encode("utf-8", "replace"))
            return "" if size <= _TEXT else f"{name} of {size} bytes, at most {_TEXT} are published"
    return f"{name} = {value!r}, which is neither text nor a whole number nor true or false"
