"""Waiting for what other threads and processes do.

Owns: the pause between two looks, and the end of patience, which a loaded machine must not reach.
Refuses: to measure: that something was fast is no statement of a test.
"""

import time
from collections.abc import Callable
from typing import Final

_PAUSE: Final = 0.02
PATIENCE: Final = 60.0
"""Seconds: many times what anything takes on an idle machine."""


def until(
    condition: Callable[[], object], seconds: float = PATIENCE, found: Callable[[], object] | None = None
) -> None:
    """Return as soon as a condition holds.

    Args:
        condition: asked again and again, in the calling thread.
        seconds: patience.
        found: what the error tells, asked when patience is over.

    Raises:
        AssertionError: it never held.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not come to pass in {seconds:g} s{f': {found()}' if found else ''}"
        time.sleep(_PAUSE)
