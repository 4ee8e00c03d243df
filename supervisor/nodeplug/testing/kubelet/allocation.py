"""How kubelet picks device ids for a container (its device manager, about release 1.35, and 1.20).

Owns: kubelet's checks and their messages, reuse, NUMA alignment, the preferred-allocation calls, the random fill.
Refuses: the ledger and Allocate itself. The owner seeds the random source, so that a failing run can be repeated.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
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

    @property
    def aligned(self) -> bool:
        """Whether any device, healthy or not, has a NUMA node (deviceHasTopologyAlignment)."""
        return any(self.healthy.values()) or any(self.unhealthy.values())


@dataclass(frozen=True, slots=True)
class Want:
    """What one container wants of one resource.

    Attributes:
        resource: its name.
        required: units in total.
        held: what the container already has.
        reusable: what the pod's init containers leave to it.
        in_use: what any container holds; ids are added as they are picked, and stay if the pick fails.
        numa: the nodes that the topology manager settled on, or None without a hint.
        owner: the container, as kubelet names it in a message.
        old_style: as kubelet 1.20, which has fewer checks.
        taken: the ids that are picked so far.
    """

    resource: str
    required: int
    held: AbstractSet[str]
    reusable: AbstractSet[str]
    in_use: set[str]
    numa: frozenset[int] | None = None
    owner: str = "container"
    old_style: bool = False
    taken: set[str] = field(default_factory=set)

    @property
    def left(self) -> int:
        """How many units are still to be picked."""
        return self.required - len(self.held) - len(self.taken)

    def take(self, names: Collection[str], random: Random) -> None:
        """Pick among `names` at random, as many as are left."""
        count = min(self.left, len(names))
        if count > 0:
            self.taken.update(random.sample(sorted(names), count))
            self.in_use.update(self.taken)


async def pick(want: Want, table: DeviceTable | None, prefer: Prefer | None, random: Random) -> frozenset[str]:
    """Choose the ids to allocate.

    Args:
        want: what is wanted.
        table: the resource's devices; None if kubelet knows the resource only from its pods.
        prefer: the plugin's GetPreferredAllocation if it offers that.
        random: order of everything that kubelet leaves to chance.

    Returns:
        The ids for Allocate; empty if the container already holds enough.

    Raises:
        AdmissionError: with kubelet's text.
    """
    if want.held and want.left != 0:
        raise AdmissionError(
            f'{want.owner} changed request for resource "{want.resource}" from {len(want.held)} to {want.required}'
        )
    known = _check_old(want, table) if want.old_style else _check(want, table)
    if want.left == 0:
        return frozenset()
    want.take(want.reusable, random)  # healthy or not
    if want.left == 0:
        return frozenset(want.taken)
    available = known.healthy.keys() - want.in_use
    if len(available) < want.left:
        raise AdmissionError(
            f"requested number of devices unavailable for {want.resource}. "
            f"Requested: {want.left}, Available: {len(available)}"
        )
    await _fill(want, known, available, prefer, random)
    if want.left:
        raise AdmissionError(
            "unexpectedly allocated less resources than required. "
            f"Requested: {want.required}, Got: {want.required - want.left}"
        )
    return frozenset(want.taken)


def _check(want: Want, table: DeviceTable | None) -> DeviceTable:
    if table is None:
        raise AdmissionError(f"cannot allocate unregistered device {want.resource}")
    if not table.healthy:
        raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {want.resource}")
    if want.held - table.healthy.keys():
        raise AdmissionError(
            f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {want.resource}"
        )
    return table


def _check_old(want: Want, table: DeviceTable | None) -> DeviceTable:
    """Kubelet 1.20 has no question when nothing is needed, and none about health."""
    if want.left and table is None:
        raise AdmissionError(f"can't allocate unregistered device {want.resource}")
    return table or DeviceTable()


async def _fill(want: Want, table: DeviceTable, available: set[str], prefer: Prefer | None, random: Random) -> None:
    """Fill up from the aligned ids, then the plugin's choice, then at random.

    During the call to the plugin, another container may take ids; these are dropped afterwards.
    """
    aligned, unaligned, free = _split(table, available, want.numa)
    if want.left < len(aligned):
        if prefer is not None:
            preferred = await prefer(aligned | want.taken, frozenset(want.taken), want.required)
            want.take((aligned & set(preferred)) - want.in_use, random)
        want.take(aligned - want.in_use, random)
        return
    want.take(aligned, random)
    if want.left and prefer is not None:
        preferred = await prefer(available | want.taken, frozenset(want.taken), want.required)
        want.take((available & set(preferred)) - want.in_use, random)
    for rest in (unaligned, free):
        want.take(rest - want.in_use, random)


def _split(table: DeviceTable, available: set[str], numa: frozenset[int] | None) -> tuple[set[str], set[str], set[str]]:
    """Split into aligned, unaligned and without affinity; without a hint or any topology all are the last."""
    if numa is None or not table.aligned:
        return set(), set(), available
    aligned = {name for name in available if table.healthy[name] & numa}
    free = {name for name in available if not table.healthy[name]}
    return aligned, available - aligned - free, free
