"""Waiting for what other threads and processes do.

Owns: the pause between two checks, and the timeout, which a loaded machine must not reach.
Refuses: to measure: tests do not assert how fast something is.
"""

import time
from collections.abc import Callable
from typing import Final

_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.1
_SHARE: Final = 0.05
"""Of the time waited so far, the next pause: what takes seconds is not asked for at fifty times a second."""
PATIENCE: Final = 60.0
"""Seconds: many times what anything takes on an idle machine."""


def until(
    condition: Callable[[], object], seconds: float = PATIENCE, found: Callable[[], object] | None = None
) -> None:
    """Return as soon as a condition is true.

    Args:
        condition: called repeatedly, in the calling thread.
        seconds: the timeout.
        found: returns the text of the error after the timeout.

    Raises:
        AssertionError: it never became true.
    """
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < seconds, f"it did not come to pass in {seconds:g} s{f': {found()}' if found else ''}"
        time.sleep(min(max(_PAUSE, waited * _SHARE), _LONGEST_PAUSE))
