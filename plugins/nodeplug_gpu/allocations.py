"""What of the node's cards is allocated to containers: the one owner of that state.

Owns:
    reported  what kubelet reported last, and which card each device id belongs to;
    pending   devices that were allocated here and that kubelet has not reported yet;
    records   on disk, one per card and way in which it was advertised, for as long as a container may still have an
              allocation of it; and the unit size of each memory resource. They outlive the daemon: kubelet treats a
              device that is no longer listed as healthy, so the units of a card that is gone stay listed as unhealthy,
              and a card that the configuration has moved is not allocated again while containers hold it;
    idle      for how long each of them has had no holder.
Refuses: to say what is free (kubelet alone decides that); ids of cards that were never advertised; to fail: without
a writable disk, the next start does not know what this one advertised.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nodeplug import DeviceId, Entry, Holding, Host, Journal, NotReady, PluginError, ResourceName
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.config import Kind
from nodeplug_gpu.holders import Container, by_holder, holder_of
from nodeplug_gpu.ids import card_key, whole
from nodeplug_gpu.pool import Pool
from nodeplug_gpu.record import DISPUTED, MALFORMED, AllocationRecord, RecordKey, decoded
from nodeplug_gpu.sharing import Sharing
from nodeplug_gpu.sharing.memory import MemorySharing

GRACE_PERIOD: Final = 60.0
"""Seconds without a holder after which an allocation counts as released: kubelet reports allocations late, and for a
while after its own start it reports none."""
CONFIRM_TIMEOUT: Final = 60.0
"""Seconds after which a pending device is dropped that kubelet does not report although it answers: the admission may
have failed after Allocate."""
UNKNOWN_HOLDER: Final = "an unknown container"
_CARD: Final = "card"
_UNIT: Final = "unit"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What of one card is allocated to one container; several that share a claim have the same ids.

    Attributes:
        ids: units, replicas, MIG instances or the card itself.
        allocated_bytes: memory that it may use; None where there is no such limit (whole cards, replicas, instances).
        orphaned: how the card was shared when it was allocated, where the resource is no longer advertised; else None.
        claims: by which they are, `namespace/name`; none where a device plugin of kubelet's gave them.
    """

    container: Container
    resource: ResourceName
    card: Uuid
    ids: tuple[DeviceId, ...]
    allocated_bytes: int | None = None
    orphaned: Kind | None = None
    claims: tuple[str, ...] = ()


def each_once(allocations: Iterable[Allocation]) -> Iterator[Allocation]:
    """Yield every allocation with those of its ids that none before it has, for what adds up."""
    told: set[tuple[str, DeviceId]] = set()
    for one in allocations:
        fresh = tuple(name for name in one.ids if (one.resource, name) not in told)
        told.update((one.resource, name) for name in fresh)
        if len(fresh) < len(one.ids):
            share = None if one.allocated_bytes is None else one.allocated_bytes * len(fresh) // len(one.ids)
            yield replace(one, ids=fresh, allocated_bytes=share)
        else:
            yield one


@dataclass(frozen=True, slots=True)
class Reported:
    """What kubelet reported.

    Attributes:
        holdings: by resource; empty while kubelet does not answer.
        unknown: why allocations are not known; empty when they are.
        holders: by resource and card: one of the pods, for messages.
        ids: by resource: every allocated id that belongs to a card, with the card.
    """

    holdings: Mapping[str, tuple[Holding, ...]] = field(default_factory=dict)
    unknown: str = ""
    holders: Mapping[tuple[str, Uuid], str] = field(default_factory=dict)
    ids: Mapping[str, Mapping[DeviceId, Uuid]] = field(default_factory=dict)

    def of(self, resource: str, card: Uuid) -> Sequence[DeviceId]:
        """Return the allocated ids of a resource that belong to a card."""
        return [name for name, owner in self.ids.get(resource, {}).items() if owner == card]


@dataclass(frozen=True, slots=True)
class _Pending:
    card: Uuid | None
    since: float


