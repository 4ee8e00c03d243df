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

RESERVED: Final = 60.0
"""Seconds for which a card stays with a section that has ended: it may be about to start again."""


@dataclass(frozen=True, slots=True)
class Sale:
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

    def same(self, other: "Sale") -> bool:
        """Whether the same ids mean the same: the section was only renamed."""
        return (self.resource, self.sharing, self.terms) == (other.resource, other.sharing, other.terms)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the book says about cards that a section wants.

    Attributes:
        rivals: the sale of another section, for each card that cannot be had.
        inherited: how a section that has ended sold a card that can be had now.
    """

    rivals: Mapping[Uuid, Sale] = field(default_factory=dict)
    inherited: Mapping[Uuid, Sale] = field(default_factory=dict)


@dataclass(slots=True)
class Book:
    """The sales of all sections. Any thread may call."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sales: dict[tuple[Path, Uuid], dict[int, Sale]] = field(default_factory=dict)
    _ended: dict[tuple[Path, Uuid], tuple[Sale, float]] = field(default_factory=dict)
    _counters: "WeakValueDictionary[int, Counter]" = field(default_factory=WeakValueDictionary)
    _made: int = 0

    def counter(self, node: Path, section: str) -> "Counter":
        """Return what one instance of a section sells over.

        Args:
            node: what the sections of one daemon have in common.
            section: the section's name.
        """
        with self._lock:
            self._made += 1
            counter = self._counters[self._made] = Counter(self, node, section, self._made)
            return counter

    def claim(self, counter: "Counter", wanted: Mapping[Uuid, Sale], now: float) -> Answer:
        """Take cards for a counter, give back those that it no longer wants, and say which it cannot have."""
        rivals: dict[Uuid, Sale] = {}
        inherited: dict[Uuid, Sale] = {}
        with self._lock:
            if counter.ended:
                return Answer()
            self._forget_the_unused()
            for uuid, sale in wanted.items():
                place = (counter.node, uuid)
                others = [one for one in self._sales.get(place, {}).values() if one.section != counter.section]
                ended, since = self._ended.get(place, (sale, now))
                otherwise = ended.section != counter.section and not ended.same(sale)
                if others:
                    rivals[uuid] = others[0]
                elif otherwise and now - since < RESERVED:
                    rivals[uuid] = ended
                else:
                    if otherwise:
                        inherited[uuid] = ended
                    self._ended.pop(place, None)
                    self._sales.setdefault(place, {})[counter.number] = sale
            for place in [place for place in self._sales if place[1] not in wanted]:
                self._leave(place, counter)
        return Answer(rivals, inherited)

    def end(self, counter: "Counter", now: float) -> None:
        """Give back all cards of a counter; its section keeps them for a while."""
        with self._lock:
            counter.ended = True
            for place in list(self._sales):
                sale = self._leave(place, counter)
                if sale is not None and place not in self._sales:
                    self._ended[place] = (replace(sale, current=False), now)

    def _forget_the_unused(self) -> None:
        """Drop the claims of instances that were made and thrown away without a start, hence without a stop."""
        for place, sales in list(self._sales.items()):
            for number in [number for number in sales if number not in self._counters]:
                del sales[number]
            if not sales:
                del self._sales[place]

    def _leave(self, place: tuple[Path, Uuid], counter: "Counter") -> Sale | None:
        sales = self._sales[place]
        sale = sales.pop(counter.number, None)
        if not sales:
            del self._sales[place]
        return sale


@dataclass(slots=True, weakref_slot=True, eq=False)
class Counter:
    """One instance of a section, as the book knows it; of no use after its end."""

    book: Book = field(repr=False)
    node: Path
    section: str
    number: int
    ended: bool = False

    def claim(self, wanted: Mapping[Uuid, Sale], now: float) -> Answer:
        """See `Book.claim`."""
        return self.book.claim(self, wanted, now)

    def end(self, now: float) -> None:
        """See `Book.end`."""
        self.book.end(self, now)


BOOK: Final = Book()
"""That of this process."""
