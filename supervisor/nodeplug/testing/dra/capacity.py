"""How much of a device a request consumes.

Owns: the grid of a request policy, rounding up to it, and the default.
Refuses: how much is left: that depends on all claims (`accounts`).

Source: KEP-5075; kubernetes 1.36, dynamic-resource-allocation/structured/internal/experimental/consumable_capacity.go.
"""

from collections.abc import Mapping
from typing import Any

from nodeplug.fields import parse_quantity

Object = Mapping[str, Any]


def on_grid(amount: object, span: Object) -> bool:
    """Return whether an amount is `min + n * step`, at most `max`."""
    value, least = parse_quantity(str(amount)), parse_quantity(str(span["min"]))
    step = parse_quantity(str(span["step"])) if "step" in span else 0
    most = parse_quantity(str(span["max"])) if "max" in span else None
    return value >= least and (most is None or value <= most) and (not step or (value - least) % step == 0)


def consumed(device: Object, asked: Mapping[str, str]) -> dict[str, int] | None:
    """Return what a request consumes of a shared device by capacity, or None if the device has no such amount.

    Args:
        device: of a slice, with `allowMultipleAllocations`.
        asked: amounts of the request by capacity; of the others the default is consumed, or all.
    """
    capacities: Object = device.get("capacity") or {}
    if not asked.keys() <= capacities.keys():
        return None
    found: dict[str, int] = {}
    for name, capacity in capacities.items():
        amount = _amount(capacity, asked.get(name))
        if amount is None or amount > parse_quantity(str(capacity["value"])):
            return None
        found[name] = amount
    return found


def fits_whole(device: Object, asked: Mapping[str, str]) -> bool:
    """Return whether a device that is allocated as a whole has the amounts of a request."""
    capacities: Object = device.get("capacity") or {}
    return asked.keys() <= capacities.keys() and all(
        parse_quantity(str(capacities[name]["value"])) >= parse_quantity(amount) for name, amount in asked.items()
    )


def _amount(capacity: Object, asked: str | None) -> int | None:
    policy: Object = capacity.get("requestPolicy") or {}
    if asked is None:
        return parse_quantity(str(policy.get("default", capacity["value"])))
    wanted = parse_quantity(asked)
    if values := policy.get("validValues"):
        return next((one for one in map(parse_quantity, map(str, values)) if one >= wanted), None)
    span: Object = policy.get("validRange") or {}
    if not span:
        return wanted
    least = parse_quantity(str(span["min"]))
    step = parse_quantity(str(span["step"])) if "step" in span else 0
    wanted = max(wanted, least)
    if step:
        wanted = least + -(-(wanted - least) // step) * step
    return None if "max" in span and wanted > parse_quantity(str(span["max"])) else wanted
