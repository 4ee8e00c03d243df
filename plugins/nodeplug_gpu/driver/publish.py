"""The latest snapshot, and its observer.

Owns: the one place where a driver keeps its snapshot and calls its observer.
Refuses: to know where snapshots come from.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeplug_gpu.cards import GpuEvent, Snapshot

if TYPE_CHECKING:
    from nodeplug_gpu.driver import Observer

Log = logging.LoggerAdapter[logging.Logger]


class Publisher:
    """One snapshot at a time; written by the driver's own thread, read by any."""

    def __init__(self, log: Log) -> None:
        self.snapshot = Snapshot()
        self.observer: Observer | None = None
        self._log = log

    def publish(self, snapshot: Snapshot, events: Sequence[GpuEvent] = ()) -> None:
        """Replace the snapshot, and call the observer unless only the time has changed."""
        before, self.snapshot = self.snapshot, snapshot
        if self.observer is None or (not events and replace(before, taken=snapshot.taken) == snapshot):
            return
        try:
            self.observer(snapshot, events)
        except Exception:
            self._log.exception("a change of the cards could not be processed")
