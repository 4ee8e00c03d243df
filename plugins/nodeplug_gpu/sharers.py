"""Containers that share an allocation: those that use one claim have the same ids, and together no more than these.

Owns: who shares with whom on a card, and what they have together.
Refuses: to say whose part is whose: the claim does not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodeplug_gpu.allocations import Allocation, each_once
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.holders import Container


@dataclass(frozen=True, slots=True)
class Sharers:
    """Containers that share what they have of a card.

    Attributes:
        containers: two at least.
        allocated_bytes: of all of them, each byte once.
    """

    containers: frozenset[Container]
    allocated_bytes: int


def sharers(allocations: Iterable[Allocation]) -> Mapping[tuple[Container, Uuid], Sharers]:
    """Return who shares, by container and card; whoever has its allocations for itself is left out."""
    groups: list[tuple[set[tuple[str, str]], list[Allocation]]] = []
    for one in allocations:
        ids: set[tuple[str, str]] = {(one.resource, name) for name in one.ids}
        members = [one]
        for other in [group for group in groups if group[0] & ids]:
            groups.remove(other)
            ids, members = ids | other[0], [*other[1], *members]
        groups.append((ids, members))
    found: dict[tuple[Container, Uuid], Sharers] = {}
    for _, members in groups:
        containers = frozenset(one.container for one in members)
        size = sum(one.allocated_bytes or 0 for one in each_once(members))
        if len(containers) > 1:
            found |= {(one.container, one.card): Sharers(containers, size) for one in members}
    return found
