"""Which units are advertised where not all of them fit into one list.

That happens while units are held: then their size stays, and a card that comes, or a smaller `reserve`, makes more.

Owns: the choice, as a pure function, and which units count as held for it. All that are held are advertised: kubelet
treats a held one that is missing as healthy. Of the others each card has its share, by its size: those with the lowest
numbers, so that the list stays the same while pods come and go.
Refuses: the size of a unit.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from nodeplug import DeviceId
from nodeplug_gpu.cards import Uuid


@dataclass(frozen=True, slots=True)
class ListedUnits:
    """The units of a card that are advertised.

    Attributes:
        below: all whose number is less than this.
        more: numbers of others, which are held.
    """

    below: int
    more: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return how many they are."""
        return self.below + len(self.more)

    def numbers(self) -> Iterable[int]:
        """Yield their numbers."""
        yield from range(self.below)
        yield from self.more


@dataclass(slots=True)
class LatelyHeld:
    """Ids of one resource that are held, or were a moment ago: kubelet tells late, and nothing after its own start.

    Attributes:
        grace: seconds for which an id counts as held after it was told last.
        known: kubelet has told once.
    """

    grace: float
    known: bool = False
    _told: dict[DeviceId, float] = field(default_factory=dict)

    def note(self, held: Iterable[DeviceId], now: float, *, unknown: bool) -> None:
        """Note what is held now; while kubelet tells nothing, what was held still is."""
        self._told.update(dict.fromkeys(held, now))
        if not unknown:
            self.known = True
            self._told = {name: told for name, told in self._told.items() if now - told <= self.grace}

    def ids(self) -> AbstractSet[DeviceId]:
        """Return them."""
        return self._told.keys()


def share_out(units: Mapping[Uuid, int], held: Mapping[Uuid, Collection[int]], most: int) -> Mapping[Uuid, ListedUnits]:
    """Return which units of each card are advertised; the whole is the largest share by size that fits.

    Args:
        units: how many each card has.
        held: the numbers of those that are held, all of them less than the card's `units`.
        most: how many fit.
    """
    total = sum(units.values())
    ordered = {uuid: sorted(held.get(uuid, ())) for uuid in units}
    low, high = 0, max(most, 0)
    while low < high:
        middle = (low + high + 1) // 2
        below = {uuid: count * middle // total for uuid, count in units.items()}
        if sum(below.values()) + sum(len(_from(ordered[uuid], number)) for uuid, number in below.items()) <= most:
            low = middle
        else:
            high = middle - 1
    shares = {uuid: count * low // total if total else 0 for uuid, count in units.items()}
    return {uuid: ListedUnits(below, tuple(_from(ordered[uuid], below))) for uuid, below in shares.items()}


def _from(ordered: Sequence[int], number: int) -> Sequence[int]:
    return ordered[bisect_left(ordered, number) :]
