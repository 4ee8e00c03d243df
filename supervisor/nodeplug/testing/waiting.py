"""Waiting for what other threads and processes do.

Owns: the pause between two checks, and the timeout, which a loaded machine must not reach.
Refuses: to measure: tests do not assert how fast something is.
"""

import time
from collections.abc import Callable
from typing import Final

_FIRST, _LONGEST = 0.02, 0.1
"""Seconds between two checks. The pause grows, because checks cost CPU time that a slow machine lacks."""
_LONGER: Final = 1.1
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
    end, pause = time.monotonic() + seconds, _FIRST
    while not condition():
        assert time.monotonic() < end, f"it did not come to pass in {seconds:g} s{f': {found()}' if found else ''}"
        time.sleep(pause)
        pause = min(pause * _LONGER, _LONGEST)
