"""Which section of this daemon sells which card.

Owns: one book for the process. Two sections that use this plugin look at the same cards and know nothing of each other;
here the second one learns that a card is sold already.
Refuses: to know what a card is, and what is sold within one section (`stock` and `known` do).

The instances of one section never stand in each other's way: a reload starts one beside, or right after, the other. For
that while a card stays with the section whose instance has ended.
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
"""Seconds for which a card stays with a section that has ended: it may be about to start again."""


@dataclass(frozen=True, slots=True)
class Lease:
    """How a section sells a card.

    Attributes:
        section: its name.
        resource: the entry's main resource.
        sharing: the entry's kind.
        current: its configuration chooses the card; otherwise containers may still hold what it sold before.
        terms: on which it sells it (see `terms`).
    """

    section: str
    resource: str
    sharing: Kind
    current: bool = True
    terms: str = ""

    def same_ids(self, other: "Lease") -> bool:
        """Whether the same ids mean the same: the section was only renamed."""
        return (self.resource, self.sharing, self.terms) == (other.resource, other.sharing, other.terms)


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """What the book says about cards that a section wants.

    Attributes:
        denied: the lease of another section, for each card that cannot be had.
        inherited: how a section that has ended sold a card that can be had now.
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
        """Return what one instance of a section sells over.

        Args:
            node: what the sections of one daemon have in common.
            section: the section's name.
        """
        with self._lock:
            self._made += 1
            holder = self._holders[self._made] = LeaseHolder(self, node, section, self._made)
            return holder

    def acquire(self, holder: "LeaseHolder", wanted: Mapping[Uuid, Lease], now: float) -> LeaseResult:
        """Take cards for a holder, give back those that it no longer wants, and say which it cannot have."""
        denied: dict[Uuid, Lease] = {}
        inherited: dict[Uuid, Lease] = {}
        with self._lock:
            if holder.ended:
                return LeaseResult()
            self._forget_the_unused()
            for uuid, lease in wanted.items():
                place = (holder.node, uuid)
                others = [one for one in self._leases.get(place, {}).values() if one.section != holder.section]
                ended, since = self._ended.get(place, (lease, now))
                differs = ended.section != holder.section and not ended.same_ids(lease)
                if others:
                    denied[uuid] = others[0]
                elif differs and now - since < RESERVATION:
                    denied[uuid] = ended
                else:
                    if differs:
                        inherited[uuid] = ended
                    self._ended.pop(place, None)
                    self._leases.setdefault(place, {})[holder.number] = lease
            for place in [place for place in self._leases if place[1] not in wanted]:
                self._leave(place, holder)
        return LeaseResult(denied, inherited)

    def release(self, holder: "LeaseHolder", now: float) -> None:
        """Give back all cards of a holder; its section keeps them for a while."""
        with self._lock:
            holder.ended = True
            for place in list(self._leases):
                lease = self._leave(place, holder)
                if lease is not None and place not in self._leases:
                    self._ended[place] = (replace(lease, current=False), now)

    def _forget_the_unused(self) -> None:
        """Drop the claims of instances that were made and thrown away without a start, hence without a stop."""
        for place, leases in list(self._leases.items()):
            for number in [number for number in leases if number not in self._holders]:
                del leases[number]
            if not leases:
                del self._leases[place]

    def _leave(self, place: tuple[Path, Uuid], holder: "LeaseHolder") -> Lease | None:
        leases = self._leases[place]
        lease = leases.pop(holder.number, None)
        if not leases:
            del self._leases[place]
        return lease


@dataclass(slots=True, weakref_slot=True, eq=False)
class LeaseHolder:
    """One instance of a section, as the book knows it; of no use after its end."""

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
"""That of this process."""
