"""The flight recorder: the last finished calls, for `nodeplug status` after something went wrong.

Owns: a ring of fixed size in memory.
Refuses: configurations, options and results: it never sees them, so a secret cannot get in. An error's text is kept,
and the contract keeps secrets out of those.
"""

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Final

from nodeplug.contract.errors import clip
from nodeplug.hosting.call import Call

SIZE: Final = 256
_TEXT_LIMIT: Final = 500
_NAME_LIMIT: Final = 256


@dataclass(frozen=True, slots=True)
class Record:
    """One finished call.

    Attributes:
        id: the request id, as in the log.
        verb: as the caller names it.
        claim: `kind:name`.
        key: what it was about; calls of one key run one after the other.
        about: the same for people.
        seconds: from arrival to answer.
        outcome: "ok" or the error's name.
        error: the error's message, cut after 500 characters.
        at: when it ended, in seconds since the epoch.
    """

    id: str
    verb: str
    claim: str
    key: str
    about: str
    seconds: float
    outcome: str
    error: str
    at: float


class Recorder:
    """Remembers the last `size` calls."""

    def __init__(self, size: int = SIZE) -> None:
        self._records: deque[Record] = deque(maxlen=size)

    def add(self, call: Call, outcome: str, error: str = "") -> None:
        """Record a call that ended now."""
        verb, claim, key = (clip(text, _NAME_LIMIT) for text in (call.verb, call.claim, call.key))
        about, text, seconds = clip(call.about or call.key, _NAME_LIMIT), clip(error, _TEXT_LIMIT), round(call.age, 6)
        self._records.append(Record(call.id, verb, claim, key, about, seconds, outcome, text, time.time()))

    def latest(self) -> tuple[Record, ...]:
        """Return what is remembered, newest first."""
        return tuple(reversed(self._records))

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return what is remembered, newest first, for JSON."""
        return [asdict(record) for record in self.latest()]
