"""Cards that were sold, for as long as somebody may hold them.

Owns: a record per sold card that outlives the daemon, so that the units of a card that is gone stay listed as
unhealthy (kubelet shows a device that is no longer listed as healthy), and the size of a unit while units are held.
Refuses: to decide when a card may be forgotten.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from nodeplug import Journal, PluginError
from nodeplug_gpu.cards import Card, MigInstance, Uuid

_CARD: Final = "card"
_UNIT: Final = "unit"


@dataclass(frozen=True, slots=True)
class Sold:
    """A card and the resource that sold it."""

    card: Card
    resource: str


@dataclass(slots=True)
class KnownCards:
    """The records. Not safe for threads: its owner serialises."""

    journal: Journal
    sold: dict[Uuid, Sold] = field(default_factory=dict)
    _units: dict[str, int] = field(default_factory=dict)

    def load(self) -> None:
        """Read what a predecessor wrote; a record that cannot be understood is dropped."""
        for entry in self.journal.entries():
            try:
                if entry.phase == _CARD:
                    one = Sold(_card(entry.data["card"]), str(entry.data["resource"]))
                    self.sold[one.card.uuid] = one
                elif entry.phase == _UNIT:
                    self._units[str(entry.data["resource"])] = int(entry.data["bytes"])
            except (KeyError, TypeError, ValueError):
                self.journal.remove(entry.key)

    def remember(self, shares: Mapping[str, Iterable[Card]]) -> None:
        """Write the cards that are new or have changed.

        Raises:
            PluginError: the disk takes nothing; the cards are known all the same until the daemon ends.
        """
        failed: PluginError | None = None
        for resource, cards in shares.items():
            for card in cards:
                one = Sold(card, resource)
                if self.sold.get(card.uuid) == one:
                    continue
                self.sold[card.uuid] = one
                try:
                    self.journal.write(
                        f"card {card.uuid}", phase=_CARD, data={"card": asdict(card), "resource": resource}
                    )
                except PluginError as error:
                    failed = error
        if failed is not None:
            raise failed

    def forget(self, uuid: Uuid) -> None:
        """Drop a card."""
        if self.sold.pop(uuid, None) is not None:
            self.journal.remove(f"card {uuid}")

    def unit(self, resource: str) -> int | None:
        """Return the size of a unit that was last used."""
        return self._units.get(resource)

    def keep_unit(self, resource: str, size: int) -> None:
        """Write the size of a unit.

        Raises:
            PluginError: the disk takes nothing.
        """
        if self._units.get(resource) != size:
            self._units[resource] = size
            self.journal.write(f"unit {resource}", phase=_UNIT, data={"resource": resource, "bytes": size})


def _card(data: Mapping[str, Any]) -> Card:
    instances = tuple(MigInstance(**one) for one in data["instances"])
    major, minor = data["compute_capability"]
    return Card(**{**data, "instances": instances, "compute_capability": (int(major), int(minor))})
