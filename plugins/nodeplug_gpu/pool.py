"""Which cards an entry of the configuration advertises now.

Owns: the assignment of the cards to the entries, and what is said about a card that two entries choose.
Refuses: ids and units (a sharing makes those), and health (the tracker passes it in).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nodeplug import AttributeValue, Device, DeviceId, NotFound, NotReady, Part
from nodeplug_gpu.budget import ListedUnits
from nodeplug_gpu.cards import Card, CardPair, MigInstance, Uuid
from nodeplug_gpu.config import Mig, Resource, advertises_mig
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.withholding import REASON


@dataclass(frozen=True, slots=True)
class PoolMember:
    """One card, as one entry advertises it.

    Attributes:
        card: as the driver showed it last.
        reason: why it is not allocatable; empty when it is.
        withheld: ids that are listed as unhealthy though the card is not.
        still_held: ids that are listed as healthy all the same, so that containers which hold them may restart.
        listed: which units are advertised, where not all are.
        instance_reasons: why single MIG instances are not allocatable although the card is.
    """

    card: Card
    reason: str = ""
    still_held: frozenset[DeviceId] = frozenset()
    withheld: frozenset[DeviceId] = frozenset()
    instance_reasons: Mapping[Uuid, str] = field(default_factory=lambda: MappingProxyType({}))
    listed: ListedUnits | None = None

    @property
    def healthy(self) -> bool:
        """Whether a container may get it."""
        return not self.reason

    def device(
        self,
        name: DeviceId,
        part: Part,
        attributes: Mapping[str, AttributeValue],
        numa_nodes: tuple[int, ...] = (),
    ) -> Device:
        """Return a replica or unit of the card, as kubelet lists it.

        Args:
            name: its id.
            part: the same for all of them, as are:
            attributes: of the card.
            numa_nodes: of the card, where kubelet is to know.
        """
        reason = "" if name in self.still_held else self.reason
        withheld = not reason and name in self.withheld
        return Device(
            name,
            healthy=not (reason or withheld),
            reason=REASON if withheld else reason,
            numa_nodes=numa_nodes,
            attributes=attributes,
            part=part,
            withheld=withheld,
        )

    def reason_of(self, instance: MigInstance | None) -> str:
        """Return why a MIG instance is not allocatable: its card is not, or it alone; empty when it is."""
        return self.reason or (self.instance_reasons.get(instance.uuid, "") if instance is not None else "")

    def require_healthy(self, instance: MigInstance | None = None) -> Card:
        """Return the card for an allocation of it or an instance: kubelet's list may be older than what is known here.

        Raises:
            NotReady: it is not allocatable.
        """
        if self.reason:
            raise NotReady(f"{self.card.uuid} cannot be allocated: {self.reason}")
        if instance is not None and (reason := self.reason_of(instance)):
            raise NotReady(f"{instance.uuid} cannot be allocated: {reason}")
        return self.card


@dataclass(frozen=True, slots=True)
class Pool:
    """The cards that one entry advertises, in NVML's order; those that are gone and may still be held come last.

    Attributes:
        members: one for each card.
        undivided: cards that an entry for MIG instances chooses, that are not in MIG mode, and that no entry has.
        pairs: how the node's cards are connected.
        driver_version: of the kernel driver, as it was known last.
    """

    members: tuple[PoolMember, ...] = ()
    undivided: tuple[Uuid, ...] = ()
    pairs: tuple[CardPair, ...] = ()
    driver_version: str = ""

    def of(self, uuid: Uuid) -> PoolMember:
        """Return the member for a card.

        Raises:
            NotFound: there is no such card.
        """
        for member in self.members:
            if member.card.uuid == uuid:
                return member
        raise NotFound(f"{uuid} is not among the {len(self.members)} cards of this resource; it may have been removed")


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which entry advertises which cards.

    Attributes:
        cards: of each entry, by its main resource.
        conflicts: why a card is not advertised although entries choose it.
        undivided: of entries for MIG instances: cards that are not in MIG mode, and that no entry has.
    """

    cards: Mapping[str, tuple[Card, ...]]
    conflicts: Mapping[Uuid, str] = field(default_factory=dict)
    undivided: Mapping[str, tuple[Uuid, ...]] = field(default_factory=dict)

    def resource_by_card(self) -> Mapping[Uuid, str]:
        """Return the main resource of the entry that has each card."""
        return {card.uuid: name for name, cards in self.cards.items() for card in cards}


def fits_mig_mode(entry: Resource, card: Card) -> bool:
    """Whether a card's MIG mode is the one that an entry is for."""
    return card.mig if advertises_mig(entry) else not card.mig or isinstance(entry, Mig)


def assign_cards(
    entries: Sequence[Resource],
    cards: Iterable[Card],
    indexes: Mapping[Uuid, int | None],
    assigned: Mapping[Uuid, str] = MappingProxyType({}),
) -> Assignment:
    """Return the cards of each entry. A card that two entries choose is advertised by neither.

    Args:
        entries: of the configuration.
        cards: of the machine.
        indexes: by which the cards are chosen (see `indexes`), not always NVML's.
        assigned: resources by card, from the last assignment: a card stays with its entry as long as its MIG mode
            fits. NVML's indexes move when a card falls off the bus, and what containers hold does not move with them.
    """
    chosen: dict[str, list[Card]] = {entry.resource: [] for entry in entries}
    conflicts: dict[Uuid, str] = {}
    undivided: dict[str, tuple[Uuid, ...]] = {}
    keys: dict[str, Uuid] = {}
    for card in {card.uuid: card for card in cards}.values():
        other = keys.setdefault(card_key(card.uuid), card.uuid)
        if other != card.uuid:
            conflicts[card.uuid] = (
                f"{card.uuid} and {other} have the same digest; their units could not be distinguished"
            )
            continue
        fitting = [entry for entry in entries if fits_mig_mode(entry, card)]
        former = [entry for entry in fitting if assigned.get(card.uuid) == entry.resource]
        candidates = former or [entry for entry in fitting if entry.cards.choose(card, indexes[card.uuid])]
        if len(candidates) > 1:
            names = " and ".join(entry.resource for entry in candidates)
            conflicts[card.uuid] = (
                f"{names} would both advertise {card.uuid} (index {card.index}, {card.model}, {card.pci}); "
                "give each its own `cards`"
            )
            continue
        for entry in candidates:
            chosen[entry.resource].append(card)
        for entry in () if candidates else entries:
            if advertises_mig(entry) and not card.mig and entry.cards.choose(card, indexes[card.uuid]):
                undivided[entry.resource] = (*undivided.get(entry.resource, ()), card.uuid)
    return Assignment({name: tuple(cards) for name, cards in chosen.items()}, conflicts, undivided)
