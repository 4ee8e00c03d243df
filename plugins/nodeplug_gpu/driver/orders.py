"""What callers of the driver ask its process to do, and the answers.

Owns: the numbers of the orders, and the callers that wait for theirs.
Refuses: the process (`process` sends what is here, and says when one has ended).
"""

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.driver.wire import LimitAnswer, LimitOrder

LONGEST: Final = 4096
"""PIPE_BUF (pipe(7)): a longer line would not be written as a whole."""


@dataclass(slots=True)
class _Waiting:
    order: LimitOrder
    sent: bool = False
    answer: LimitAnswer | None = None
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Orders:
    """The orders of one driver. Any thread."""

    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, card: Uuid, cgroup: Path, size: int) -> int:
        """Note an order; return its number."""
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = _Waiting(LimitOrder(number, card, str(cgroup), size))
            return number

    def wait(self, number: int, seconds: float, otherwise: str) -> LimitAnswer:
        """Return the answer to an order, or a failed one with a text of the caller's when there is none in time."""
        one = self._waiting[number]
        one.done.wait(seconds)
        with self._lock:
            del self._waiting[number]
        return one.answer or LimitAnswer(number, error=otherwise)

    def unsent(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and line of what was not sent yet; one that is too long is answered here."""
        with self._lock:
            fresh = [one.order for one in self._waiting.values() if not one.sent]
        for order in fresh:
            line = json.dumps(asdict(order)).encode() + b"\n"
            if len(line) <= LONGEST:
                yield order.number, line
            else:
                self.answered(LimitAnswer(order.number, error="the path of the cgroup is too long"))

    def sent(self, number: int) -> None:
        """Note that a process has an order."""
        self._mark(number, sent=True)

    def _mark(self, number: int, *, sent: bool) -> None:
        with self._lock:
            if (one := self._waiting.get(number)) is not None:  # else nobody waits for it any more
                one.sent = sent

    def answered(self, answer: LimitAnswer) -> None:
        """Give an answer to whoever waits for it."""
        with self._lock:
            one = self._waiting.get(answer.number)
        if one is not None:
            one.answer = answer
            one.done.set()

    def lost(self, reason: str, *, again: bool = False, hung: Uuid | None = None) -> None:
        """Settle what was sent to a process that has ended: the next one gets it, or it has failed.

        Args:
            reason: why it ended, as a sentence.
            again: no order has ended it, unless one about the card that hung. Of a crash that is not known, and an
                order that crashes each process would take the cards from all others.
            hung: the card about which a call hung, where one did.
        """
        with self._lock:
            orders = [one.order for one in self._waiting.values() if one.sent and not one.done.is_set()]
        for order in orders:
            if again and order.card != hung:
                self._mark(order.number, sent=False)
            else:
                why = f"the driver was asked, and its process ended: {reason}"
                self.answered(LimitAnswer(order.number, error=why))
