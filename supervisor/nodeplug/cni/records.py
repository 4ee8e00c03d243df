"""The records of attachments, for use on the event loop, and in the thread of an ADD or a DEL.

Owns: the lane that reads and writes them, the writes that wait for a hung disk, and which records cannot be trusted
meanwhile. In memory, as /run is, nothing hangs: the thread of a call writes itself, and two switches of threads less.
Refuses: files (`attachments` does those) and to fail a call: records are not the truth.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from nodeplug.cni.attachments import Attachment, Attachments, Begun, Key
from nodeplug.process.lane import Lane, Unanswered

LOG: Final = logging.getLogger(__name__)
_AGAIN: Final = 0.5
"""Seconds between two checks whether the disk responds again."""


@dataclass(slots=True)
class Records:
    """The records in one folder. Event loop only, except `is_unsettled` and `begin`.

    Attributes:
        at_once: whether the thread of a call may write.
    """

    attachments: Attachments
    at_once: bool = field(init=False)
    _lane: Lane = field(default_factory=lambda: Lane("the folder of attachment records"))
    _adding: dict[Key, int] = field(default_factory=dict)
    _late: dict[Key, Callable[[], None]] = field(default_factory=dict)
    _catching_up: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.at_once = self.attachments.are_in_memory

    def begin(self, begun: Begun) -> None:
        """Record in the thread of an ADD that it begins; not if the disk hangs."""
        if self.at_once:
            self.attachments.begin(begun)
            return
        with suppress(Unanswered):
            self._lane.wait(self._lane.begin(lambda: self.attachments.begin(begun)))

    def written(self, key: Key) -> None:
        """Forget what a hung disk was still to be told of a key: the thread of a call has written something newer."""
        self._late.pop(key, None)

    async def find(self, key: Key) -> Attachment | None:
        """Return the record of a key, or None; Unanswered if the disk hangs."""
        return await self._lane.run(lambda: self.attachments.find(key))

    async def host_of(self, key: Key) -> tuple[int, int] | None:
        """Return the host namespace of an ADD, or None if nothing is recorded; Unanswered if the disk hangs."""
        return await self._lane.run(lambda: self.attachments.host_of(key))

    async def keep(self, attachment: Attachment) -> None:
        """Record an attachment; later if the disk hangs."""
        await self._write(attachment.key, lambda: self.attachments.record(attachment))

    async def forget(self, key: Key) -> bool:
        """Remove the record of a key; later if the disk hangs. Return whether it is gone now."""
        return await self._write(key, lambda: self.attachments.forget(key))

    async def collect(self, work: Callable[[], None]) -> None:
        """Remove what a GC has declared invalid, unless the disk hangs: the next GC repeats it."""
        try:
            await self._lane.run(work)
        except Unanswered as error:
            LOG.warning("GC has removed no record of an attachment: %s", error)

    @contextmanager
    def adding(self, key: Key) -> Iterator[None]:
        """Mark an ADD as in progress until its record is written."""
        self._adding[key] = self._adding.get(key, 0) + 1
        try:
            yield
        finally:
            self._adding[key] -= 1
            if not self._adding[key]:
                del self._adding[key]

    def is_unsettled(self, key: Key) -> bool:
        """Whether the record of a key may be older than the attachment. Thread-safe."""
        return key in self._adding or key in self._late

    def is_adding(self, where: tuple[str, str, str]) -> bool:
        """Whether an ADD is in progress, of any plugin, for a network, container id and interface."""
        return any((key.network, key.container_id, key.ifname) == where for key in list(self._adding))

    async def _write(self, key: Key, work: Callable[[], None]) -> bool:
        self._late.pop(key, None)  # this write is newer
        try:
            await self._lane.run(work)
        except Unanswered as error:
            LOG.warning("the record of attachment %s is updated later: %s", key, error)
            self._late[key] = work
            if self._catching_up is None:
                self._catching_up = asyncio.create_task(self._catch_up(), name="late records of attachments")
            return False
        return True

    async def _catch_up(self) -> None:
        """Do the postponed writes as soon as the disk responds; the write that hung may be done twice."""
        while self._late:
            await asyncio.sleep(_AGAIN)
            for key, work in [] if self._lane.stuck else list(self._late.items()):
                with suppress(Unanswered):
                    if self._late.get(key) is work:
                        await self._lane.run(work)
                        if self._late.get(key) is work:
                            del self._late[key]
        self._catching_up = None
