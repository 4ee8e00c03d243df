"""The latest look, and who is told about it.

Owns: the one place where a driver keeps its view and calls its observer.
Refuses: to know where looks come from.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeplug_gpu.cards import GpuEvent, View

if TYPE_CHECKING:
    from nodeplug_gpu.driver import Observer

Log = logging.LoggerAdapter[logging.Logger]


class Publisher:
    """One view at a time; written by the driver's own thread, read by any."""

    def __init__(self, log: Log) -> None:
        self.view = View()
        self.observer: Observer | None = None
        self._log = log

    def publish(self, view: View, events: Sequence[GpuEvent] = ()) -> None:
        """Replace the view, and tell the observer unless nothing but the time changed."""
        before, self.view = self.view, view
        if self.observer is None or (not events and replace(before, taken=view.taken) == view):
            return
        try:
            self.observer(view, events)
        except Exception:
            self._log.exception("a change of the cards was not taken in; the next one is told as usual")
