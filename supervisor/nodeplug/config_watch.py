"""Noticing that the configuration may have changed.

Owns: an inotify watch for speed, and a look at the files every few seconds for certainty: a folder that was replaced,
a drop-in folder that came later and a node without inotify watches left are seen by looking alone.
Refuses: to read the files. Reading decides what a change means, and a look too many costs nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from asyncinotify import Inotify, Mask

LOG: Final = logging.getLogger(__name__)
POLL: Final = 2.0
_MASK: Final = Mask.CLOSE_WRITE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE | Mask.CREATE | Mask.ONLYDIR
Look = tuple[tuple[str, int, int, int], ...]


async def watch(path: Path, drop_ins: Path, changed: Callable[[], None], poll: float = POLL) -> None:
    """Tell of every change until cancelled.

    Args:
        path: the main file.
        drop_ins: the folder of the drop-ins; it may not exist.
        changed: called after each change, and now and then without one.
        poll: seconds between two looks.
    """
    await asyncio.gather(_by_inotify((path.parent, drop_ins), changed), _by_looking(path, drop_ins, changed, poll))


async def _by_inotify(folders: tuple[Path, ...], changed: Callable[[], None]) -> None:
    # Folders, not files: editors and ConfigMaps replace files by rename.
    try:
        with Inotify() as inotify:
            for folder in folders:
                if folder.is_dir():
                    inotify.add_watch(folder, _MASK)
            async for _ in inotify:
                changed()
    except OSError as error:
        LOG.warning("no inotify for the configuration: %s; it is looked at every few seconds", error.strerror)


async def _by_looking(path: Path, drop_ins: Path, changed: Callable[[], None], poll: float) -> None:
    last = _look(path, drop_ins)
    while True:
        await asyncio.sleep(poll)
        now = _look(path, drop_ins)
        if now != last:
            changed()
        last = now


def _look(path: Path, drop_ins: Path) -> Look:
    seen = []
    for file in (path, *sorted(drop_ins.glob("*.toml"))):
        try:
            status = file.stat()
        except OSError:
            continue
        seen.append((str(file), status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(seen)
