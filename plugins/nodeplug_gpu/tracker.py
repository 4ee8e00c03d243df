"""What the node sells: every entry of the configuration, its cards, and how they are.

Owns: the one place where looks at the hardware, health, what kubelet tells and the configuration come together: the
`Inventory` that everything else reads is made here.
Refuses: threads and timing (the plugin has those); hardware (a driver shows it).

No card is sold twice. Within one section `assign_cards` sees to that, between sections the book of `sections` does. Across
configurations, MIG switches and restarts the records of what was sold do: a card that containers still hold in a former
way is listed as unhealthy in its new one until they are gone.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodeplug import DeviceId, Host, NotFound, PluginError, ResourceName
from nodeplug_gpu import held, ledger
from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.allocations import AllocationRecord, AllocationRecords
from nodeplug_gpu.cards import Card, GpuEvent, Snapshot, Uuid
from nodeplug_gpu.config import GpuConfig, Kind, Memory, Mig, Replicas, resource_names
from nodeplug_gpu.grants import PendingGrants
from nodeplug_gpu.health import HealthMonitor
from nodeplug_gpu.inventory import GONE, Inventory
from nodeplug_gpu.leases import LEASES, Lease, LeaseHolder
from nodeplug_gpu.limits import excess_replicas, limits_of
from nodeplug_gpu.pool import Assignment, Entry, Pool, PoolMember, assign_cards
from nodeplug_gpu.sharing import Sharing
from nodeplug_gpu.sharing.exclusive import ExclusiveSharing
from nodeplug_gpu.sharing.memory import MemorySharing, unit_for
from nodeplug_gpu.sharing.mig import MigInstances
from nodeplug_gpu.sharing.replicas import TimeSlicing

GRACE_PERIOD: Final = 60.0
"""Seconds for which nobody must have held something before that is believed: kubelet tells holders late, and for a
while after its own start it knows none."""
_TELLING: Final = frozenset({"running", "absent"})
"""States of the driver in which a card that is not shown is not there."""
_Names = tuple[str, ...]


@dataclass(slots=True)
class InventoryTracker:
    """Builds inventories. Not safe for threads: its owner serialises `look`; all else may be called by any.

    Attributes:
        not_ready_reason: why a healthy card cannot be offered yet all the same, such as an MPS daemon that does not run.
        grants: what was granted and kubelet has not told of yet.
    """

    config: GpuConfig
    host: Host
    paths: NodePaths
    not_ready_reason: Callable[[Entry, Uuid], str] = lambda _entry, _uuid: ""
    clock: Callable[[], float] = time.monotonic
    inventory: Inventory = field(default_factory=Inventory)
    grants: PendingGrants = field(default_factory=PendingGrants)
    _health: HealthMonitor = field(init=False)
    _records: AllocationRecords = field(init=False)
    _owners: Mapping[Uuid, str] = field(default_factory=dict)
    _sharings: dict[str, Sharing] = field(default_factory=dict)
    _unheld: dict[object, float] = field(default_factory=dict)
    _lease: LeaseHolder = field(init=False)
    _elsewhere: Mapping[Uuid, Lease] = field(default_factory=dict)
    _reserved: Mapping[Uuid, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._health = HealthMonitor(self.config.health)
        self._records = AllocationRecords(self.host)
        self._lease = LEASES.holder(self.host.run_dir.parent, self.host.plugin)

    def reserve(self) -> None:
        """Take what a predecessor sold before any section starts, so that no other sells it."""
        with suppress(PluginError, OSError):  # such as for somebody who only looks at a configuration
            self._records.load(mend=False)
        self._acquire(Assignment({}), self.clock())

    def load(self) -> None:
        """Read what a predecessor sold."""
        self._records.load()
        self._acquire(Assignment({}), self.clock())

    def release(self) -> None:
        """Leave the cards to other sections, a while later."""
        self._lease.release(self.clock())

    @property
    def has_records(self) -> bool:
        """Whether cards were sold already, here or by a predecessor."""
        return bool(self._records.by_key)

    @property
    def sharings(self) -> Mapping[str, Sharing]:
        """How each entry sells now."""
        return self.inventory.sharings

    def entry_of(self, resource: str) -> Entry:
        """Return the entry that advertises a name; the plugin claims no other."""
        return next(entry for entry in self.config.resources if resource in resource_names(entry))

    def record_grant(self, resource: str, ids: Sequence[DeviceId] = ()) -> None:
        """Note that a container got something: kubelet will tell, but not yet."""
        name = self.entry_of(resource).resource
        self._unheld[name] = self.clock()
        sharing, pool = self.inventory.sharings.get(name), self.inventory.pools.get(name, Pool())
        cards = sharing.by_card(ids, pool) if sharing is not None else {}
        owners = {one: card for card, mine in cards.items() for one in mine}
        self.grants.add(resource, {one: owners.get(one) for one in ids}, self.clock())

    def update(self, snapshot: Snapshot, events: Sequence[GpuEvent] = ()) -> Inventory:
        """Take in a look at the hardware and what kubelet tells by now."""
        now = self.clock()
        self._health.observe(snapshot, events, now)
        cards = snapshot.cards if snapshot.state != "absent" else ()
        assignment, section_conflicts = self._acquire(assign_cards(self.config.resources, cards, self._owners), now)
        self._owners = {**self._owners, **assignment.resource_by_card()}
        terms = {entry.resource: limits_of(entry) for entry in self.config.resources}
        self._records.remember(
            AllocationRecord(card, name, self._kinds[name], terms=terms[name])
            for name, cards in assignment.cards.items()
            for card in cards
        )
        told = held.ask(self.host, self._names(), self._records.by_key.values())
        if not told.unknown:
            self.grants.settle(told.holdings, now)
        self._forget(assignment, snapshot, told, now)
        self._settle_units(assignment, told, now)
        former = self._held_back(assignment, told)
        pools = self._pools(assignment, snapshot, former, told)
        sold = [member.card.uuid for pool in pools.values() for member in pool.members]
        self.inventory = Inventory(
            snapshot,
            pools,
            {uuid: self._health.condition(uuid) for uuid in sold},
            tuple(self._uses(pools, told)),
            told.unknown,
            dict(self._sharings),
            dict(self._orphaned(pools, told)),
            assignment.conflicts,
            section_conflicts,
            frozenset(uuid for _, uuid in told.holders) | self.grants.cards(),
            self._reserved,
            former,
        )
        return self.inventory

    @property
    def _kinds(self) -> Mapping[str, Kind]:
        return {entry.resource: entry.sharing for entry in self.config.resources}

    def _acquire(self, assignment: Assignment, now: float) -> tuple[Assignment, Mapping[Uuid, str]]:
        """Return the assignment without the cards that another section sells, and why it is without them."""
        section, kinds = self.host.plugin, self._kinds
        wanted = {
            one.card.uuid: Lease(section, one.resource, one.sharing, current=False, terms=one.terms or "")
            for one in self._records.by_key.values()
        }
        owners = assignment.resource_by_card()
        wanted |= {
            uuid: Lease(section, name, kinds[name], terms=self._limits(uuid, name)) for uuid, name in owners.items()
        }
        result = self._lease.acquire(wanted, now)
        cards = {card.uuid: card for chosen in assignment.cards.values() for card in chosen}
        self._records.remember(
            AllocationRecord(cards[uuid], lease.resource, lease.sharing, terms=lease.terms)
            for uuid, lease in result.inherited.items()
            if uuid in cards
        )
        self._elsewhere = result.denied
        section_conflicts = {
            uuid: f"section {lease.section} sells {uuid} as {lease.resource}, and this one would as {owners[uuid]}; give "
            "each section its own `cards`"
            for uuid, lease in result.denied.items()
            if lease.current and uuid in owners
        }
        self._reserved = {
            uuid: f"section {lease.section} sold it as {lease.resource}, and containers may still hold it"
            for uuid, lease in result.denied.items()
            if not lease.current
        }
        left = {
            name: tuple(card for card in chosen if card.uuid not in result.denied)
            for name, chosen in assignment.cards.items()
        }
        return Assignment(left, assignment.conflicts), section_conflicts

    def _entry(self, main: str) -> Entry:
        """Return an entry by its main resource, which one of several MIG profiles does not offer itself."""
        return next(entry for entry in self.config.resources if entry.resource == main)

    def _limits(self, uuid: Uuid, resource: str) -> str:
        """Return the terms on which an entry sells a card: those of its holders, as long as there may be any."""
        entry = self._entry(resource)
        known = self._records.by_key.get((uuid, resource, entry.sharing))
        return known.terms if known is not None and known.terms is not None else limits_of(entry)

    def _names(self) -> frozenset[str]:
        """Return every name under which a card was or is sold."""
        offered = {name for entry in self.config.resources for name in resource_names(entry)}
        return frozenset(offered | {one.resource for one in self._records.by_key.values()})

    # --- the past -----------------------------------------------------------------------------------------------

    def _forget(self, assignment: Assignment, snapshot: Snapshot, told: held.Held, now: float) -> None:
        """Drop what was sold once and is held by nobody any more."""
        present = {card.uuid for card in snapshot.cards} if snapshot.state == "running" else set()
        for one in list(self._records.by_key.values()):
            sold_now = one.card in assignment.cards.get(one.resource, ()) and one.sharing == self._kind(one.resource)
            terms = limits_of(self._entry(one.resource)) if sold_now else ""
            if one.card.uuid in present and sold_now and one.terms == terms:
                self._unheld.pop(one.place, None)
            elif (
                self._unheld_for(one.place, self._holder(one, told) is None, now) > GRACE_PERIOD
                and snapshot.state in _TELLING
            ):
                if one.card.uuid in present and sold_now:
                    self._records.renew(one.place, terms)
                else:
                    self._records.forget(one.place)
                self._unheld.pop(one.place, None)
        kept = {uuid for uuid, _, _ in self._records.by_key}
        for uuid in [uuid for uuid in self._owners if uuid not in kept and uuid not in present]:
            self._health.forget(uuid)
            self._owners = {other: name for other, name in self._owners.items() if other != uuid}

    def _unheld_for(self, what: object, free: bool, now: float) -> float:
        """Return for how long something was held by nobody without a break."""
        if not free:
            self._unheld.pop(what, None)
            return 0.0
        return now - self._unheld.setdefault(what, now)

    def _kind(self, resource: str) -> str | None:
        return self._kinds.get(resource)

    def _holder(self, one: AllocationRecord, told: held.Held) -> str | None:
        """Return who may hold a card as it was sold; None when nobody does."""
        if told.unknown:
            return "nobody knows whom"
        names = {one.resource, *self._resource_names(one.resource)}
        return next(
            (told.holders[name, one.card.uuid] for name in names if (name, one.card.uuid) in told.holders), None
        )

    def _resource_names(self, resource: str) -> _Names:
        entry = next((entry for entry in self.config.resources if entry.resource == resource), None)
        return resource_names(entry) if entry is not None else ()

    def _sold_otherwise(self, entry: Entry, card: Card, told: held.Held) -> str:
        """Return why a card cannot be sold anew yet: it may be held in a way in which it was sold before."""
        for one in self._records.by_key.values():
            if one.card.uuid != card.uuid:
                continue
            holder = self._holder(one, told)
            why = f"it is held by {holder}" if holder is not None else "kubelet may still tell who holds it"
            if (one.resource, one.sharing) != (entry.resource, entry.sharing):
                return f"it was sold as {one.resource} ({one.sharing}), and {why}"
            if one.terms != limits_of(entry):
                return f"{why} as it was sold before ({one.terms or 'without MPS'}); new terms wait for the end of that"
        return excess_replicas(entry, told.of(entry.resource, card.uuid))

    def _held_back(self, assignment: Assignment, told: held.Held) -> Mapping[Uuid, str]:
        """Return why cards cannot be sold yet that may be held as they were sold before."""
        whys = {
            card.uuid: self._sold_otherwise(entry, card, told)
            for entry in self.config.resources
            for card in assignment.cards[entry.resource]
        }
        return {uuid: why for uuid, why in whys.items() if why}

    def _orphaned(self, pools: Mapping[str, Pool], told: held.Held) -> Iterator[tuple[str, tuple[DeviceId, ...]]]:
        """Yield what is held and no longer listed: an instance that was destroyed, a card that has other units now."""
        for entry in self.config.resources:
            sharing = self._sharings.get(entry.resource)
            for name in resource_names(entry):
                ids = told.ids.get(name, {})
                listed: set[DeviceId] = set()
                if ids and sharing is not None:
                    try:
                        listed = {one.id for one in sharing.devices(ResourceName(name), pools[entry.resource])}
                    except NotFound:
                        listed = set()
                if orphaned := tuple(sorted(ids.keys() - listed)):
                    yield name, orphaned

    # --- what is sold -------------------------------------------------------------------------------------------

    def _settle_units(self, assignment: Assignment, told: held.Held, now: float) -> None:
        """Make the sharing of each entry, once its unit is known."""
        for entry in self.config.resources:
            if isinstance(entry, Memory):
                self._settle_unit(entry, assignment, told, now)
            elif entry.resource not in self._sharings:
                self._sharings[entry.resource] = _sharing(entry, self.paths)

    def _settle_unit(self, entry: Memory, assignment: Assignment, told: held.Held, now: float) -> None:
        """Choose the unit; where units may be held, the last one stays: an id must not change its size."""
        name = entry.resource
        former = [one.card for one in self._records.by_key.values() if one.resource == name and one.sharing == "memory"]
        cards = {card.uuid: card for card in (*former, *assignment.cards[name])}
        if not cards:
            return
        wanted = unit_for(entry, [card.memory for card in cards.values()])
        before = self._records.unit(name)
        free = not told.unknown and not told.holdings.get(name)
        idle = self._unheld_for(name, free, now) > GRACE_PERIOD
        unit = wanted if before is None or idle else before
        present = self._sharings.get(name)
        if isinstance(present, MemorySharing) and present.unit == unit:
            return
        if unit != entry.unit:
            why = f"there would be more than {entry.max_units_per_card} of them on a card, or too many for one list"
            why = why if unit == wanted else "units of that size may be held; it changes when none was for a minute"
            self.host.log.warning("%s: a unit is %d MiB, not %d MiB: %s", name, unit >> 20, entry.unit >> 20, why)
        self._records.keep_unit(name, unit)
        self._sharings[name] = MemorySharing(entry, self.paths, unit)

    def _pools(
        self, assignment: Assignment, snapshot: Snapshot, former: Mapping[Uuid, str], told: held.Held
    ) -> dict[str, Pool]:
        present = {card.uuid for card in snapshot.cards} if snapshot.state != "absent" else set()
        pools = {}
        for entry in self.config.resources:
            here = [card for card in assignment.cards[entry.resource] if card.uuid in present]
            members = [self._member(entry, card, former.get(card.uuid, ""), told) for card in here]
            listed = {card.uuid for card in here}
            members += [
                PoolMember(one.card, self._left(one.card, present, assignment))
                for one in self._records.by_key.values()
                if (one.resource, one.sharing) == (entry.resource, entry.sharing) and one.card.uuid not in listed
            ]
            pools[entry.resource] = Pool(tuple(members))
        return pools

    def _member(self, entry: Entry, card: Card, former: str, told: held.Held) -> PoolMember:
        """Put a card into a pool, or say why it is not allocatable. Where only the terms are others, what containers hold of it stays healthy."""
        ill = self._reason(card)
        if not former or ill:
            return PoolMember(card, ill or self.not_ready_reason(entry, card.uuid))
        ways = {(one.resource, one.sharing) for one in self._records.by_key.values() if one.card.uuid == card.uuid}
        kept = told.of(entry.resource, card.uuid) if ways == {(entry.resource, entry.sharing)} else ()
        return PoolMember(card, former, frozenset(kept))

    def _reason(self, card: Card) -> str:
        condition = self._health.condition(card.uuid)
        return "" if condition.allocatable else (condition.reason or condition.state)

    def _left(self, card: Card, present: set[Uuid], assignment: Assignment) -> str:
        """Return why a card that an entry has sold is not sold by it any more."""
        if card.uuid not in present:
            return self._reason(card) or GONE
        if card.uuid in assignment.conflicts:
            return assignment.conflicts[card.uuid]
        if card.uuid in self._elsewhere:
            lease = self._elsewhere[card.uuid]
            return f"section {lease.section} sells it as {lease.resource}"
        now = assignment.resource_by_card().get(card.uuid)
        return f"it is for {now} now" if now is not None else "it is not for this resource any more"

    def _uses(self, pools: Mapping[str, Pool], told: held.Held) -> Iterator[ledger.Allocation]:
        for name, sharing in self._sharings.items():
            for resource in self._resource_names(name):
                yield from ledger.uses(told.holdings.get(resource, ()), sharing, pools[name])
        offered = {name for entry in self.config.resources for name in resource_names(entry)}
        former = {one.resource: one.sharing for one in self._records.by_key.values() if one.resource not in offered}
        for resource, kind in former.items():
            unit = self._records.unit(resource) if kind == "memory" else None
            yield from ledger.former_uses(told.holdings.get(resource, ()), told.ids.get(resource, {}), kind, unit)


def _sharing(entry: Entry, paths: NodePaths) -> Sharing:
    match entry:
        case Replicas():
            return TimeSlicing(entry, paths)
        case Mig(strategy="single" | "mixed"):
            return MigInstances(entry, paths)
        case Memory():
            return MemorySharing(entry, paths, entry.unit)
        case _:
            return ExclusiveSharing(entry, paths)
