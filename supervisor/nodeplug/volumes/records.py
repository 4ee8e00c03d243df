"""The records of volumes, written with bounded patience.

Owns: the one thread that writes and removes them, and what happens while their disk does not answer.
Refuses: to keep a pod from ending: what goes is noted and forgotten later. What comes is refused at once instead, for
without its intent on disk a half-made mount would be found by nobody. Reading is the ledger's: a frozen disk is read.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.errors import PluginError
from nodeplug.process.lane import Unanswered
from nodeplug.volumes import ledger as led
from nodeplug.volumes.ledger import Ledger, Target, Volume
from nodeplug.volumes.writer import Writer

LOG: Final = logging.getLogger(__name__)
PATIENCE: Final = 5.0
"""Seconds for one write, synced: a mount fails after them, so a disk that is merely slow gets more than others do."""


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

    def write_target(self, target: Target) -> None:
        """Write an intent, or an outcome, durably.

        Raises:
            Unanswered: the disk does not answer; forget the target, for the write may still come to pass.
            PluginError: the disk refuses.
        """
        self._writer.run(led.target_key(target.path), lambda: self.ledger.write_target(target))

    def write_staged(self, volume: Volume, phase: str, fs_type: str = "") -> None:
        """Write an intent, or an outcome, durably.

        Raises:
            Unanswered: the disk does not answer; forget the volume, for the write may still come to pass.
            PluginError: the disk refuses.
        """
        self._writer.run(led.volume_key(volume), lambda: self.ledger.write_staged(volume, phase, fs_type))

    def note_target(self, target: Target) -> None:
        """Write what becomes of a target: later when the disk does not answer now, not at all when it refuses."""
        self._note(led.target_key(target.path), lambda: self.ledger.write_target(target))

    def note_staged(self, volume: Volume, phase: str) -> None:
        """Write what becomes of a volume: later when the disk does not answer now, not at all when it refuses."""
        self._note(led.volume_key(volume), lambda: self.ledger.write_staged(volume, phase))

    def forget_target(self, path: str) -> None:
        """Remove a record; when the disk does not answer it counts as removed, and is later."""
        self._forget(led.target_key(path), lambda: self.ledger.forget_target(path))

    def forget_staged(self, volume: Volume) -> None:
        """Remove a record; when the disk does not answer it counts as removed, and is later."""
        self._forget(led.volume_key(volume), lambda: self.ledger.forget_staged(volume))

    def _note(self, key: str, work: Callable[[], None]) -> None:
        try:
            self._writer.run(key, work)
        except Unanswered as error:
            LOG.warning("the record %r is brought up to date later: %s", key, error.message)
            self._writer.postpone(key, work)
        except PluginError as error:  # a full disk must not keep a pod from ending
            LOG.warning("the record %r stays as it is: %s", key, error.message)

    def _forget(self, key: str, work: Callable[[], None]) -> None:
        try:
            self._writer.run(key, work)
        except Unanswered as error:
            self.ledger.journal.count_as_removed(key, error.message)
            self._writer.postpone(key, work)
