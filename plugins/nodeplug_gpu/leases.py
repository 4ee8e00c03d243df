"""Which section of this daemon advertises which card.

Owns: the leases of this process. Two sections that use this plugin see the same cards and are independent; here the
second one learns that a card is taken.
Refuses: to know what a card is, and what is advertised within one section (`pool` and `allocations` do).

The instances of one section never conflict: a reload starts one beside, or right after, the other. Therefore a card
stays reserved for a while for a section whose instance has ended.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.config import Kind

RESERVATION: Final = 60.0
"""Seconds for which a card stays reserved for a section that has ended: it may be about to start again."""


@dataclass(frozen=True, slots=True)
class Lease:
    """How a section advertises a card.

    Attributes:
        section: its name.
        resource: the entry's main resource.
        sharing: the entry's kind of sharing.
        current: its configuration chooses the card; otherwise containers may still hold what it advertised before.
        limits: under which containers hold the card (see `limits`).
    """

    section: str
    resource: str
    sharing: Kind
    current: bool = True
    limits: str = ""

    def same_ids(self, other: "Lease") -> bool:
        """Whether the same ids mean the same: the section was only renamed."""
        return (self.resource, self.sharing, self.limits) == (other.resource, other.sharing, other.limits)


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """The answer to a section that wants to lease cards.

    Attributes:
        denied: the lease of another section, for each card that cannot be had.
        inherited: how a section that has ended advertised a card that can be had now.
    """

    denied: Mapping[Uuid, Lease] = field(default_factory=dict)
    inherited: Mapping[Uuid, Lease] = field(default_factory=dict)


@dataclass(slots=True)
class LeaseTable:
    """The leases of all sections. Any thread may call."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _leases: dict[tuple[Path, Uuid], dict[int, Lease]] = field(default_factory=dict)
    _ended: dict[tuple[Path, Uuid], tuple[Lease, float]] = field(default_factory=dict)
    _holders: "WeakValueDictionary[int, LeaseHolder]" = field(default_factory=WeakValueDictionary)
    _made: int = 0

    def holder(self, node: Path, section: str) -> "LeaseHolder":
        """Return what one instance of a section leases cards with.

        Args:
            node: what the sections of one daemon have in common.
            section: the section's name.
        """
        with self._lock:
            self._made += 1
            holder = self._holders[self._made] = LeaseHolder(self, node, section, self._made)
            return holder

    def acquire(self, holder: "LeaseHolder", wanted: Mapping[Uuid, Lease], now: float) -> LeaseResult:
        """Lease cards to a holder, give back those that it no longer wants, and say which it cannot have."""
        denied: dict[Uuid, Lease] = {}
        inherited: dict[Uuid, Lease] = {}
        with self._lock:
            if holder.ended:
                return LeaseResult()
            self._drop_abandoned()
            for uuid, lease in wanted.items():
                key = (holder.node, uuid)
                others = [one for one in self._leases.get(key, {}).values() if one.section != holder.section]
                ended, since = self._ended.get(key, (lease, now))
                differs = ended.section != holder.section and not ended.same_ids(lease)
                if others:
                    denied[uuid] = others[0]
                elif differs and now - since < RESERVATION:
                    denied[uuid] = ended
                else:
                    if differs:
                        inherited[uuid] = ended
                    self._ended.pop(key, None)
                    self._leases.setdefault(key, {})[holder.number] = lease
            for key in [key for key in self._leases if key[1] not in wanted]:
                self._drop(key, holder)
        return LeaseResult(denied, inherited)

    def release(self, holder: "LeaseHolder", now: float) -> None:
        """Give back all cards of a holder; they stay reserved for its section for a while."""
        with self._lock:
            holder.ended = True
            for key in list(self._leases):
                lease = self._drop(key, holder)
                if lease is not None and key not in self._leases:
                    self._ended[key] = (replace(lease, current=False), now)

    def _drop_abandoned(self) -> None:
        """Drop the leases of instances that were made and discarded without a start, hence without a stop."""
        for key, leases in list(self._leases.items()):
            for number in [number for number in leases if number not in self._holders]:
                del leases[number]
            if not leases:
                del self._leases[key]

    def _drop(self, key: tuple[Path, Uuid], holder: "LeaseHolder") -> Lease | None:
        leases = self._leases[key]
        lease = leases.pop(holder.number, None)
        if not leases:
            del self._leases[key]
        return lease


@dataclass(slots=True, weakref_slot=True, eq=False)
class LeaseHolder:
    """One instance of a section; it acquires nothing after its release."""

    table: LeaseTable = field(repr=False)
    node: Path
    section: str
    number: int
    ended: bool = False

    def acquire(self, wanted: Mapping[Uuid, Lease], now: float) -> LeaseResult:
        """See `LeaseTable.acquire`."""
        return self.table.acquire(self, wanted, now)

    def release(self, now: float) -> None:
        """See `LeaseTable.release`."""
        self.table.release(self, now)


LEASES: Final = LeaseTable()
"""Those of this process."""
