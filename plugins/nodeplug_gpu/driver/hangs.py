"""Cards that are skipped because a call about them hung.

Owns: which cards these are, and how they are shown meanwhile.
Refuses: processes. One card that hangs must not take down the others of the node: the next driver process makes no call
about that card, and it is shown as it was last seen, with the call as its error.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from nodeplug_gpu.cards import Card, Telemetry
from nodeplug_gpu.driver.wire import PollResult

TIMEOUT: Final = 10
"""NVML_ERROR_TIMEOUT."""


@dataclass(frozen=True, slots=True)
class _Hang:
    card: Card | None
    reason: str


class Hangs:
    """By NVML's index, which is stable while no card is bound or unbound."""

    def __init__(self) -> None:
        self._hangs: dict[int, _Hang] = {}

    @property
    def cards(self) -> tuple[int, ...]:
        """Indices of the cards to skip."""
        return tuple(sorted(self._hangs))

    @property
    def reason(self) -> str:
        """What the first of them hung in."""
        return next((hang.reason for hang in self._hangs.values()), "")

    def add(self, index: int, card: Card | None, reason: str) -> None:
        """Skip a card.

        Args:
            index: NVML's index.
            card: as it was seen last, if ever.
            reason: the call that hung, as a sentence.
        """
        self._hangs[index] = _Hang(card, reason)

    def clear(self) -> None:
        """Forget all: they are to be queried again, or the indices mean other cards now."""
        self._hangs.clear()

    def shown(self, result: PollResult) -> PollResult:
        """Return a poll with the cards that it skipped: as they were last seen, with their error."""
        seen = {card.uuid for card in result.cards}
        cards, telemetry, unreadable = list(result.cards), dict(result.telemetry), list(result.unreadable)
        for index, hang in sorted(self._hangs.items()):
            if hang.card is None:
                unreadable.append(f"card {index}: {hang.reason}")
            elif hang.card.uuid not in seen:
                cards.append(hang.card)
                telemetry[hang.card.uuid] = Telemetry(hang.reason, TIMEOUT)
        cards.sort(key=lambda card: card.index)
        return replace(result, cards=tuple(cards), telemetry=MappingProxyType(telemetry), unreadable=tuple(unreadable))
