"""How long to wait, and what counts as late.

Owns: the one factor by which all of it grows where the proof itself is tried, beside other tests on a loaded machine.
Refuses: any factor on a card: there the times are what is to be proved.
"""

import os
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "NODEPLUG_PROOF_PATIENCE"


def patient(amount: float) -> float:
    """Return a time, in whatever unit, times the factor."""
    return amount * float(os.environ.get(VARIABLE, "1"))


def until(condition: Callable[[], object], seconds: float, found: Callable[[], object] | None = None) -> None:
    """Return as soon as a condition is true.

    Raises:
        AssertionError: it never became true.
    """
    from nodeplug.testing import waiting  # noqa: PLC0415 - a second, which whoever looks for cards does not need

    waiting.until(condition, patient(seconds), found)
