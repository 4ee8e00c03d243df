"""What is left out because a call about it hung: cards, and the wait for events.

Owns: which cards these are and how they are shown meanwhile, why there are no events, and for how long that lasts.
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
_MAX_ROUNDS: Final = 5
"""Doublings of the time for which something is left out."""


@dataclass(frozen=True, slots=True)
class _Hang:
    card: Card | None
    reason: str


class Hangs:
    """By NVML's index, which is stable while no card is bound or unbound.

    Attributes:
        no_events: why nobody waits for events, as a sentence; empty while somebody does.
    """

    def __init__(self, retry_after: float) -> None:
        """Make one in which nothing hangs; see `NvmlDriver` for `retry_after`."""
        self.no_events = ""
        self._retry_after = retry_after
        self._hangs: dict[int, _Hang] = {}
        self._card_rounds = self._event_rounds = 0

    def __bool__(self) -> bool:
        return bool(self._hangs or self.no_events)

    @property
    def seconds(self) -> float:
        """For how long something is left out before it is tried again."""
        rounds = min(max(self._card_rounds, self._event_rounds), _MAX_ROUNDS)
        return self._retry_after * (1 << rounds)

    def retried(self) -> None:
        """Note that a process begins anew with all: a card that hangs again is skipped for longer."""
        self._card_rounds += bool(self._hangs)

    def over(self) -> None:
        """Note a poll in which no card was skipped."""
        self._card_rounds = 0

    def leave_out_events(self, why: str, *, again: bool) -> None:
        """Wait for no events.

        Args:
            why: as a sentence.
            again: they had hardly come back.
        """
        self.no_events = why
        self._event_rounds = self._event_rounds + 1 if again else 0

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
        self.no_events = ""

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
