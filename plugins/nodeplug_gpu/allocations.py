"""Cards that were sold, for as long as somebody may hold them.

Owns: a record per card and way in which it was sold. It outlives the daemon, so that the units of a card that is gone
stay listed as unhealthy (kubelet shows a device that is no longer listed as healthy), and so that a card that the
configuration has moved is not sold anew while containers hold it the old way. Also the size of a unit while units are
held.
Refuses: to decide when a card may be forgotten; to fail: a disk that takes nothing costs the next start its knowledge.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from nodeplug import Host, PluginError
from nodeplug_gpu.cards import Card, MigInstance, Uuid
from nodeplug_gpu.config import Kind

_CARD: Final = "card"
_UNIT: Final = "unit"
_PAST: Final = 64


@dataclass(frozen=True, slots=True)
class AllocationRecord:
    """A card and how it was sold.

    Attributes:
        card: as it was seen last.
        resource: the entry's main resource.
        sharing: the entry's kind: the same name may have been another kind of thing before.
        past: UUIDs of MIG instances that it had and that may still be held, the latest last.
        terms: on which those who may hold it got it (see `terms`); None in a record that knows nothing of terms.
    """

    card: Card
    resource: str
    sharing: Kind
    past: tuple[str, ...] = ()
    terms: str | None = None

    def after(self, before: "AllocationRecord | None") -> "AllocationRecord":
        """Return the record with the instances that an earlier one had, on its terms: they end with its holders."""
        if before is None:
            return self
        terms = self.terms if before.terms is None else before.terms
        now = [one.uuid for one in self.card.instances]
        past = [*before.past, *(one.uuid for one in before.card.instances)]
        kept = tuple(uuid for uuid in dict.fromkeys(past) if uuid not in now)[-_PAST:]
        return replace(self, past=kept, terms=terms)

    @property
    def place(self) -> "Place":
        """What tells it from every other record."""
        return (self.card.uuid, self.resource, self.sharing)


Place = tuple[Uuid, str, Kind]


@dataclass(slots=True)
class AllocationRecords:
    """The records. Not safe for threads: its owner serialises."""

    host: Host
    by_key: dict[Place, AllocationRecord] = field(default_factory=dict)
    _units: dict[str, int] = field(default_factory=dict)
    _complaint: str = ""

    def load(self, *, mend: bool = True) -> None:
        """Read what a predecessor wrote; with `mend` a record that cannot be understood is dropped."""
        self.by_key.clear()
        self._units.clear()
        for entry in self.host.journal.entries():
            try:
                if entry.phase == _CARD:
                    one = _sold(entry.data)
                    self.by_key[one.place] = one
                elif entry.phase == _UNIT:
                    self._units[str(entry.data["resource"])] = max(int(entry.data["bytes"]), 1)
            except (KeyError, TypeError, ValueError):
                if mend:
                    self._remove(entry.key)

    def remember(self, sold: Iterable[AllocationRecord]) -> None:
        """Keep the cards that are new or have changed."""
        for one in sold:
            before = self.by_key.get(one.place)
            after = one.after(before)
            if before != after:
                self.by_key[one.place] = after
                self._write(_key(one.place), _CARD, asdict(after))

    def renew(self, place: Place, terms: str) -> None:
        """Sell a card on other terms from now on."""
        self.by_key[place] = replace(self.by_key[place], terms=terms)
        self._write(_key(place), _CARD, asdict(self.by_key[place]))

    def forget(self, place: Place) -> None:
        """Drop a record."""
        if self.by_key.pop(place, None) is not None:
            self._remove(_key(place))

    def unit(self, resource: str) -> int | None:
        """Return the size of a unit that was last used."""
        return self._units.get(resource)

    def keep_unit(self, resource: str, size: int) -> None:
        """Keep the size of a unit."""
        if self._units.get(resource) != size:
            self._units[resource] = size
            self._write(f"unit {resource}", _UNIT, {"resource": resource, "bytes": size})

    def _write(self, key: str, phase: str, data: Mapping[str, Any]) -> None:
        try:
            self.host.journal.write(key, phase=phase, data=data)
        except PluginError as error:
            self._complain(f"after a restart it would not be known which cards were sold: {error}")

    def _remove(self, key: str) -> None:
        try:
            self.host.journal.remove(key)
        except PluginError as error:
            self._complain(f"a card that nobody holds any more is listed again after a restart: {error}")

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self.host.log.warning("%s", text)
        self._complaint = text


def _key(place: Place) -> str:
    return f"card {' '.join(place)}"


def _sold(data: Mapping[str, Any]) -> AllocationRecord:
    card: Mapping[str, Any] = data["card"]
    instances = tuple(MigInstance(**one) for one in card["instances"])
    major, minor = card["compute_capability"]
    made = Card(**{**card, "instances": instances, "compute_capability": (int(major), int(minor))})
    if not (isinstance(made.uuid, str) and isinstance(made.memory, int) and isinstance(made.index, int)):
        raise TypeError("a card of another shape")
    if data["sharing"] not in {"exclusive", "replicas", "memory", "mig"}:
        raise ValueError("a kind of sharing that is not known")
    terms = data.get("terms")
    past = tuple(map(str, data["past"]))
    return AllocationRecord(made, str(data["resource"]), data["sharing"], past, None if terms is None else str(terms))
