"""Noticing that the configuration may have changed.

Owns: looking at the files twice a second, which works however a folder or a ConfigMap is replaced.
Refuses: to read the files, to touch them on the event loop (a filesystem may hang), and to stop on an error. The reader
decides what a change means, and an unnecessary look costs nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeplug.process.aside import aside

LOG: Final = logging.getLogger(__name__)
POLL: Final = 0.5
Look = tuple[tuple[str, int, int, int], ...]


async def watch(path: Path, drop_ins: Path | None, changed: Callable[[], None], poll: float = POLL) -> None:
    """Report every possible change, and the first look, until cancelled; `drop_ins` may not exist."""
    last: Look | None = None
    told = False
    while True:
        try:
            now = await aside(lambda: _look(path, drop_ins), "look at the configuration")
        except Exception as error:
            LOG.warning("cannot check the configuration for changes: %s; retrying", error)
        else:
            # Report it again at the next look: what was read in between may have been a passing state.
            if now != last or told:
                changed()
            told, last = now != last, now
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
