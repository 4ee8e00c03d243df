"""What of which device is allocated.

Owns: devices that are in use as a whole, amounts of those that are shared, and counters that both consume.
Refuses: which device to take: that is for the search (`allocation`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nodeplug.fields import parse_quantity, show_quantity
from nodeplug.testing.dra.capacity import consumed, fits_whole
from nodeplug.testing.dra.gates import results_of
from nodeplug.testing.dra.pools import Candidate, Key

Amounts = Mapping[str, int]


@dataclass(frozen=True)
class Accounts:
    """All allocations; a value, so that a search may go back.

    Attributes:
        whole: devices that are in use as a whole.
        parts: how much of shared devices is in use, by capacity.
    """

    whole: frozenset[Key]
    parts: Mapping[Key, Amounts]

    @classmethod
    def of(cls, claims: Iterable[Mapping[str, Any]]) -> "Accounts":
        """Add up what claims have; those for observation consume nothing."""
        found = cls(frozenset(), {})
        for claim in claims:
            for result in results_of(claim):
                key = (str(result["driver"]), str(result["pool"]), str(result["device"]))
                if result.get("adminAccess"):
                    continue
                if "shareID" in result:
                    amounts = {name: parse_quantity(one) for name, one in result.get("consumedCapacity", {}).items()}
                    found = found.plus(key, amounts)
                else:
                    found = found.plus(key, None)
        return found

    def plus(self, key: Key, amounts: Amounts | None) -> "Accounts":
        """Return these and one more allocation: some of a device, or with None the whole."""
        if amounts is None:
            return replace(self, whole=self.whole | {key})
        before = self.parts.get(key, {})
        return replace(self, parts={**self.parts, key: {k: before.get(k, 0) + v for k, v in amounts.items()}})

    def refusal(self, device: Candidate, asked: Mapping[str, str], others: Iterable[Candidate]) -> str:
        """Return why a device cannot serve a request at present; empty if it can.

        Args:
            device: which.
            asked: amounts by capacity.
            others: all devices, for those that consume the same counters.
        """
        if device.key in self.whole:
            return "is in use"
        if not device.shared:
            why = "is in use" if device.key in self.parts else ""
            why = why or ("" if fits_whole(device.spec, asked) else "is too small")
        else:
            why = self._too_much(device, asked)
        return why or self._counters(device, others)

    def _too_much(self, device: Candidate, asked: Mapping[str, str]) -> str:
        amounts = consumed(device.spec, asked)
        if amounts is None:
            return "does not have such an amount"
        used = self.parts.get(device.key, {})
        for name, amount in amounts.items():
            left = parse_quantity(str(device.spec["capacity"][name]["value"])) - used.get(name, 0)
            if amount > left:
                return f"has {show_quantity(max(left, 0))} of {name} left, and {show_quantity(amount)} are wanted"
        return ""

    def _counters(self, device: Candidate, others: Iterable[Candidate]) -> str:
        if device.key in self.parts or not device.spec.get("consumesCounters"):
            return ""  # whoever has the first part of a shared device has consumed its counters
        used: dict[tuple[str, str], int] = {}
        for other in others:
            if other.key[:2] == device.key[:2] and (other.key in self.whole or other.key in self.parts):
                for counter, amount in _consumes(other).items():
                    used[counter] = used.get(counter, 0) + amount
        for counter, amount in _consumes(device).items():
            if used.get(counter, 0) + amount > device.counters.get(counter, 0):
                return f"lacks {'/'.join(counter)}: others have it"
        return ""


def _consumes(device: Candidate) -> dict[tuple[str, str], int]:
    return {
        (str(known["counterSet"]), name): parse_quantity(str(one["value"]))
        for known in device.spec.get("consumesCounters") or ()
        for name, one in known["counters"].items()
    }
