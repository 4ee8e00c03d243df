"""Which cards an entry of the configuration sells, now.

Owns: the share-out of the cards to the entries, and what is said about a card that two entries choose or none.
Refuses: ids and units (a sharing makes those), and health (it is told).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodeplug import InvalidRequest
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Exclusive, Memory, Mig, Replicas, sells_instances

Entry = Exclusive | Replicas | Memory | Mig


@dataclass(frozen=True, slots=True)
class Offer:
    """One card, as one entry sells it.

    Attributes:
        card: as the driver showed it last.
        reason: why it is not healthy; empty when it is.
    """

    card: Card
    reason: str = ""

    @property
    def healthy(self) -> bool:
        """Whether a container may get it."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class Stock:
    """What one entry sells, in NVML's order; cards that are gone and may still be held come last."""

    offers: tuple[Offer, ...] = ()

    def of(self, uuid: Uuid) -> Offer | None:
        """Return the offer of a card."""
        return next((offer for offer in self.offers if offer.card.uuid == uuid), None)


def chooses(entry: Entry, card: Card) -> bool:
    """Whether an entry sells a card: its `cards` match, and MIG mode is what the entry is for."""
    whole = not sells_instances(entry) and (not card.mig or isinstance(entry, Mig))
    return (whole or (sells_instances(entry) and card.mig)) and entry.cards.choose(card)


def share_out(entries: Sequence[Entry], cards: Iterable[Card]) -> Mapping[str, tuple[Card, ...]]:
    """Return the cards of each entry, by its resource name.

    Raises:
        InvalidRequest: two entries choose one card; the message names the card and both.
    """
    shares: dict[str, list[Card]] = {entry.resource: [] for entry in entries}
    for card in cards:
        choosers = [entry for entry in entries if chooses(entry, card)]
        if len(choosers) > 1:
            names = " and ".join(entry.resource for entry in choosers)
            raise InvalidRequest(
                f"{names} would both sell {card.uuid} (index {card.index}, {card.model}, {card.pci}); "
                "give each its own `cards`"
            )
        for entry in choosers:
            shares[entry.resource].append(card)
    return {name: tuple(chosen) for name, chosen in shares.items()}
