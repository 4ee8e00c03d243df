"""The inventory of the node, kept up to date: every entry of the configuration, its cards, and their condition.

Owns: the one place where snapshots of the hardware, health, what kubelet reports and the configuration come together:
the `Inventory` that everything else reads is made here.
Refuses: threads and timing (the plugin has those); hardware (a driver shows it); allocation state (`allocations`).

No card is allocated in two ways. Within a configuration `assign_cards` sees to that; across configurations, section
names, MIG mode changes and restarts, the allocation records do: a card that containers still hold in a former way
is listed as unhealthy in its new one until they are gone.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from nodeplug import DeviceId, Host, NotFound, ResourceName
from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.allocations import GRACE_PERIOD, Allocation, Allocations
from nodeplug_gpu.budget import LatelyHeld
from nodeplug_gpu.cards import Card, GpuEvent, MigInstance, Snapshot, Uuid
from nodeplug_gpu.config import GpuConfig, Kind, Memory, Replicas, Resource, advertises_mig, resource_names
from nodeplug_gpu.foreign import ForeignDevices
from nodeplug_gpu.health import GONE, HealthMonitor
from nodeplug_gpu.ids import by_card, card_key
from nodeplug_gpu.indexes import Indexes
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.limits import (
    excess,
    limits_of,
    mps_of,
    refusal_without_limits,
    why_unlimited,
    without_limits,
)
from nodeplug_gpu.pool import Assignment, Pool, PoolMember, assign_cards
from nodeplug_gpu.record import AllocationRecord
from nodeplug_gpu.sharing import Sharing
from nodeplug_gpu.sharing.entries import sharing_of
from nodeplug_gpu.sharing.memory import MemorySharing, unit_for
from nodeplug_gpu.sharing.told import ToldUnits
from nodeplug_gpu.sizes import sized, unknown
from nodeplug_gpu.withholding import Withholding

_CONCLUSIVE: Final = frozenset({"running", "absent"})
"""States of the driver in which a card that is not shown is absent."""


@dataclass(slots=True)
class InventoryTracker:
    """Builds inventories. Not safe for threads: its owner serialises `update`; all else may be called by any.

    Attributes:
        not_ready_reason: why a healthy card is not allocatable yet, such as an MPS daemon that does not run.
        limited: whether the kernel limits what containers have of a card.
        allocations: what containers hold, or may hold.
        indexes: which card an index of the configuration means.
    """

    config: GpuConfig
    host: Host
    paths: NodePaths
    not_ready_reason: Callable[[Resource, Uuid], str] = lambda _entry, _uuid: ""
    clock: Callable[[], float] = time.monotonic
    limited: Callable[[Resource, Uuid], bool] = lambda _entry, _uuid: False
    inventory: Inventory = field(default_factory=Inventory)
    allocations: Allocations = field(init=False)
    indexes: Indexes = field(init=False)
    _health: HealthMonitor = field(init=False)
    _foreign: ForeignDevices = field(init=False)
    _assigned: Mapping[Uuid, str] = field(default_factory=dict)
    _sharings: dict[str, Sharing] = field(default_factory=dict)
    _withholding: dict[str, Withholding] = field(default_factory=dict)
    _held: dict[str, LatelyHeld] = field(default_factory=dict)
    _unlisted: set[str] = field(default_factory=set)
    _unlimited: set[Uuid] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._health = HealthMonitor(self.config.health)
        self.allocations = Allocations(self.host, self.clock)
        self._foreign = ForeignDevices(GRACE_PERIOD, self.clock)
        self._withholding = {
            entry.resource: Withholding(entry.withhold) for entry in self.config.resources if isinstance(entry, Memory)
        }
        self.indexes = Indexes(self.config.resources, self.host)

    @property
    def sharings(self) -> Mapping[str, Sharing]:
        """How each entry shares its cards now."""
        return self.inventory.sharings

    def entry_of(self, resource: str) -> Resource:
        """Return the entry that advertises a name; the plugin claims no other names."""
        return next(entry for entry in self.config.resources if resource in resource_names(entry))

    def allocated(self, resource: str, ids: Sequence[DeviceId] = ()) -> None:
        """Note that a container was allocated devices: kubelet will report them, but not yet."""
        name = self.entry_of(resource).resource
        sharing, pool = self.inventory.sharings.get(name), self.inventory.pools.get(name, Pool())
        by_card = sharing.by_card(ids, pool) if sharing is not None else {}
        cards = {one: card for card, mine in by_card.items() for one in mine}
        self.allocations.add_pending(resource, name, {one: cards.get(one) for one in ids})

    def refused(self, resource: str, units: int) -> None:
        """Note that no card has as many units of a resource as a container has asked for."""
        if resource in self._withholding:
            self._withholding[resource].refused(units)

    def withholds(self, resource: str) -> bool:
        """Whether units of a resource are withheld, which changes with each allocation."""
        return resource in self._withholding and self._withholding[resource].active

    def update(self, snapshot: Snapshot, events: Sequence[GpuEvent] = ()) -> Inventory:
        """Build the inventory from a snapshot of the hardware and what kubelet reports by now."""
        snapshot = sized(snapshot, self.config.memory)
        self._health.observe(snapshot, events, self.clock())
        cards = snapshot.cards if snapshot.state != "absent" else ()
        # A record outlives its card until no container has been seen to hold it for a minute.
        indexes = self.indexes.settle(cards, lambda uuid: bool(self.allocations.of_card(uuid)))
        assignment = assign_cards(self.config.resources, cards, indexes, self._assigned)
        self._assigned = {**self._assigned, **assignment.resource_by_card()}
        self._remember(assignment)
        reported = self.allocations.refresh(self._names())
        self._foreign.note(self.config.resources, reported.holdings, cards, assignment.cards)
        for name in self._advertised_names():
            held = self._held.setdefault(name, LatelyHeld(GRACE_PERIOD))
            held.note(self.allocations.held_of(name), self.clock(), unknown=bool(reported.unknown))
        self._forget(assignment, snapshot)
        self._settle_units(assignment)
        self._warn_unlimited(assignment)
        draining = self._draining(assignment)
        pools = self._pools(assignment, snapshot, draining)
        members = [member for pool in pools.values() for member in pool.members]
        pooled = [uuid for one in members for uuid in (one.card.uuid, *(part.uuid for part in one.card.instances))]
        self.inventory = Inventory(
            snapshot,
            pools,
            {uuid: self._health.condition(uuid) for uuid in pooled},
            tuple(self._allocations(pools)),
            reported.unknown,
            dict(self._sharings),
            dict(self._orphaned(pools)),
            assignment.conflicts,
            self.allocations.allocated_cards(),
            draining,
            self.indexes.refused,
        )
        return self.inventory

    @property
    def _kinds(self) -> Mapping[str, Kind]:
        return {entry.resource: entry.sharing for entry in self.config.resources}

    def _remember(self, assignment: Assignment) -> None:
        kinds, limits = self._kinds, {entry.resource: limits_of(entry) for entry in self.config.resources}
        names = {entry.resource: resource_names(entry) for entry in self.config.resources}
        self.allocations.remember(
            AllocationRecord(card, name, kinds[name], limits=limits[name], names=names[name])
            for name, cards in assignment.cards.items()
            for card in cards
        )

    def _entry(self, main: str) -> Resource:
        """Return an entry by its main resource, which an entry for MIG profiles need not advertise itself."""
        return next(entry for entry in self.config.resources if entry.resource == main)

    def _advertised_names(self) -> frozenset[str]:
        return frozenset(name for entry in self.config.resources for name in resource_names(entry))

    def _names(self) -> frozenset[str]:
        """Return every name under which a card is or was advertised."""
        records = self.allocations.records.values()
        return self._advertised_names() | {name for one in records for name in (one.resource, *one.names)}

    # --- allocations of the past --------------------------------------------------------------------------------

    def _forget(self, assignment: Assignment, snapshot: Snapshot) -> None:
        """Drop the records of what is no longer advertised and has no holder any more."""
        allocations, kinds = self.allocations, self._kinds
        present = {card.uuid for card in snapshot.cards} if snapshot.state == "running" else set()
        for one in list(allocations.records.values()):
            current = one.card in assignment.cards.get(one.resource, ()) and one.sharing == kinds.get(one.resource)
            limits = limits_of(self._entry(one.resource)) if current else ""
            here = current and one.card.uuid in present
            names = resource_names(self._entry(one.resource)) if current else ()
            if here and one.limits == limits and {*one.names} <= {*names}:
                allocations.reset_idle(one.key)
            elif self._idle_for(one) > GRACE_PERIOD and snapshot.state in _CONCLUSIVE:
                if here:
                    allocations.renew(one.key, limits, names)
                else:
                    allocations.forget(one.key)
                allocations.reset_idle(one.key)
        recorded = {uuid for uuid, _, _ in allocations.records}
        for uuid in [uuid for uuid in self._assigned if uuid not in recorded and uuid not in present]:
            self._health.forget(uuid)
            self._assigned = {other: name for other, name in self._assigned.items() if other != uuid}

    def _idle_for(self, record: AllocationRecord) -> float:
        return self.allocations.idle_for(record.key, held=self._holder(record) is not None)

    def _holder(self, record: AllocationRecord) -> str | None:
        """Return a pod that may hold a card in the way that a record describes; None when none does."""
        entry = next((entry for entry in self.config.resources if entry.resource == record.resource), None)
        names = {record.resource, *record.names, *(resource_names(entry) if entry is not None else ())}
        return self.allocations.holder(names, record.card.uuid)

    def _drain_reason(self, entry: Resource, card: Card) -> str:
        """Return why a card is not allocatable yet: it may still be allocated in another way."""
        for one in self.allocations.of_card(card.uuid):
            holder = self._holder(one)
            why = f"it is allocated to {holder}" if holder is not None else "kubelet may still report a holder"
            if (one.resource, one.sharing) != (entry.resource, entry.sharing):
                return f"it was advertised as {one.resource} ({one.sharing}), and {why}"
            if one.limits != limits_of(entry):
                former = one.limits or without_limits(entry)
                return f"{why} under its former limits ({former}); the new ones wait for its release"
            former_names = {*one.names} - {*resource_names(entry)}
            if (holder := self.allocations.holder(former_names, card.uuid) if former_names else None) is not None:
                return f"it was advertised as {', '.join(sorted(former_names))} too, and it is allocated to {holder}"
        return self._excess(entry, card) or self._foreign.reason(entry.resource, card.uuid)

    def _excess(self, entry: Resource, card: Card) -> str:
        """Return why a card has too many users: what is no longer configured of it is still allocated."""
        held, sharing = self.allocations.reported.of(entry.resource, card.uuid), self._sharings.get(entry.resource)
        if isinstance(entry, Replicas):
            return excess(held, entry.replicas, "replicas")
        if isinstance(sharing, MemorySharing) and card.memory:
            return excess(held, sharing.units_of(card), "units")
        return ""

    def _draining(self, assignment: Assignment) -> Mapping[Uuid, str]:
        """Return why cards that may still be allocated in another way are not allocatable yet."""
        reasons = {
            card.uuid: self._drain_reason(entry, card)
            for entry in self.config.resources
            for card in assignment.cards[entry.resource]
        }
        return {uuid: reason for uuid, reason in reasons.items() if reason}

    def _orphaned(self, pools: Mapping[str, Pool]) -> Iterator[tuple[str, tuple[DeviceId, ...]]]:
        """Yield what is held and no longer listed: an instance that was destroyed, a card that has other units now."""
        for entry in self.config.resources:
            sharing = self._sharings.get(entry.resource)
            for name in resource_names(entry):
                ids = self._held[name].ids()
                listed: set[DeviceId] = set()
                if ids and sharing is not None:
                    with suppress(NotFound):
                        listed = {one.id for one in sharing.devices(ResourceName(name), pools[entry.resource])}
                if orphaned := tuple(sorted(ids - listed)):
                    yield name, orphaned

    # --- what is advertised -------------------------------------------------------------------------------------

    def _settle_units(self, assignment: Assignment) -> None:
        """Make the sharing of each entry, once its unit is known."""
        for entry in self.config.resources:
            if isinstance(entry, Memory):
                self._settle_unit(entry, assignment)
            elif entry.resource not in self._sharings:
                self._sharings[entry.resource] = sharing_of(entry, self.paths)

    def _settle_unit(self, entry: Memory, assignment: Assignment) -> None:
        """Choose the unit; while units may be held, the last size stays: an id must not change its size."""
        name, reported = entry.resource, self.allocations.reported
        records = self.allocations.records.values()
        former = [one.card for one in records if one.resource == name and one.sharing == "memory"]
        cards = {card.uuid: card for card in (*former, *assignment.cards[name])}
        sizes = [card.memory for card in cards.values() if card.memory]
        before = self.allocations.unit_size(name)
        wanted = unit_for(entry, sizes) if sizes else before
        if wanted is None:
            return
        held = bool(reported.unknown or reported.holdings.get(name))
        idle = self.allocations.idle_for(name, held=held) > GRACE_PERIOD
        unit = wanted if before is None or idle else before
        present = self._sharings.get(name)
        if isinstance(present, MemorySharing) and present.unit == unit:
            return
        if unit != entry.unit:
            why = f"there would be more than {entry.max_units_per_card} of them on a card, or too many for one list"
            why = why if unit == wanted else "that size may be in use; it changes a minute after the last release"
            self.host.log.warning("%s: a unit is %d MiB, not %d MiB: %s", name, unit >> 20, entry.unit >> 20, why)
        self.allocations.set_unit_size(name, unit)
        self._sharings[name] = MemorySharing(entry, self.paths, unit, ToldUnits(self.clock))

    def _warn_unlimited(self, assignment: Assignment) -> None:
        """Log, once, which cards have no limits although their entry has MPS for that."""
        for entry in self.config.resources:
            mps = mps_of(entry)
            if mps is None or mps.require_limits:
                continue
            for card in assignment.cards[entry.resource]:
                why = why_unlimited(card)
                if why and card.uuid not in self._unlimited and not self.limited(entry, card.uuid):
                    self._unlimited.add(card.uuid)
                    self.host.log.warning(
                        "%s: MPS can set no limits on it: %s; each container of %s may use the whole card, unless "
                        "mps.require_limits keeps it from being allocated",
                        card.uuid,
                        why,
                        entry.resource,
                    )

    def _pools(self, assignment: Assignment, snapshot: Snapshot, draining: Mapping[Uuid, str]) -> dict[str, Pool]:
        present = {card.uuid for card in snapshot.cards} if snapshot.state != "absent" else set()
        pools = {}
        for entry in self.config.resources:
            here = [card for card in assignment.cards[entry.resource] if card.uuid in present]
            members = [self._member(entry, card, draining.get(card.uuid, "")) for card in here]
            listed = {card.uuid for card in here}
            members += [
                PoolMember(one.card, self._removed_reason(one.card, present, assignment))
                for one in self.allocations.records.values()
                if (one.resource, one.sharing) == (entry.resource, entry.sharing) and one.card.uuid not in listed
            ]
            listed_members = tuple(self._withheld(entry, self._fitted(entry, members)))
            undivided, former = assignment.undivided.get(entry.resource, ()), self.inventory.pools.get(entry.resource)
            version = snapshot.driver_version or (former.driver_version if former is not None else "")
            pools[entry.resource] = Pool(listed_members, undivided, snapshot.pairs, version)
        return pools

    def _fitted(self, entry: Resource, members: Sequence[PoolMember]) -> Sequence[PoolMember]:
        """Return the members of a pool with what of each fits into the list."""
        name, sharing = entry.resource, self._sharings.get(entry.resource)
        if not isinstance(sharing, MemorySharing):
            return members
        fitted = sharing.fitted(members, self._held[name])
        why = sharing.unlisted(Pool(tuple(fitted)))
        if why and name not in self._unlisted:
            self.host.log.warning("%s: %s", name, why)
        self._unlisted = self._unlisted | {name} if why else self._unlisted - {name}
        return fitted

    def _withheld(self, entry: Resource, members: Sequence[PoolMember]) -> Iterator[PoolMember]:
        """Yield the members of a pool, with what is withheld of them; nothing new while kubelet tells no holders."""
        sharing = self._sharings.get(entry.resource)
        if not isinstance(sharing, MemorySharing):
            yield from members
            return
        if self.allocations.reported.unknown:
            before = {one.card.uuid: one.withheld for one in self.inventory.members_of(entry.resource)}
            yield from (replace(one, withheld=before.get(one.card.uuid, frozenset())) for one in members)
            return
        held = frozenset(self.allocations.held_of(entry.resource))
        free = {
            card_key(one.card.uuid): [unit for unit in sharing.unit_ids(one) if unit not in held]
            for one in members
            if one.healthy
        }
        chosen = by_card(self._withholding[entry.resource].choose(free))
        yield from (replace(one, withheld=frozenset(chosen.get(card_key(one.card.uuid), ()))) for one in members)

    def _member(self, entry: Resource, card: Card, draining: str) -> PoolMember:
        """Return a member of a pool. Where only the limits have changed, what containers hold of it stays healthy."""
        unhealthy, parts = self._unhealthy_reason(card), self._unhealthy_instances(card)
        if parts and not advertises_mig(entry):  # whoever has the card has all its instances
            uuid, reason = next(iter(parts.items()))
            unhealthy, parts = unhealthy or f"its MIG instance {uuid}: {reason}", {}
        if not draining or unhealthy:
            refused = unknown(entry, card)
            if not refused and not self.limited(entry, card.uuid):
                refused = refusal_without_limits(entry, card)
            why = unhealthy or refused or self.not_ready_reason(entry, card.uuid)
            return PoolMember(card, why, instance_reasons=parts)
        ways = {(one.resource, one.sharing) for one in self.allocations.of_card(card.uuid)}
        same_ids = ways == {(entry.resource, entry.sharing)}
        held = self.allocations.reported.of(entry.resource, card.uuid) if same_ids else ()
        return PoolMember(card, draining, frozenset(held), instance_reasons=parts)

    def _unhealthy_reason(self, of: Card | MigInstance) -> str:
        condition = self._health.condition(of.uuid)
        return "" if condition.allocatable else (condition.reason or condition.state)

    def _unhealthy_instances(self, card: Card) -> Mapping[Uuid, str]:
        """Return why instances are not allocatable for reasons of their own."""
        if self._unhealthy_reason(card):
            return {}
        return {one.uuid: reason for one in card.instances if (reason := self._unhealthy_reason(one))}

    def _removed_reason(self, card: Card, present: set[Uuid], assignment: Assignment) -> str:
        """Return why a card is no longer advertised by an entry that advertised it."""
        if card.uuid not in present:
            return self._unhealthy_reason(card) or GONE
        if card.uuid in assignment.conflicts:
            return assignment.conflicts[card.uuid]
        now = assignment.resource_by_card().get(card.uuid)
        return f"it is advertised as {now} now" if now is not None else "it is no longer assigned to this resource"

    def _allocations(self, pools: Mapping[str, Pool]) -> Iterator[Allocation]:
        for entry in self.config.resources:
            sharing = self._sharings.get(entry.resource)
            if sharing is not None:
                for resource in resource_names(entry):
                    yield from self.allocations.of_entry(resource, sharing, pools[entry.resource])
        yield from self.allocations.orphaned(self._advertised_names())
