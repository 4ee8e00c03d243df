"""The flight recorder: the last finished calls, for `nodeplug status` after something went wrong.

Owns: a ring buffer in memory, and which finished calls are recorded.
Refuses: configurations, options and results, so that no secret can get in. An error's text is kept; the contract keeps
secrets out of it.
"""

import time
from collections import deque
from typing import Any, Final

from nodeplug.contract.errors import clip
from nodeplug.hosting.call import Call
from nodeplug.observe.metrics import OK

SIZE: Final = 256
_TEXT_LIMIT: Final = 500
_NAME_LIMIT: Final = 256
_ROUTINE: Final = frozenset({"health", "inspect", "metrics", "ListDevices", "filter", "prioritize"})
"""Verbs of the daemon's own timers, and those that a scheduler asks hundreds of times a second: recorded only if they
fail."""


class Recorder:
    """Records the last `size` calls."""

    def __init__(self, size: int = SIZE) -> None:
        self._records: deque[dict[str, Any]] = deque(maxlen=size)

    def add(self, call: Call, outcome: str, error: str = "") -> None:
        """Record a call that has just finished, with Unix time; a long error is cut to 500 characters."""
        if outcome == OK and call.verb in _ROUTINE:
            return
        ended = {"seconds": round(call.age, 6), "outcome": outcome, "error": clip(error, _TEXT_LIMIT)}
        self._records.append(described(call) | ended | {"at": time.time() - call.ended_ago})

    def latest(self) -> list[dict[str, Any]]:
        """Return the recorded calls, newest first, as JSON values."""
        return list(reversed(self._records))


def described(call: Call) -> dict[str, Any]:
    """Identify a call: the request id from the log, and its object, for programs (`key`) and for people."""
    names = {"verb": call.verb, "claim": call.claim, "key": call.key, "about": call.about or call.key}
    return {"id": call.id} | {name: clip(text, _NAME_LIMIT) for name, text in names.items()}