@dataclass(slots=True)
class Allocations:
    """The allocation state of one instance of the plugin.

    `add_pending` and what begins with `pending` may be called by any thread; the owner serialises everything else.

    Attributes:
        reported: by kubelet, at the last `refresh`.
        records: by their keys.
    """

    host: Host
    clock: Callable[[], float]
    reported: Reported = field(default_factory=Reported)
    records: dict[RecordKey, AllocationRecord] = field(default_factory=dict)
    _unit_sizes: dict[str, int] = field(default_factory=dict)
    _idle_since: dict[object, float] = field(default_factory=dict)
    _pending: dict[tuple[str, DeviceId], _Pending] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _disputed: set[str] = field(default_factory=set)
    _complaint: str = ""

    # --- what kubelet reports -----------------------------------------------------------------------------------

    def refresh(self, resources: Iterable[str]) -> Reported:
        """Ask kubelet what is allocated to whom, and confirm what is pending.

        Args:
            resources: names, also those that are no longer advertised.
        """
        try:
            holdings = {name: tuple(self.host.holders(name)) for name in resources}
        except NotReady as error:
            self.reported = Reported(unknown=error.message)
            return self.reported
        holders: dict[tuple[str, Uuid], str] = {}
        ids: dict[str, dict[DeviceId, Uuid]] = {}
        cards = _cards_by_id(self.records.values())
        for name, reported in holdings.items():
            for holding in reported:
                for device in holding.ids:
                    card = cards.get(whole(device)) or cards.get(device.partition("-")[0])
                    if card is not None:
                        ids.setdefault(name, {})[device] = card
                        holders.setdefault((name, card), holder_of(holding).pod_in_words)
        self.reported = Reported(holdings, "", holders, ids)
        self._confirm(holdings)
        return self.reported

    def holder(self, resources: Iterable[str], card: Uuid) -> str | None:
        """Return a pod that may have an allocation of a card under one of these resources; None when there is none."""
        if self.reported.unknown:
            return UNKNOWN_HOLDER
        holders = self.reported.holders
        return next((holders[name, card] for name in resources if (name, card) in holders), None)

    def of_entry(self, resource: str, sharing: Sharing, pool: Pool) -> Iterator[Allocation]:
        """Yield the allocations of an advertised resource; ids that belong to no card of its pool are left out."""
        for held in by_holder(self.reported.holdings.get(resource, ())):
            for card, ids in sharing.by_card(held.ids, pool).items():
                allocated = len(ids) * sharing.unit if isinstance(sharing, MemorySharing) else None
                yield Allocation(held.holder, ResourceName(resource), card, tuple(ids), allocated, claims=held.claims)

    def orphaned(self, advertised: Iterable[str]) -> Iterator[Allocation]:
        """Yield the allocations of resources that were advertised once and are no longer."""
        names = frozenset(advertised)
        former = {one.resource: one.sharing for one in self.records.values() if one.resource not in names}
        for resource, sharing in former.items():
            unit = self._unit_sizes.get(resource) if sharing == "memory" else None
            cards = self.reported.ids.get(resource, {})
            for held in by_holder(self.reported.holdings.get(resource, ())):
                for card in sorted({cards[name] for name in held.ids if name in cards}):
                    ids = tuple(name for name in held.ids if cards.get(name) == card)
                    allocated = len(ids) * unit if unit else None
                    yield Allocation(held.holder, ResourceName(resource), card, ids, allocated, sharing, held.claims)

    def allocated_cards(self) -> frozenset[Uuid]:
        """Return the cards of which something is allocated, reported or pending."""
        with self._lock:
            pending = {one.card for one in self._pending.values() if one.card is not None}
        return frozenset(pending | {card for _, card in self.reported.holders})

    def idle_for(self, what: object, *, held: bool) -> float:
        """Note whether something has a holder now; return for how many seconds it has had none without a break."""
        if held:
            self._idle_since.pop(what, None)
            return 0.0
        now = self.clock()
        return now - self._idle_since.setdefault(what, now)

    def reset_idle(self, what: object) -> None:
        """Restart its idle clock."""
        self._idle_since.pop(what, None)

    # --- pending ------------------------------------------------------------------------------------------------

    def add_pending(self, resource: str, entry: str, ids: Mapping[DeviceId, Uuid | None]) -> None:
        """Note devices that were allocated to a container.

        Args:
            resource: from which they were allocated.
            entry: the main resource of its entry, which is in use from now on.
            ids: with the card of each.
        """
        now = self.clock()
        self._idle_since[entry] = now
        with self._lock:
            self._pending.update({(resource, name): _Pending(card, now) for name, card in ids.items()})

    def unreported(self, resource: str, ids: Iterable[DeviceId]) -> Sequence[DeviceId]:
        """Return those of some ids that nobody is reported to hold."""
        reported = self.reported.ids.get(resource, {})
        return tuple(name for name in ids if name not in reported)

    def drop_pending(self, resource: str, ids: Iterable[DeviceId]) -> None:
        """Note that nobody has these any more."""
        with self._lock:
            for name in ids:
                self._pending.pop((resource, name), None)

    def pending_of_card(self, uuid: Uuid, resources: Iterable[str]) -> int:
        """Return how many ids of a card are pending, of some resources."""
        names = frozenset(resources)
        with self._lock:
            return sum(one.card == uuid and name in names for (name, _), one in self._pending.items())

    @property
    def pending(self) -> bool:
        """Whether anything is pending."""
        with self._lock:
            return bool(self._pending)

    def pending_of(self, resource: str) -> int:
        """Return how many ids of a resource are pending."""
        with self._lock:
            return sum(name == resource for name, _ in self._pending)

    def held_of(self, resource: str) -> Sequence[DeviceId]:
        """Return the ids of a resource that are allocated, reported or pending."""
        with self._lock:
            pending = [one for name, one in self._pending if name == resource]
        return [*self.reported.ids.get(resource, ()), *pending]

    def _confirm(self, holdings: Mapping[str, Iterable[Holding]]) -> None:
        """Drop what kubelet reports by now, and what it should have reported."""
        reported = {(name, one) for name, held in holdings.items() for holding in held for one in holding.ids}
        now = self.clock()
        with self._lock:
            self._pending = {
                place: one
                for place, one in self._pending.items()
                if place not in reported and now - one.since <= CONFIRM_TIMEOUT
            }

    # --- records ------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read what a predecessor wrote, whatever its section was called; remove what cannot be understood."""
        self.records.clear()
        self._unit_sizes.clear()
        self._disputed.clear()
        for entry in self.host.journal.entries():
            try:
                self._read(entry)
            except MALFORMED:
                self._remove(entry.key)
        self._take_over()

    def _read(self, entry: Entry) -> bool:
        """Add what an entry says to what is known; return whether it is ours at all."""
        if entry.phase == _CARD:
            one = decoded(entry.data)
            before = self.records.get(one.key)
            self.records[one.key] = one if before is None else before.joined(one)
        elif entry.phase == _UNIT:
            resource, size = str(entry.data["resource"]), max(int(entry.data["bytes"]), 1)
            if self._unit_sizes.setdefault(resource, size) != size:
                self._disputed.add(resource)
        return entry.phase in {_CARD, _UNIT}

    def _take_over(self) -> None:
        """Move here what former sections noted.

        Nothing is removed there before all is written here: a take-over that was killed can be repeated.
        """
        taken: list[tuple[Journal, str]] = []
        for former in self.host.former_sections():
            for entry in former.journal.entries():
                with suppress(*MALFORMED):  # another plugin's
                    taken += [(former.journal, entry.key)] if entry.key == _key_of(entry) and self._read(entry) else []
        if not taken:
            return
        for one in self.records.values():
            limits = DISPUTED if one.sharing == "memory" and one.resource in self._disputed else one.limits
            self.records[one.key] = replace(one, limits=limits)
        written = [self._put(one) for one in self.records.values()]
        written += [self._put_unit(resource, size) for resource, size in self._unit_sizes.items()]
        if all(written):
            self.host.log.info("%d records of sections that had the cards before are taken over", len(taken))
            for journal, key in taken:
                journal.remove(key)

    def of_card(self, uuid: Uuid) -> Sequence[AllocationRecord]:
        """Return the records of a card."""
        return [one for one in self.records.values() if one.card.uuid == uuid]

    def remember(self, records: Iterable[AllocationRecord]) -> None:
        """Write the records that are new or have changed."""
        for one in records:
            before = self.records.get(one.key)
            after = one.succeeding(before)
            if before != after:
                self._put(after)

    def renew(self, key: RecordKey, limits: str, names: Iterable[str]) -> None:
        """Note that a card is allocated under other limits and names from now on."""
        self._put(replace(self.records[key], limits=limits, names=tuple(names)))

    def forget(self, key: RecordKey) -> None:
        """Remove a record."""
        if self.records.pop(key, None) is not None:
            self._remove(_journal_key(key))

    def unit_size(self, resource: str) -> int | None:
        """Return the unit size that was last used, in bytes."""
        return self._unit_sizes.get(resource)

    def set_unit_size(self, resource: str, size: int) -> None:
        """Write the unit size."""
        if self._unit_sizes.get(resource) != size:
            self._put_unit(resource, size)

    def _put(self, record: AllocationRecord) -> bool:
        self.records[record.key] = record
        return self._write(_journal_key(record.key), _CARD, record.encoded())

    def _put_unit(self, resource: str, size: int) -> bool:
        self._unit_sizes[resource] = size
        return self._write(_unit_key(resource), _UNIT, {"resource": resource, "bytes": size})

    def _write(self, key: str, phase: str, data: Mapping[str, Any]) -> bool:
        try:
            self.host.journal.write(key, phase=phase, data=data)
        except PluginError as error:
            self._complain(f"after a restart it will not be known which cards were advertised: {error}")
            return False
        return True

    def _remove(self, key: str) -> None:
        try:
            self.host.journal.remove(key)
        except PluginError as error:
            self._complain(f"a card without allocations will be listed again after a restart: {error}")

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self.host.log.warning("%s", text)
        self._complaint = text


def _cards_by_id(records: Iterable[AllocationRecord]) -> Mapping[str, Uuid]:
    """Return cards by everything that an id can be or begin with: its UUID, its key, an instance's UUID."""
    cards: dict[str, Uuid] = {}
    for one in records:
        card = one.card
        cards |= {card.uuid: card.uuid, card_key(card.uuid): card.uuid}
        cards |= dict.fromkeys((*one.former_instances, *(instance.uuid for instance in card.instances)), card.uuid)
    return cards


def _key_of(entry: Entry) -> str:
    """Return the key of our record with that content; empty for a phase that is not ours."""
    if entry.phase == _CARD:
        return _journal_key(decoded(entry.data).key)
    return _unit_key(str(entry.data["resource"])) if entry.phase == _UNIT else ""


def _unit_key(resource: str) -> str:
    return f"unit {resource}"


def _journal_key(key: RecordKey) -> str:
    return f"card {' '.join(key)}"
