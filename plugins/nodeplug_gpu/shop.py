"""What the node sells: every entry of the configuration, its cards, and how they are.

Owns: the one place where looks at the hardware, health, what kubelet tells and the configuration come together: an
immutable `Inventory` that everything else reads.
Refuses: threads and timing (the plugin has those); hardware (a driver shows it).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeplug import Host, InvalidRequest, NotReady, PluginError, ResourceName
from nodeplug_gpu import ledger
from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.cards import Card, GpuEvent, Uuid, View
from nodeplug_gpu.config import Exclusive, GpuConfig, Memory, Mig, Replicas, names_of
from nodeplug_gpu.health import Condition, Triage
from nodeplug_gpu.ids import keys
from nodeplug_gpu.known import KnownCards
from nodeplug_gpu.sharing import Sharing
from nodeplug_gpu.sharing.exclusive import ExclusiveSharing
from nodeplug_gpu.sharing.memory import MemorySharing, unit_for
from nodeplug_gpu.sharing.mig import MigInstances
from nodeplug_gpu.sharing.replicas import TimeSlicing
from nodeplug_gpu.stock import Entry, Offer, Stock, share_out

LOST_GRACE: Final = 60.0
"""Seconds for which a card that is gone stays listed although nobody seems to hold it: kubelet tells holders late."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything that is known at one moment.

    Attributes:
        view: the driver's last look.
        stocks: by the entry's main resource.
        conditions: by card.
        uses: who holds what, of all entries.
        unknown: why it is not known who holds what; empty when it is.
        fault: why nothing is sold, such as two entries that choose one card; empty when all is well.
    """

    view: View = field(default_factory=View)
    stocks: Mapping[str, Stock] = field(default_factory=dict)
    conditions: Mapping[Uuid, Condition] = field(default_factory=dict)
    uses: tuple[ledger.Use, ...] = ()
    unknown: str = ""
    fault: str = ""

    def stocks_of(self, resource: str) -> Sequence[Offer]:
        """Return the offers of an entry, by its main resource."""
        return self.stocks.get(resource, Stock()).offers


@dataclass(slots=True)
class Shop:
    """Builds inventories. Not safe for threads: its owner serialises `look`; `inventory` may be read by any.

    Attributes:
        obstacle: why a healthy card cannot be offered yet all the same, such as an MPS daemon that does not run.
    """

    config: GpuConfig
    host: Host
    paths: NodePaths
    obstacle: Callable[[Entry, Uuid], str] = lambda _entry, _uuid: ""
    clock: Callable[[], float] = time.monotonic
    inventory: Inventory = field(default_factory=Inventory)
    sharings: dict[str, Sharing] = field(default_factory=dict)
    _triage: Triage = field(init=False)
    _known: KnownCards = field(init=False)
    _lost_since: dict[Uuid, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._triage = Triage(self.config.health)
        self._known = KnownCards(self.host.journal)

    def open(self) -> None:
        """Read what a predecessor sold."""
        self._known.load()

    def entry_of(self, resource: str) -> Entry:
        """Return the entry that offers a name; the plugin claims no other."""
        return next(entry for entry in self.config.resources if resource in names_of(entry))

    def look(self, view: View, events: Sequence[GpuEvent] = ()) -> Inventory:
        """Take in a look at the hardware and what kubelet tells by now."""
        now = self.clock()
        self._triage.observe(view, events, now)
        fault = ""
        try:
            keys([*(card.uuid for card in view.cards), *self._known.sold])
            shares = share_out(self.config.resources, view.cards)
        except InvalidRequest as error:
            shares, fault = {entry.resource: () for entry in self.config.resources}, error.message
        self._remember(shares)
        self._settle_units(shares)
        stocks = self._stocks(shares, view)
        uses, unknown = self._uses(stocks)
        self._forget_lost(stocks, view, uses, unknown, now)
        conditions = {
            offer.card.uuid: self._triage.condition(offer.card.uuid)
            for stock in stocks.values()
            for offer in stock.offers
        }
        self.inventory = Inventory(view, stocks, conditions, uses, unknown, fault)
        return self.inventory

    def _remember(self, shares: Mapping[str, Sequence[Card]]) -> None:
        try:
            self._known.remember(shares)
        except PluginError as error:
            self.host.log.warning("a card that vanishes during a restart would not be listed any more: %s", error)

    def _settle_units(self, shares: Mapping[str, Sequence[Card]]) -> None:
        """Make the sharing of each entry, once its unit is known."""
        for entry in self.config.resources:
            if entry.resource in self.sharings:
                continue
            if isinstance(entry, Memory):
                sold = [one.card for one in self._known.sold.values() if one.resource == entry.resource]
                if cards := [*shares[entry.resource], *sold]:
                    self.sharings[entry.resource] = self._memory(entry, cards)
            else:
                self.sharings[entry.resource] = _sharing(entry, self.paths)

    def _memory(self, entry: Memory, cards: Sequence[Card]) -> MemorySharing:
        """Choose the unit; where units may be held, the last one stays: an id must not change its size."""
        wanted = unit_for(entry, max(card.memory for card in cards))
        before = self._known.unit(entry.resource)
        unit = before if before is not None and before != wanted and self._may_be_held(entry.resource) else wanted
        if unit != entry.unit:
            why = (
                "units of that size are held" if unit != wanted else f"{entry.max_units_per_card} are the most per card"
            )
            self.host.log.warning(
                "%s: a unit is %d MiB, not %d MiB: %s", entry.resource, unit >> 20, entry.unit >> 20, why
            )
        try:
            self._known.keep_unit(entry.resource, unit)
        except PluginError as error:
            self.host.log.warning("the size of a unit of %s cannot be kept: %s", entry.resource, error)
        return MemorySharing(entry, self.paths, unit)

    def _may_be_held(self, resource: str) -> bool:
        try:
            return bool(self.host.holders(resource))
        except NotReady:
            return True

    def _stocks(self, shares: Mapping[str, Sequence[Card]], view: View) -> dict[str, Stock]:
        present = {card.uuid for card in view.cards} if view.state != "absent" else set()
        stocks = {}
        for entry in self.config.resources:
            here = [card for card in shares[entry.resource] if card.uuid in present]
            gone = [
                one.card
                for one in self._known.sold.values()
                if one.resource == entry.resource and one.card.uuid not in present
            ]
            offers = [Offer(card, self._reason(card) or self.obstacle(entry, card.uuid)) for card in here]
            offers += [Offer(card, self._reason(card) or "it was there and is gone") for card in gone]
            stocks[entry.resource] = Stock(tuple(offers))
        return stocks

    def _reason(self, card: Card) -> str:
        condition = self._triage.condition(card.uuid)
        return "" if condition.offered else (condition.reason or condition.state)

    def _uses(self, stocks: Mapping[str, Stock]) -> tuple[tuple[ledger.Use, ...], str]:
        found: list[ledger.Use] = []
        for name, sharing in self.sharings.items():
            for resource in names_of(self.entry_of(name)):
                try:
                    found += ledger.uses(self.host.holders(ResourceName(resource)), sharing, stocks[name])
                except NotReady as error:
                    return (), error.message
        return tuple(found), ""

    def _forget_lost(
        self, stocks: Mapping[str, Stock], view: View, uses: Sequence[ledger.Use], unknown: str, now: float
    ) -> None:
        present = {card.uuid for card in view.cards} if view.state == "running" else set()
        lost = {offer.card.uuid for stock in stocks.values() for offer in stock.offers} - present
        self._lost_since = {uuid: self._lost_since.get(uuid, now) for uuid in lost}
        held = {use.card for use in uses}
        for uuid, since in self._lost_since.items():
            if not unknown and uuid not in held and now - since > LOST_GRACE and view.state in {"running", "absent"}:
                self._known.forget(uuid)
                self._triage.forget(uuid)


def _sharing(entry: Exclusive | Replicas | Mig, paths: NodePaths) -> Sharing:
    match entry:
        case Replicas():
            return TimeSlicing(entry, paths)
        case Mig(strategy="single" | "mixed"):
            return MigInstances(entry, paths)
        case _:
            return ExclusiveSharing(entry, paths)
