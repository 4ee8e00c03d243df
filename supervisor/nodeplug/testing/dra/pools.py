"""The devices that a scheduler sees in slices.

Owns: which slices count: of this node, of the highest generation, and of pools that are complete; their order.
Refuses: which devices are in use.

Source: kubernetes 1.36, dynamic-resource-allocation/structured/internal/*/pools_*.go.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodeplug.fields import parse_quantity

Object = Mapping[str, Any]
Key = tuple[str, str, str]
"""Driver, pool and device."""


@dataclass(frozen=True)
class Candidate:
    """A device that might be allocated.

    Attributes:
        key: driver, pool and name.
        spec: as its slice has it.
        counters: all counters of the pool, by set and name.
    """

    key: Key
    spec: Object = field(compare=False)
    counters: Mapping[tuple[str, str], int] = field(compare=False, default_factory=dict)

    @property
    def driver(self) -> str:
        """Whose it is."""
        return self.key[0]

    @property
    def shared(self) -> bool:
        """Whether several claims may have parts of it."""
        return bool(self.spec.get("allowMultipleAllocations"))


@dataclass(frozen=True)
class Seen:
    """What is in the slices.

    Attributes:
        candidates: in the order in which a scheduler tries them.
        incomplete: pools that are ignored until all their slices are there, as `driver/pool: 1 of 2 slices`.
    """

    candidates: tuple[Candidate, ...]
    incomplete: tuple[str, ...]


def seen_in(slices: Iterable[Object], node: str) -> Seen:
    """Return the devices of a node; slices are tried by name, devices in the order of their slice."""
    pools: dict[tuple[str, str], list[Object]] = {}
    for one in sorted(slices, key=lambda found: str(found["metadata"]["name"])):
        spec = one["spec"]
        if spec.get("allNodes") or spec.get("nodeName") == node:
            pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
    candidates: list[Candidate] = []
    incomplete = []
    for (driver, pool), specs in pools.items():
        last = max(_generation(spec) for spec in specs)
        current = [spec for spec in specs if _generation(spec) == last]
        count = int(current[0]["pool"]["resourceSliceCount"])
        if len(current) == count:
            candidates += _candidates(driver, pool, current)
        else:
            incomplete.append(f"{driver}/{pool}: {len(current)} of {count} slices")
    return Seen(tuple(candidates), tuple(incomplete))


def _candidates(driver: str, pool: str, specs: list[Object]) -> Iterator[Candidate]:
    counters = {
        (str(known["name"]), name): parse_quantity(str(one["value"]))
        for spec in specs
        for known in spec.get("sharedCounters") or ()
        for name, one in known["counters"].items()
    }
    for spec in specs:
        for device in spec.get("devices") or ():
            yield Candidate((driver, pool, str(device["name"])), device, counters)


def _generation(spec: Object) -> int:
    return int(spec["pool"].get("generation") or 0)
