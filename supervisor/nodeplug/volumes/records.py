"""The records of volumes, written with a time limit.

Owns: the one lane on which they are written and removed, and what happens while their disk does not respond.
Refuses: to keep a pod from ending: removals are postponed. New records are refused instead, because without its intent
on disk a half-made mount would never be found. Reading is left to the ledger: a frozen disk can be read.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.errors import PluginError
from nodeplug.process.lane import Lane, Unanswered
from nodeplug.volumes.ledger import Ledger, Record

LOG: Final = logging.getLogger(__name__)
PATIENCE: Final = 5.0
"""Seconds for one synced write. A mount fails when it takes longer, so a slow disk gets more time than elsewhere."""


class Writer:
    """Writes with a time limit, in the order of the calls. Any thread but the event loop's."""

    def __init__(self, what: str, patience: float) -> None:
        self.lane = Lane(what, patience)
        self._late: dict[str, Callable[[], object]] = {}

    def run(self, key: str, work: Callable[[], object]) -> None:
        """Do some work about a key and wait for it; it replaces what was postponed for that key.

        Raises:
            Unanswered: it has timed out and may still be done; or an earlier one has, and it will never be done.
            Exception: what the work raised.
        """
        piece = self.lane.begin(work)
        self._late.pop(key, None)
        self.lane.wait(piece)

    def postpone(self, key: str, work: Callable[[], object]) -> None:
        """Do some work when the disk responds, unless newer work for its key comes first."""
        self._late[key] = work
        with suppress(Unanswered):  # no thread is available: the record stays until the next start
            self.lane.begin(lambda: self._catch_up(key), whenever=True)

    def _catch_up(self, key: str) -> None:
        work = self._late.pop(key, None)
        try:
            if work is not None:
                work()
        except Exception as error:
            LOG.warning("the record %r stays as it is: %s", key, error)


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one ledger. Used from the threads of requests."""

    ledger: Ledger
    _writer: Writer = field(default_factory=lambda: Writer("the disk with the records of volumes", PATIENCE))

    def make_mark_key(self) -> None:
        """Make the key for marks of secrets if there is none; Unanswered if the disk does not respond."""
        self._writer.run("mark key", self.ledger.make_mark_key)

    def write(self, record: Record) -> None:
        """Write an intent, or an outcome, durably.

        Raises:
            Unanswered: the disk does not respond; forget the record, because it may still be written.
            PluginError: the write failed.
        """
        journal, key = self.ledger.journal, record.key
        self._writer.run(key, lambda: journal.write(key, phase=record.phase, data=record.data))

    def note(self, record: Record) -> None:
        """Write an outcome: later if the disk does not respond now, and not at all if the write fails."""
        journal, key = self.ledger.journal, record.key
        try:
            self.write(record)
        except Unanswered as error:
            LOG.warning("the record %r is brought up to date later: %s", key, error.message)
            self._writer.postpone(key, lambda: journal.write(key, phase=record.phase, data=record.data))
        except PluginError as error:  # a full disk must not keep a pod from ending
            LOG.warning("the record %r stays as it is: %s", key, error.message)

    def forget(self, record: Record) -> None:
        """Remove a record; if the disk does not respond, it counts as removed, and is removed later."""
        journal, key = self.ledger.journal, record.key
        try:
            self._writer.run(key, lambda: journal.remove(key))
        except Unanswered as error:
            journal.count_as_removed(key, error.message)
            self._writer.postpone(key, lambda: journal.remove(key))
