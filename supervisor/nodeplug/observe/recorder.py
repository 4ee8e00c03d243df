"""The flight recorder: the last finished calls, for `nodeplug status` after something went wrong.

Owns: a ring of fixed size in memory, and which finished calls are worth remembering.
Refuses: configurations, options and results: it never sees them, so a secret cannot get in. An error's text is kept,
and the contract keeps secrets out of those.
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
_ROUTINE: Final = frozenset({"health", "inspect", "metrics", "ListDevices"})
"""Verbs of our own timers: remembered only when they fail."""


class Recorder:
    """Remembers the last `size` calls."""

    def __init__(self, size: int = SIZE) -> None:
        self._records: deque[dict[str, Any]] = deque(maxlen=size)

    def add(self, call: Call, outcome: str, error: str = "") -> None:
        """Record a call that ended now, in seconds since the epoch; of a long error the first 500 characters."""
        if outcome == OK and call.verb in _ROUTINE:
            return
        ended = {"seconds": round(call.age, 6), "outcome": outcome, "error": clip(error, _TEXT_LIMIT)}
        self._records.append(described(call) | ended | {"at": time.time()})

    def latest(self) -> list[dict[str, Any]]:
        """Return what is remembered, newest first, for JSON."""
        return list(reversed(self._records))


def described(call: Call) -> dict[str, Any]:
    """Say which call it is: its request id as in the log, and what it is about, for programs (`key`) and people."""
    names = {"verb": call.verb, "claim": call.claim, "key": call.key, "about": call.about or call.key}
    return {"id": call.id} | {name: clip(text, _NAME_LIMIT) for name, text in names.items()}
