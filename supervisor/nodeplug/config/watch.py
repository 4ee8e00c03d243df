"""Noticing that the configuration may have changed.

Owns: an inotify watch for speed, and a look at the files every few seconds for certainty: a folder that was replaced,
a drop-in folder that came later and a node without inotify watches left are seen by looking alone.
Refuses: to read the files, to touch them from the event loop, since a filesystem may hang, and to end: what fails is
tried again. Reading decides what a change means, and a look too many costs nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from asyncinotify import Inotify, Mask

from nodeplug.process.aside import aside

LOG: Final = logging.getLogger(__name__)
POLL: Final = 2.0
_MASK: Final = Mask.CLOSE_WRITE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE | Mask.CREATE | Mask.ONLYDIR
Look = tuple[tuple[str, int, int, int], ...]


async def watch(path: Path, drop_ins: Path | None, changed: Callable[[], None], poll: float = POLL) -> None:
    """Tell of every change, and now and then without one, until cancelled; `drop_ins` may not exist."""
    folders = [path.parent, *([drop_ins] if drop_ins is not None else [])]
    await asyncio.gather(_by_inotify(folders, changed), _by_looking(path, drop_ins, changed, poll))


async def _by_inotify(folders: Collection[Path], changed: Callable[[], None]) -> None:
    # Folders, not files: editors and ConfigMaps replace files by rename.
    try:
        with Inotify() as inotify:
            await aside(lambda: _add(inotify, folders), "watch the configuration")
            async for _ in inotify:
                changed()
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else error
        LOG.warning("inotify is not available for the configuration: %s; polling it instead", reason)


def _add(inotify: Inotify, folders: Collection[Path]) -> None:
    for folder in folders:
        if folder.is_dir():
            inotify.add_watch(folder, _MASK)


async def _by_looking(path: Path, drop_ins: Path | None, changed: Callable[[], None], poll: float) -> None:
    last: Look | None = None
    while True:
        try:
            now = await aside(lambda: _look(path, drop_ins), "look at the configuration")
        except Exception as error:
            LOG.warning("cannot check the configuration for changes: %s; retrying", error)
        else:
            if now != last:  # the first look too: it may have changed since it was read
                changed()
            last = now
        await asyncio.sleep(poll)


def _look(path: Path, drop_ins: Path | None) -> Look:
    files = [path]
    if drop_ins is not None:
        files.append(drop_ins)  # the folder itself: it may vanish
        with suppress(OSError):
            files += sorted(file for file in drop_ins.iterdir() if file.suffix == ".toml")
    return tuple(mark for file in files for mark in _marks(file))


def _marks(file: Path) -> Look:
    try:
        status = file.stat()
    except OSError:
        return ()
    return ((str(file), status.st_ino, status.st_mtime_ns, status.st_size),)
