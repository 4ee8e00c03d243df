"""How kubelet picks device ids for a container (its device manager, about release 1.35).

Owns: reuse, NUMA alignment in its simple form, the preferred-allocation calls, and the random fill.
Refuses: the ledger and Allocate itself. The owner seeds the random source, so that a failing run can be repeated.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random


class AdmissionError(Exception):
    """The pod is rejected for good, with kubelet's own sentence (reason UnexpectedAdmissionError)."""


Prefer = Callable[[Collection[str], Collection[str], int], Awaitable[Collection[str]]]
"""Ask the plugin: available ids (must-include among them), must-include ids, total wanted."""


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """The devices of one resource as kubelet sees them: NUMA nodes by id (empty: none), healthy ones apart."""

    healthy: Mapping[str, frozenset[int]] = field(default_factory=dict)
    unhealthy: Mapping[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Want:
    """What one container wants of one resource.

    Attributes:
        resource: its name.
        required: units in total.
        held: what the container has already.
        reusable: what the pod's init containers leave to it.
        in_use: what any container holds.
        numa: the nodes that the topology manager settled on, or None without a hint.
    """

    resource: str
    required: int
    held: frozenset[str]
    reusable: frozenset[str]
    in_use: frozenset[str]
    numa: frozenset[int] | None = None


async def pick(want: Want, table: DeviceTable | None, prefer: Prefer | None, random: Random) -> frozenset[str]:
    """Choose the ids to allocate.

    Args:
        want: what is wanted.
        table: the resource's devices; None when kubelet knows the resource but nobody has registered it.
        prefer: the plugin's GetPreferredAllocation if it offers that.
        random: order of everything that kubelet leaves to chance.

    Returns:
        The ids for Allocate; empty when the container holds enough already.

    Raises:
        AdmissionError: with kubelet's text.
    """
    needed = want.required - len(want.held)
    if want.held and needed != 0:
        raise AdmissionError(f"container changed request for resource {want.resource!r}")
    table = _refuse_unhealthy(want, table)
    if needed == 0:
        return frozenset()
    taken = set(_sample(want.reusable & table.healthy.keys(), needed, random))
    needed -= len(taken)
    if needed == 0:
        return frozenset(taken)
    available = set(table.healthy) - want.in_use - taken
    if len(available) < needed:
        raise AdmissionError(
            f"requested number of devices unavailable for {want.resource}. "
            f"Requested: {needed}, Available: {len(available)}"
        )
    return await _fill(want, table, taken, available, prefer, random)


def _refuse_unhealthy(want: Want, table: DeviceTable | None) -> DeviceTable:
    if table is None:
        raise AdmissionError(f"cannot allocate unregistered device {want.resource}")
    if not table.healthy:
        raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {want.resource}")
    if want.held - table.healthy.keys():
        raise AdmissionError(
            f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {want.resource}"
        )
    return table


async def _fill(
    want: Want, table: DeviceTable, taken: set[str], available: set[str], prefer: Prefer | None, random: Random
) -> frozenset[str]:
    """Fill up `taken` from the aligned ids, then the plugin's choice, then at random."""

    def left() -> int:
        return want.required - len(taken)

    aligned, unaligned, free = _split(table, available, want.numa)
    if left() < len(aligned):
        if prefer is not None:
            preferred = await prefer(aligned | taken, frozenset(taken), want.required)
            taken.update(_sample(set(preferred) & aligned, left(), random))
        taken.update(_sample(aligned - taken, left(), random))
        return frozenset(taken)
    taken.update(aligned)
    if left() and prefer is not None:
        preferred = await prefer(available | taken, frozenset(taken), want.required)
        taken.update(_sample((set(preferred) & available) - taken, left(), random))
    for rest in (unaligned, free):
        taken.update(_sample(rest - taken, left(), random))
    return frozenset(taken)


def _split(table: DeviceTable, available: set[str], numa: frozenset[int] | None) -> tuple[set[str], set[str], set[str]]:
    """Split into aligned, unaligned and without affinity; without a hint or any topology all are the last."""
    if numa is None or not any(table.healthy.values()):
        return set(), set(), available
    aligned = {name for name in available if table.healthy[name] & numa}
    free = {name for name in available if not table.healthy[name]}
    return aligned, available - aligned - free, free


def _sample(names: Collection[str], count: int, random: Random) -> list[str]:
    return random.sample(sorted(names), min(count, len(names)))
