"""Notice of sockets that come into a folder and go.

Owns: inotify, and doing without it.
Refuses: telling what happened: the owner looks for itself, so a lost event costs one of its polls.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from asyncinotify import Inotify, Mask

LOG: Final = logging.getLogger(__name__)
_SOCKET: Final = ".sock"
_NOTEWORTHY: Final = (
    Mask.CREATE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
)


class FolderWatch:
    """Wakes its owner when a socket comes into a folder or goes; without inotify the owner's polls must do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
        except OSError as error:
            LOG.warning("no inotify for %s: %s; changes are seen by polling", folder, error.strerror)

    def arm(self) -> None:
        """Watch the folder as it is now, and again after it was made anew; otherwise a no-op. May block."""
        if self._inotify is not None:
            with suppress(OSError):
                self._inotify.add_watch(self._folder, _NOTEWORTHY)

    @asynccontextmanager
    async def waking(self, event: asyncio.Event) -> AsyncIterator[None]:
        """Set `event` at each change after `arm`, for as long as the context lasts."""
        task = asyncio.create_task(self._wake(event), name=f"watch {self._folder}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if self._inotify is not None:
                self._inotify.close()

    async def _wake(self, event: asyncio.Event) -> None:
        if self._inotify is not None:
            async for change in self._inotify:
                # Not for kubelet's checkpoint, which lies there too and is written anew at each Allocate.
                if change.name is None or change.name.suffix == _SOCKET:
                    event.set()
