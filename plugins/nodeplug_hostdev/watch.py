"""Hot-plug by inotify.

Owns: one thread that watches the folders where nodes appear and vanish, and asks for a new listing.
Refuses: to list. A lost event costs one poll of the daemon, so events need not be reliable.
"""

import glob
import logging
import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from asyncinotify import Event, Inotify, Mask

_MASK: Final = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.ATTRIB | Mask.ONLYDIR
_END_PATIENCE: Final = 5.0
"""Seconds that the thread gets to end; it may be scanning folders."""

Interest = tuple[str, str]
"""A component of a glob, and the resource that it belongs to."""


def folders(patterns: Mapping[str, Sequence[str]]) -> dict[Path, set[Interest]]:
    """Return what to watch now: each existing folder on the path to a match, and the relevant names in it.

    Args:
        patterns: by resource, its globs.
    """
    watched: dict[Path, set[Interest]] = {}
    for resource, globs in patterns.items():
        for pattern in globs:
            parts = Path(pattern).parts
            for depth in range(1, len(parts)):
                above = str(Path(*parts[:depth]))
                for folder in glob.glob(above):  # noqa: PTH207 - Path.glob takes no absolute pattern
                    if Path(folder).is_dir():
                        watched.setdefault(Path(folder), set()).add((parts[depth], resource))
    return watched


class Watcher:
    """Watches until it is closed."""

    def __init__(
        self,
        patterns: Mapping[str, Sequence[str]],
        refresh: Callable[[str], None],
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        """Begin to watch.

        Args:
            patterns: by resource, its globs.
            refresh: called with a resource, from the thread, after an event that may concern it.
            log: for the reason why watching may be impossible.

        Raises:
            OSError: the kernel has no inotify instance left (fs.inotify.max_user_instances).
        """
        self._patterns = patterns
        self._refresh = refresh
        self._log = log
        self._closing = threading.Event()
        self._inotify = Inotify(sync_timeout=0)  # non-blocking: the thread waits for this and for the wake-up
        self._wake_up = os.eventfd(0)
        self._interests: dict[Path, set[Interest]] = {}
        self._watch()
        self._thread = threading.Thread(target=self._run, name="hostdev:inotify", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread at once; it closes the inotify descriptor. To be called once."""
        self._closing.set()
        os.eventfd_write(self._wake_up, 1)
        self._thread.join(timeout=_END_PATIENCE)
        if not self._thread.is_alive():
            os.close(self._wake_up)

    def _watch(self) -> None:
        self._interests = folders(self._patterns)
        for folder in self._interests:
            try:
                self._inotify.add_watch(folder, _MASK)
            except OSError as error:  # gone meanwhile, or fs.inotify.max_user_watches is used up
                self._log.warning("cannot watch %s: %s; the poll goes on", folder, error.strerror)

    def _run(self) -> None:
        waiting = select.poll()
        waiting.register(self._inotify.fd, select.POLLIN)
        waiting.register(self._wake_up, select.POLLIN)
        with self._inotify:
            while not self._closing.is_set():
                event = self._inotify.sync_get()
                if event is None:
                    waiting.poll()
                else:
                    self._take(event)

    def _take(self, event: Event) -> None:
        concerned = self._concerned(event)
        if not concerned:  # most events in /dev: a storm there must not rescan every folder
            return
        self._watch()  # the event may have created or removed a folder on the path
        for resource in sorted(concerned):
            self._refresh(resource)

    def _concerned(self, event: Event) -> set[str]:
        # Without a watch or a name the event is about a folder as a whole, or events were lost.
        if event.watch is None or event.name is None:
            return set(self._patterns)
        name = str(event.name)
        interests = self._interests.get(event.watch.path, set())
        return {resource for component, resource in interests if fnmatchcase(name, component)}
