"""The records of volumes, written with bounded patience.

Owns: the one lane on which they are written and removed, and what happens while their disk does not answer.
Refuses: to keep a pod from ending: what goes is noted and forgotten later. What comes is refused at once instead, for
without its intent on disk a half-made mount would be found by nobody. Reading is the ledger's: a frozen disk is read.
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
"""Seconds for one write, synced: a mount fails after them, so a disk that is merely slow gets more than others do."""


class Writer:
    """Writes with bounded patience, in the order of the calls. Used from any thread but the event loop's.

    Attributes:
        lane: on which it writes.
    """

    def __init__(self, what: str, patience: float) -> None:
        self.lane = Lane(what, patience)
        self._late: dict[str, Callable[[], object]] = {}

    def run(self, key: str, work: Callable[[], object]) -> None:
        """Do a piece of work about a key, and wait for it; what was to be done later about that key is obsolete.

        Raises:
            Unanswered: it has not come back in time and may still be done, or an earlier one has not and it never is.
            Exception: what the work raised.
        """
        piece = self.lane.begin(work)
        self._late.pop(key, None)
        self.lane.wait(piece)

    def postpone(self, key: str, work: Callable[[], object]) -> None:
        """Do a piece of work when the disk answers, unless something newer about its key comes."""
        self._late[key] = work
        with suppress(Unanswered):  # no thread can be had: the record stays, for the next start
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
    """The records of one ledger. Used from the threads of requests.

    Attributes:
        ledger: the files.
    """

    ledger: Ledger
    _writer: Writer = field(default_factory=lambda: Writer("the disk with the records of volumes", PATIENCE))

    def make_mark_key(self) -> None:
        """Make the key for marks of secrets, unless there is one.

        Raises:
            Unanswered: the disk does not answer.
            OSError: the folder cannot be made.
            PluginError: the disk refuses.
        """
        self._writer.run("mark key", self.ledger.make_mark_key)

    def write(self, record: Record) -> None:
        """Write an intent, or an outcome, durably.

        Raises:
            Unanswered: the disk does not answer; forget the record, for the write may still come to pass.
            PluginError: the disk refuses.
        """
        journal, key = self.ledger.journal, record.key
        self._writer.run(key, lambda: journal.write(key, phase=record.phase, data=record.data))

    def note(self, record: Record) -> None:
        """Write what becomes of something: later when the disk does not answer now, not at all when it refuses."""
        journal, key = self.ledger.journal, record.key
        try:
            self.write(record)
        except Unanswered as error:
            LOG.warning("the record %r is brought up to date later: %s", key, error.message)
            self._writer.postpone(key, lambda: journal.write(key, phase=record.phase, data=record.data))
        except PluginError as error:  # a full disk must not keep a pod from ending
            LOG.warning("the record %r stays as it is: %s", key, error.message)

    def forget(self, record: Record) -> None:
        """Remove a record; when the disk does not answer it counts as removed, and is later."""
        journal, key = self.ledger.journal, record.key
        try:
            self._writer.run(key, lambda: journal.remove(key))
        except Unanswered as error:
            journal.count_as_removed(key, error.message)
            self._writer.postpone(key, lambda: journal.remove(key))
