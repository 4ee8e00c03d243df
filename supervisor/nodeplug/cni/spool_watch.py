"""Whether the folder of deferred DELs has changed since it was read: asked before each ADD, without touching a disk.

Owns: one inotify descriptor. The kernel puts an event into its queue before the entrypoint's rename returns, so a DEL
that was kept before an ADD was sent is known when the ADD arrives.
Refuses: telling what has changed, and being needed: without inotify, or the folder, everything may have changed.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from asyncinotify import Inotify, Mask

LOG: Final = logging.getLogger(__name__)
_NOTEWORTHY: Final = (
    Mask.CREATE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
)
_EVENTS: Final = 4096


class SpoolWatch:
    """`arm` may be called from any one thread at a time, the rest from the event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inotify: Inotify | None = None
        self._armed = False

    def open(self) -> None:
        """Begin; nothing is watched before `arm`."""
        try:
            self._inotify = Inotify()
            os.set_blocking(self._inotify.fd, False)  # its NONBLOCK has the value of CLOEXEC
        except OSError as error:
            LOG.warning("no inotify for %s: %s; it is read before each ADD", self._folder, error.strerror)

    def close(self) -> None:
        """End; from now on everything may have changed."""
        self._armed = False
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def arm(self) -> None:
        """Watch the folder as it is now, also one that was made anew. May block."""
        self._armed = False
        if self._inotify is not None:
            with suppress(OSError, ValueError):  # it is not there, or the daemon ends
                self._inotify.add_watch(self._folder, _NOTEWORTHY)
                self._armed = True

    def has_changed(self) -> bool:
        """Whether anything may have changed since the last question; forgets it."""
        if self._inotify is None or not self._armed:
            return True
        changed = False
        with suppress(BlockingIOError):
            while os.read(self._inotify.fd, _EVENTS):
                changed = True
        return changed
