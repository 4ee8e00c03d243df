"""Free units that are withheld from kubelet, so that their sum promises nothing that no card has.

Owns: when that is due, and which units those are.
Refuses: units that a container holds, or may hold: those stay as they are. And to refuse a container for it: which card
has enough is known when kubelet asks.

The scheduler sees one number for a node, and a pod that fits it and no card is rejected for good: its controller makes
the next one at once. With the free units of one card alone, the next one waits.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeplug import DeviceId
from nodeplug_gpu.config import Withhold
from nodeplug_gpu.ids import CardKey

REASON: Final = "fragmented: it is free, and so are units of another card; no container gets both"
_SIZES: Final = 64
"""Sizes that are remembered, the smallest ones."""


@dataclass(slots=True)
class Withholding:
    """What is withheld of one resource. Any thread may call `refused`; its owner serialises `choose`.

    Attributes:
        when: as the configuration says.
        active: units are withheld now.
    """

    when: Withhold
    active: bool = False
    _refused: frozenset[int] = field(default_factory=frozenset)

    def refused(self, units: int) -> None:
        """Note that a container did not get so many units, since no card has as many."""
        self._refused = frozenset(sorted(self._refused | {units})[:_SIZES])

    def choose(self, free: Mapping[CardKey, Sequence[DeviceId]]) -> Collection[DeviceId]:
        """Return what is withheld, by what each card has free.

        All but the units of the card that has most of them; `after-refusal` as long as a size that was refused fits
        what is free together, and no card.
        """
        counts = {card: len(units) for card, units in free.items()}
        largest = max(counts, key=lambda card: (counts[card], card), default=None)
        if largest is None:
            return ()
        most, together = counts[largest], sum(counts.values())
        self._refused = frozenset(size for size in self._refused if size > most)
        due = self.when == "always" or (
            self.when == "after-refusal" and any(size <= together for size in self._refused)
        )
        self.active = due and together > most
        if not self.active:
            return ()
        return frozenset(unit for card, units in free.items() if card != largest for unit in units)
