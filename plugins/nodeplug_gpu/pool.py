"""Which cards an entry of the configuration sells, now.

Owns: the share-out of the cards to the entries, and what is said about a card that two entries choose.
Refuses: ids and units (a sharing makes those), and health (it is told).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nodeplug import Device, DeviceId, NotFound, NotReady
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Exclusive, Memory, Mig, Replicas, sells_instances
from nodeplug_gpu.ids import card_key

Entry = Exclusive | Replicas | Memory | Mig


@dataclass(frozen=True, slots=True)
class Offer:
    """One card, as one entry sells it.

    Attributes:
        card: as the driver showed it last.
        reason: why it is not healthy; empty when it is.
        kept: ids that are listed as healthy all the same, so that containers which hold them may start again.
    """

    card: Card
    reason: str = ""
    kept: frozenset[DeviceId] = frozenset()

    @property
    def healthy(self) -> bool:
        """Whether a container may get it."""
        return not self.reason

    def device(self, name: DeviceId, numa_nodes: tuple[int, ...] = ()) -> Device:
        """Return a share or unit of the card, as kubelet is told of it."""
        reason = "" if name in self.kept else self.reason
        return Device(name, not reason, reason, numa_nodes)

    def usable(self) -> Card:
        """Return the card for a grant: kubelet may ask by a list that is older than what is known here.

        Raises:
            NotReady: it is not healthy.
        """
        if self.reason:
            raise NotReady(f"{self.card.uuid} cannot be granted: {self.reason}")
        return self.card


@dataclass(frozen=True, slots=True)
class Stock:
    """What one entry sells, in NVML's order; cards that are gone and may still be held come last."""

    offers: tuple[Offer, ...] = ()

    def of(self, uuid: Uuid) -> Offer:
        """Return the offer of a card.

        Raises:
            NotFound: there is no such card.
        """
        for offer in self.offers:
            if offer.card.uuid == uuid:
                return offer
        raise NotFound(f"{uuid} is not among the {len(self.offers)} cards that are sold here; it may have gone")


@dataclass(frozen=True, slots=True)
class Shares:
    """Who sells what.

    Attributes:
        cards: of each entry, by its main resource.
        faults: why a card is sold by nobody although entries choose it.
    """

    cards: Mapping[str, tuple[Card, ...]]
    faults: Mapping[Uuid, str] = field(default_factory=dict)

    def owner(self) -> Mapping[Uuid, str]:
        """Return the entry of each card."""
        return {card.uuid: name for name, cards in self.cards.items() for card in cards}


def suits(entry: Entry, card: Card) -> bool:
    """Whether a card's MIG mode is what an entry is for."""
    return card.mig if sells_instances(entry) else not card.mig or isinstance(entry, Mig)


def share_out(
    entries: Sequence[Entry], cards: Iterable[Card], owners: Mapping[Uuid, str] = MappingProxyType({})
) -> Shares:
    """Return the cards of each entry. A card that two entries choose is sold by none of them.

    Args:
        entries: of the configuration.
        cards: of the machine.
        owners: entries by card, from the look before: a card stays with its entry as long as its mode suits it. NVML's
            indexes move when a card falls off the bus, and what containers hold does not move with them.
    """
    shares: dict[str, list[Card]] = {entry.resource: [] for entry in entries}
    faults: dict[Uuid, str] = {}
    known: dict[str, Uuid] = {}
    for card in {card.uuid: card for card in cards}.values():
        other = known.setdefault(card_key(card.uuid), card.uuid)
        if other != card.uuid:
            faults[card.uuid] = f"{card.uuid} and {other} have the same digest; their units could not be told apart"
            continue
        fitting = [entry for entry in entries if suits(entry, card)]
        kept = [entry for entry in fitting if owners.get(card.uuid) == entry.resource]
        choosers = kept or [entry for entry in fitting if entry.cards.choose(card)]
        if len(choosers) > 1:
            names = " and ".join(entry.resource for entry in choosers)
            faults[card.uuid] = (
                f"{names} would both sell {card.uuid} (index {card.index}, {card.model}, {card.pci}); "
                "give each its own `cards`"
            )
            continue
        for entry in choosers:
            shares[entry.resource].append(card)
    return Shares({name: tuple(chosen) for name, chosen in shares.items()}, faults)
