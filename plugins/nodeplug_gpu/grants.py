"""What was granted here and kubelet has not told of yet.

Owns: the ids of grants, until kubelet names them as held, or for a minute: an admission may fail after its grant.
Refuses: to be asked what is free (kubelet's offer says that), and to outlive the daemon: by then kubelet has told.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeplug import DeviceId, Holding
from nodeplug_gpu.cards import Uuid

PATIENCE: Final = 60.0
"""Seconds after which a grant is forgotten that kubelet does not confirm although it answers."""


@dataclass(frozen=True, slots=True)
class _Grant:
    card: Uuid | None
    since: float


@dataclass(slots=True)
class PendingGrants:
    """The grants that wait for kubelet's word. Any thread may call."""

    _pending: dict[tuple[str, DeviceId], _Grant] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, resource: str, ids: Mapping[DeviceId, Uuid | None], now: float) -> None:
        """Note ids that a container got, each with its card."""
        with self._lock:
            self._pending.update({(resource, name): _Grant(card, now) for name, card in ids.items()})

    def settle(self, holdings: Mapping[str, Iterable[Holding]], now: float) -> None:
        """Drop what kubelet tells by now, and what it should have told."""
        told = {(name, one) for name, held in holdings.items() for holding in held for one in holding.ids}
        with self._lock:
            self._pending = {
                place: grant
                for place, grant in self._pending.items()
                if place not in told and now - grant.since <= PATIENCE
            }

    def of_card(self, uuid: Uuid, resources: Iterable[str]) -> int:
        """Return how many ids of a card wait, of some resources."""
        names = frozenset(resources)
        with self._lock:
            return sum(grant.card == uuid and name in names for (name, _), grant in self._pending.items())

    def of(self, resource: str) -> int:
        """Return how many ids of a resource wait."""
        with self._lock:
            return sum(name == resource for name, _ in self._pending)

    def cards(self) -> frozenset[Uuid]:
        """Return the cards of which something was granted."""
        with self._lock:
            return frozenset(grant.card for grant in self._pending.values() if grant.card is not None)
