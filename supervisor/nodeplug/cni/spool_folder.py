"""The folder of deferred DELs: everything about them that a disk can block.

Owns: telling frames from other files, setting the latter aside, and removing finished DELs.
Refuses: the event loop (each function may block, so `spool` calls it on its own lane) and running a DEL.
"""

import errno
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.cni import codec
from nodeplug.cni.attachments import Key
from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import PluginError, Undecodable
from nodeplug.contract.journal import write_durably
from nodeplug.exec.frame import HEADER, LIMIT, Frame

LOG: Final = logging.getLogger(__name__)
_LEFTOVER_AGE: Final = 600.0
_BOOT_LIMIT: Final = 100
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors when reading a file that are not the file's fault."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """A file that holds a DEL: its frame, and its attachment."""

    path: Path
    frame: Frame
    key: Key


@dataclass(slots=True)
class Sight:
    """What one check found.

    Attributes:
        names: the frames, without finished ones.
        fresh: the new ones among them.
        staying: files of finished DELs that cannot be removed, and why.
        unreadable: files that are not a DEL and cannot be set aside, and why.
        aside: the names of all files that were set aside.
        failure: why the folder could not be read completely, or empty.
    """

    names: set[str] = field(default_factory=set)
    fresh: list[Deferred] = field(default_factory=list)
    staying: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    aside: set[str] = field(default_factory=set)
    failure: str = ""


def look(folder: Path, known: frozenset[str], done: frozenset[str], unreadable: Mapping[str, str]) -> Sight:
    """Read the folder, which may be absent, remove finished DELs, and set aside what is not a DEL.

    `unreadable` is that of the `Sight` before, so that nothing is logged twice.
    """
    sight = Sight()
    try:
        there = sorted(folder.iterdir())
        sight.aside = {path.name for path in there if path.suffix == ".damaged"}
        for path in there:
            if path.suffix != ".frame":
                continue
            if path.name in done:
                _remove(path, sight)
            elif path.name in known:
                sight.names.add(path.name)
            else:
                _take(path, sight, unreadable)
    except (FileNotFoundError, NotADirectoryError):
        return Sight()
    except OSError as error:
        sight.failure = error.strerror or str(error)
    return sight


def prepare(folder: Path) -> None:
    """Create the folder, so that an entrypoint finds it even if the daemon is down; remove leftovers of killed ones."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for leftover in folder.glob("*.tmp"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _LEFTOVER_AGE:
                leftover.unlink()


def of_earlier_boot(folder: Path, boot_id: str) -> set[str]:
    """Return the names of the DELs from an earlier boot, and record this boot."""
    note, earlier = folder.with_name(f"{folder.name}.boot"), set[str]()
    with suppress(OSError):
        if boot_id and read_bounded(note, _BOOT_LIMIT).decode("ascii", "replace") != boot_id:
            earlier = {path.name for path in folder.glob("*.frame")}
    if boot_id:
        with suppress(PluginError):  # on a read-only disk: the next start compares with an older boot
            write_durably(note, boot_id.encode())
    return earlier


def _remove(path: Path, sight: Sight) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        sight.staying[path.name] = error.strerror or str(error)


def _take(path: Path, sight: Sight, unreadable: Mapping[str, str]) -> None:
    try:
        frame = Frame.decode(read_bounded(path, HEADER.size + LIMIT))
        if codec.is_void(frame):
            _remove(path, sight)
            return
        sight.fresh.append(Deferred(path, frame, _key(frame)))
        sight.names.add(path.name)
    except OSError as error:
        if error.errno in _PASSING:
            raise
        _set_aside(path, error.strerror or str(error), sight, unreadable)
    except PluginError as error:
        _set_aside(path, str(error), sight, unreadable)


def _set_aside(path: Path, reason: str, sight: Sight, unreadable: Mapping[str, str]) -> None:
    """Rename a file that is not a DEL; if that fails, ignore the file and log it once."""
    if unreadable.get(path.name) != reason:
        LOG.error("the spooled %s is set aside: %s", path, reason)
    aside = path.with_suffix(".damaged")
    try:
        path.rename(aside)
    except OSError:
        sight.unreadable[path.name] = reason
    else:
        sight.aside.add(aside.name)


def _key(frame: Frame) -> Key:
    if frame.style != "cni" or frame.env.get("CNI_COMMAND") != "DEL":
        raise Undecodable("it is not a DEL of CNI")
    return Key(frame.name, *codec.attachment_of(frame))
