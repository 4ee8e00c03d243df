"""Amounts as an API server writes them, which is not always as they were sent.

Owns: the canonical form of a quantity, and all quantities of an object.
Refuses: fractions, and numbers of 2^63 and more.

Source: kubernetes, apimachinery/pkg/api/resource/quantity.go, CanonicalizeBytes.
"""

from collections.abc import Mapping
from typing import Any, Final

from nodeplug.fields import parse_quantity

_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P", "E")
_HOLDERS: Final = frozenset({"requestPolicy", "validRange"})
_AMOUNTS: Final = frozenset({"value", "default", "min", "max", "step"})


def canonical(amount: str | int) -> str:
    """Return a quantity as the server writes it: `1024Mi` is `1Gi`, `2000` is `2k`, `8589934592` stays.

    Raises:
        InvalidRequest: it is none.
    """
    text = str(amount)
    value = parse_quantity(text)
    base, units = (1024, _BINARY) if text.endswith("i") and value >= 1024 else (1000, _DECIMAL)
    power = 0
    while value and value % base == 0 and power + 1 < len(units):
        value, power = value // base, power + 1
    return f"{value}{units[power]}"


def canonical_device(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device of a slice with every amount as the server writes it."""
    found = dict(device)
    if "capacity" in device:
        found["capacity"] = {name: _amounts(one) for name, one in device["capacity"].items()}
    if "consumesCounters" in device:
        found["consumesCounters"] = [canonical_counters(one) for one in device["consumesCounters"]]
    return found


def canonical_counters(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return a set of counters, or what a device consumes of one, with amounts as the server writes them."""
    return {**holder, "counters": {name: _amounts(one) for name, one in (holder.get("counters") or {}).items()}}


def _amounts(found: Any) -> Any:
    if not isinstance(found, Mapping):
        return found
    known: dict[str, Any] = {}
    for key, value in found.items():
        if key in _AMOUNTS:
            known[key] = canonical(value)
        elif key == "validValues":
            known[key] = [canonical(one) for one in value]
        else:
            known[key] = _amounts(value) if key in _HOLDERS else value
    return known
