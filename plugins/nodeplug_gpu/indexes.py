"""Which card an `index` of the configuration means, for as long as that card is not replaced.

Owns: the meaning of each index, on disk, while an entry chooses cards by index; the log of when it changes, or differs
from NVML's.
Refuses: to choose cards (`pool` does), and to say who holds them.

NVML counts the cards that it finds: behind one that is gone all others move up. So an index means the card that first
had it. Another takes its place only when it has never been seen, has NVML's index of the one that is gone, and no
container may hold that one: a broken card that was replaced. All meanings are forgotten when no entry has `index`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from nodeplug import Entry, Host, Journal, PluginError
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Resource

_INDEX: Final = "index"


@dataclass(slots=True)
class Indexes:
    """The meanings of the indexes, kept up to date. Not safe for threads; `peek` may be called by any.

    Attributes:
        refused: why a card is not chosen by the index that NVML gives it.
    """

    entries: Sequence[Resource]
    host: Host
    refused: Mapping[Uuid, str] = field(default_factory=dict)
    _meant: dict[int, Uuid] = field(default_factory=dict)
    _loaded: bool = False
    _said: dict[Uuid, str] = field(default_factory=dict)
    _complaint: str = ""

    def settle(self, cards: Sequence[Card], held: Callable[[Uuid], bool]) -> Mapping[Uuid, int | None]:
        """Return the index by which each card is chosen, None for none; note what is new.

        Args:
            cards: all that the driver shows.
            held: whether a container may hold a card that is gone.
        """
        if not self._loaded:
            self._meant, self._loaded = self._load(), True
        if not any(entry.cards.index for entry in self.entries):
            for index in list(self._meant):
                self._forget(index)
            return {card.uuid: card.index for card in cards}
        found, refused = dict[Uuid, int | None](), dict[Uuid, str]()
        present, known = {card.uuid for card in cards}, {uuid: index for index, uuid in self._meant.items()}
        for card in cards:
            if card.uuid not in known:
                found[card.uuid], refused[card.uuid] = self._index_of_new(card, present, held)
                continue
            found[card.uuid] = index = known[card.uuid]
            if index != card.index:
                self._say(card.uuid, f"NVML's index of it is {card.index} now; `index = [{index}]` goes on meaning it")
        self.refused = {uuid: why for uuid, why in refused.items() if why}
        return found

    def peek(self, cards: Iterable[Card]) -> Mapping[Uuid, int | None]:
        """Return the index by which each card is chosen, as far as is noted; changes nothing."""
        meant = dict(_read(self.host.journal.entries()))
        known = {uuid: index for index, uuid in meant.items()}
        return {card.uuid: known.get(card.uuid, None if card.index in meant else card.index) for card in cards}

    def _index_of_new(self, card: Card, present: set[Uuid], held: Callable[[Uuid], bool]) -> tuple[int | None, str]:
        former = self._meant.get(card.index)
        if former is not None and (former in present or held(former)):
            why = "is present" if former in present else "is gone, and may still have a holder"
            why = f"`index = [{card.index}]` does not mean it: it means {former}, which {why}; choose it by `uuid`"
            self._say(card.uuid, why)
            return None, why
        if former is not None:
            self._say(card.uuid, f"`index = [{card.index}]` means it from now on, in place of {former}, which is gone")
        self._note(card.index, card.uuid)
        return card.index, ""

    def _say(self, uuid: Uuid, text: str) -> None:
        if self._said.get(uuid) != text:
            self._said[uuid] = text
            self.host.log.warning("%s: %s", uuid, text)

    # --- on disk

    def _load(self) -> dict[int, Uuid]:
        """Read what a predecessor noted, whatever its section was called."""
        meant = dict(_read(self.host.journal.entries()))
        if meant:
            return meant
        for former in self.host.former_sections():
            for index, uuid in _read(former.journal.entries()):
                if index not in meant and self._write(index, uuid):
                    meant[index] = uuid
                    _remove(former.journal, index)
        return meant

    def _note(self, index: int, uuid: Uuid) -> None:
        self._meant[index] = uuid
        self._write(index, uuid)

    def _forget(self, index: int) -> None:
        del self._meant[index]
        _remove(self.host.journal, index)

    def _write(self, index: int, uuid: Uuid) -> bool:
        try:
            self.host.journal.write(_key(index), phase=_INDEX, data={"index": index, "uuid": uuid})
        except PluginError as error:
            if str(error) != self._complaint:
                self.host.log.warning("after a restart it will not be known which card an index meant: %s", error)
            self._complaint = str(error)
            return False
        return True


def _read(entries: Iterable[Entry]) -> Iterator[tuple[int, Uuid]]:
    for entry in entries:
        index: Any = entry.data.get("index")
        uuid = entry.data.get("uuid")
        if entry.phase == _INDEX and type(index) is int and isinstance(uuid, str) and entry.key == _key(index):
            yield index, Uuid(uuid)


def _remove(journal: Journal, index: int) -> None:
    with suppress(PluginError):
        journal.remove(_key(index))


def _key(index: int) -> str:
    return f"index {index}"
