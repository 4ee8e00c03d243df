"""Counters: what devices that overlap take of one another.

Owns: whether what a list says of its counter sets can all be true, and what is left of a set for claims.
Refuses: objects of the API (`slices` writes them), and who holds what (`ledger`).

Source: kubernetes 1.36, pkg/apis/resource/types.go, and dynamic-resource-allocation/structured/internal/stable,
pools_stable.go: a scheduler takes nothing of a pool in which a device names a set or a counter that is not there.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from nodeplug.contract.errors import InvalidRequest
from nodeplug.contract.values import Counters, Device, DeviceId, ResourceName
from nodeplug.dra.names import counter_name
from nodeplug.dra.values import PoolDevice

_MOST: Final = 32
"""Counters of a set (ResourceSliceMaxCountersPerCounterSet)."""
_LARGEST: Final = (1 << 63) - 1
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


def check_counters(resource: ResourceName, devices: Sequence[Device]) -> None:
    """Check that devices of one counter set agree on it, and that each consumes some of what there is.

    Raises:
        InvalidRequest: they do not; the message has what was found.
    """
    first: dict[str, tuple[DeviceId, Counters]] = {}
    for device in devices:
        if (counters := device.counters) is None:
            continue
        if counters.of not in first:
            first[counters.of] = device.id, counters
            _check_set(f"counter set {counters.of!r} that {resource} lists", counters.available)
        other, known = first[counters.of]
        if counters.available is not known.available and counters.available != known.available:
            raise InvalidRequest(
                f"devices of counter set {counters.of!r} that {resource} lists differ in what is available: {other!r} "
                f"has {written(known.available)}, and {device.id!r} has {written(counters.available)}"
            )
        _check_consumed(f"{resource} lists {device.id!r}, which consumes", counters)
    _check_names(f"{resource} lists counter sets", first)


def _check_set(what: str, available: Mapping[str, int]) -> None:
    if not 1 <= len(available) <= _MOST:
        raise InvalidRequest(f"{what} has {len(available)} counters: there must be one, and at most {_MOST}")
    for name, amount in available.items():
        if not _is_amount(amount):
            raise InvalidRequest(f"{what} has {amount!r} of {name}: it must be a whole number from 0, and below 2^63")
    _check_names(f"{what} has counters", available)


def _check_consumed(what: str, counters: Counters) -> None:
    of = f"counter set {counters.of!r}"
    for name, amount in counters.consumed.items():
        if not _is_amount(amount) or amount > counters.available.get(name, -1):
            raise InvalidRequest(f"{what} {amount!r} of {name} of {of}, which has {written(counters.available)}")
    if not any(counters.consumed.values()):
        raise InvalidRequest(f"{what} nothing of {of}: a device that overlaps no other one has no counters")


def _check_names(what: str, names: Iterable[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        if known.setdefault(legal := counter_name(name), name) != name:
            raise InvalidRequest(f"{what} {known[legal]!r} and {name!r}, which are both {legal!r}")


def _is_amount(amount: object) -> bool:
    return type(amount) is int and 0 <= amount <= _LARGEST


def consumption(device: Device) -> Mapping[str, int]:
    """Return what a device consumes, each with the set that has it."""
    if device.counters is None:
        return _NOTHING
    return {f"{name} of {device.counters.of!r}": amount for name, amount in device.counters.consumed.items()}


def left_of(devices: Sequence[PoolDevice]) -> dict[str, dict[str, int]]:
    """Return what claims may have of each counter set, in the order in which devices name them.

    What claims have of it the scheduler subtracts; of containers that got a device by kubelet's device plugins it does
    not know.
    """
    found: dict[str, dict[str, int]] = {}
    for one in devices:
        if (counters := one.counters) is not None:
            left = found.setdefault(counters.of, dict(counters.available))
            for name, amount in counters.consumed.items() if one.taken else ():
                left[name] = max(0, left[name] - amount)
    return found


def written(amounts: Mapping[str, int]) -> str:
    """Return amounts for people."""
    return ", ".join(f"{value} of {name}" for name, value in amounts.items()) or "none"
