"""The records of volumes, written from the event loop with bounded patience.

Owns: the lane on which they are written and removed, one after another, and what could not be while their disk did not
answer (it is as soon as it does).
Refuses: to keep a pod from ending: what goes is noted and forgotten later. What comes is refused at once instead, for
without its intent on disk a half-made mount would be found by nobody. Reading is the ledger's: a frozen disk is read.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.errors import PluginError
from nodeplug.process.lane import Lane, Unanswered
from nodeplug.volumes import ledger as led
from nodeplug.volumes.ledger import Ledger, Target, Volume

LOG: Final = logging.getLogger(__name__)
PATIENCE: Final = 5.0
"""Seconds for one write, synced: a mount fails after them, so a disk that is merely slow gets more than others do."""
_AGAIN: Final = 0.5
"""Seconds between two looks at whether the disk answers again."""


@dataclass(slots=True)
class Records:
    """The records of one ledger. Used from the event loop alone.

    Attributes:
        ledger: the files.
    """

    ledger: Ledger
    _lane: Lane = field(default_factory=lambda: Lane("the disk with the records of volumes", PATIENCE))
    _late: dict[str, Callable[[], None]] = field(default_factory=dict)
    _catching_up: asyncio.Task[None] | None = None

    async def make_mark_key(self) -> None:
        """Make the key for marks of secrets, unless there is one.

        Raises:
            Unanswered: the disk does not answer.
            OSError: the folder cannot be made.
            PluginError: the disk refuses.
        """
        await self._lane.run(self.ledger.make_mark_key)

    async def write_target(self, target: Target) -> None:
        """Write an intent, or an outcome, durably.

        Raises:
            Unanswered: the disk does not answer; forget the target, for the write may still come to pass.
            PluginError: the disk refuses.
        """
        await self._write(led.target_key(target.path), lambda: self.ledger.write_target(target))

    async def write_staged(self, volume: Volume, phase: str, fs_type: str = "") -> None:
        """Write an intent, or an outcome, durably.

        Raises:
            Unanswered: the disk does not answer; forget the volume, for the write may still come to pass.
            PluginError: the disk refuses.
        """
        await self._write(led.volume_key(volume), lambda: self.ledger.write_staged(volume, phase, fs_type))

    async def note_target(self, target: Target) -> None:
        """Write what becomes of a target: later when the disk does not answer now, not at all when it refuses."""
        await self._note(led.target_key(target.path), lambda: self.ledger.write_target(target))

    async def note_staged(self, volume: Volume, phase: str) -> None:
        """Write what becomes of a volume: later when the disk does not answer now, not at all when it refuses."""
        await self._note(led.volume_key(volume), lambda: self.ledger.write_staged(volume, phase))

    async def forget_target(self, path: str) -> None:
        """Remove a record; when the disk does not answer it counts as removed, and is later."""
        await self._forget(led.target_key(path), lambda: self.ledger.forget_target(path))

    async def forget_staged(self, volume: Volume) -> None:
        """Remove a record; when the disk does not answer it counts as removed, and is later."""
        await self._forget(led.volume_key(volume), lambda: self.ledger.forget_staged(volume))

    async def _write(self, key: str, work: Callable[[], None]) -> None:
        self._late.pop(key, None)  # what comes now is newer
        await self._lane.run(work)

    async def _note(self, key: str, work: Callable[[], None]) -> None:
        try:
            await self._write(key, work)
        except Unanswered as error:
            LOG.warning("the record %r is brought up to date later: %s", key, error.message)
            self._postpone(key, work)
        except PluginError as error:  # a full disk must not keep a pod from ending
            LOG.warning("the record %r stays as it is: %s", key, error.message)

    async def _forget(self, key: str, work: Callable[[], None]) -> None:
        try:
            await self._write(key, work)
        except Unanswered as error:
            self.ledger.journal.count_as_removed(key, error.message)
            self._postpone(key, work)

    def _postpone(self, key: str, work: Callable[[], None]) -> None:
        self._late[key] = work
        if self._catching_up is None:
            self._catching_up = asyncio.create_task(self._catch_up(), name="late records of volumes")

    async def _catch_up(self) -> None:
        """Write what is late, as soon as the disk answers; work that it held meanwhile may be done twice."""
        while self._late:
            await asyncio.sleep(_AGAIN)
            for key, work in [] if self._lane.stuck else list(self._late.items()):
                if self._late.get(key) is work:
                    await self._do_late(key, work)
        self._catching_up = None

    async def _do_late(self, key: str, work: Callable[[], None]) -> None:
        try:
            await self._lane.run(work)
        except Unanswered:
            return
        except Exception as error:
            LOG.warning("the record %r stays as it is: %s", key, error)
        if self._late.get(key) is work:
            del self._late[key]
