"""Whose evidence it is: that of a card, or that of one of its MIG instances.

Owns: what counts against an instance alone, and which one it is; and that the ECC errors behind such a fault do not
count against the card as well.
Refuses: what evidence does to whom it is about (`health` knows).

NVML names the instance to which an XID "is attributable" (nvmlEventData_t). It names one for XIDs of every kind, so
that alone does not mean that the others are safe: an XID is an instance's own if it is `CONTAINED`, too. Whatever needs
a reset of the card is the card's, as is what is unknown, and what names no instance or is about a card without MIG.
NVIDIA's own plugin (k8s-device-plugin v0.20, internal/rm/health.go) asks for no more than the ids.

NVML counts uncorrected ECC errors by card (nvmlDeviceGetMemoryErrorCounter: by instance not for DRAM). Where memory
errors are contained, the driver reports each by an XID, too: 94 for the instance, or one that is the card's. So errors
of a divided card are kept for `EXPLAINED_WITHIN`, and count against it only if no instance had a contained fault then.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeplug_gpu.cards import Card, GpuEvent, MigInstance, Snapshot, Uuid
from nodeplug_gpu.config import Health
from nodeplug_gpu.xid import CONTAINED, severity

EXPLAINED_WITHIN: Final = 15.0
"""Seconds between an ECC error and the XID that is about it, or the other way round; an event causes a poll at once."""
_MOST_WAITING: Final = 1000


@dataclass(slots=True)
class Attribution:
    """What is known of the instances of all cards. Not safe for threads: its owner serialises calls."""

    _instances: Mapping[Uuid, tuple[MigInstance, ...]] = field(default_factory=dict)
    _waiting: deque[GpuEvent] = field(default_factory=lambda: deque(maxlen=_MOST_WAITING))
    _contained: dict[Uuid, float] = field(default_factory=dict)
    _unexplained: dict[Uuid, tuple[float, str]] = field(default_factory=dict)

    def attributed(
        self, events: Sequence[GpuEvent], snapshot: Snapshot, config: Health, now: float
    ) -> Iterator[tuple[Uuid, GpuEvent]]:
        """Yield events, each with the card or the instance that it is about.

        One about an instance that no poll has shown waits for a poll that is younger than it is.
        """
        cards = {card.uuid: card for card in snapshot.cards}
        waiting, self._waiting = self._waiting, deque(maxlen=_MOST_WAITING)
        for event in (*waiting, *events):
            if event.card is None:
                continue
            if not _contained(event, config):
                yield event.card, event
                continue
            found = self._named(event, event.card, cards.get(event.card), snapshot.taken)
            if event.card not in found:
                self._contained[event.card] = now
            for uuid in found:
                yield uuid, event

    def _named(self, event: GpuEvent, uuid: Uuid, card: Card | None, taken: float) -> tuple[Uuid, ...]:
        """Return the instances that an event names, or the card where it has none."""
        here = card.instances if card is not None else ()
        # Ids are used again. What came before the snapshot is about what the one before had under them.
        for instances in (here,) if event.time > taken else (self._instances.get(uuid, ()), here):
            if found := tuple(one.uuid for one in instances if _names(event, one)):
                return found
        if card is not None and not card.mig:
            return (uuid,)
        if event.time > taken:
            self._waiting.append(event)
        return ()

    def see(self, snapshot: Snapshot) -> None:
        """Note which instances there are now."""
        self._instances = {card.uuid: card.instances for card in snapshot.cards}

    def ecc(self, card: Uuid, reason: str, now: float) -> bool:
        """Note an ECC error; return whether it is to count at once."""
        if not self._instances.get(card):
            return True
        self._unexplained.setdefault(card, (now, reason))
        return False

    def unexplained(self, now: float) -> Iterator[tuple[Uuid, str]]:
        """Yield the ECC errors of divided cards that no contained fault explains, with the reason; each once."""
        for card, (since, reason) in list(self._unexplained.items()):
            contained = self._contained.get(card)
            explained = contained is not None and abs(contained - since) <= EXPLAINED_WITHIN
            if explained or now - since > EXPLAINED_WITHIN:
                del self._unexplained[card]
                if not explained:
                    yield card, reason


def _contained(event: GpuEvent, config: Health) -> bool:
    named = event.kind == "xid" and event.gpu_instance is not None
    return named and event.code in CONTAINED and severity(event.code, config) != "fatal"


def _names(event: GpuEvent, one: MigInstance) -> bool:
    return event.gpu_instance == one.gpu_instance and event.compute_instance in {None, one.compute_instance}
