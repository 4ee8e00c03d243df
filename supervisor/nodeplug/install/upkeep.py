"""Whether the installed files are still there and intact.

Owns: the record of what is installed on this node (`<state>/installed.json`: a digest per path), and comparing the disk
with it. A file that is missing, truncated, or changed but still marked was ours and may be repaired; one that was
replaced is foreign and only reported.
Refuses: to repair (see `nodeplug.install.keeper`), and to read an intact file again until it changes.
"""

import hashlib
import json
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from nodeplug.config import Paths
from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import write_durably
from nodeplug.install.ownership import (
    CAPABILITIES,
    LARGEST,
    NOT_OURS,
    content,
    executable,
    is_our_link,
    our_drivers,
    our_entrypoints,
)
from nodeplug.install.scripts import MARKER, PROGRAM, is_ours, leader

Record = Mapping[Path, str]
"""Digests of installed files, by path."""
_EXECUTABLE: Final = 0o111
_RECORD: Final = "installed.json"
_VERSION: Final = 1


def take_stock(paths: Paths) -> dict[Path, str]:
    """Return the digests of our installed files: scripts, the programs they start, and answers to `init`.

    A script is read only once, so that the digest is that of the bytes found to be ours, even if it is replaced
    meanwhile.
    """
    drivers = list(our_drivers(paths.flexvolume))
    places = [*our_entrypoints(paths.cni_bin), *(folder / executable(folder.name) for folder in drivers)]
    found = {path: data for path in places if is_ours(data := _read_file(path))}
    beside = {leader(data) for data in found.values()} | {folder / CAPABILITIES for folder in drivers}
    found |= {
        path: data
        for path in beside
        if {paths.cni_bin, paths.flexvolume} & {*path.parents} and (data := _read_file(path))
    }
    return {path: _digest(data) for path, data in found.items()}


def _read_file(path: Path) -> bytes:
    """Read a regular file; anything else, or a file that is gone, reads as empty."""
    with suppress(FileNotFoundError):
        if path.is_file() and not path.is_symlink():
            return content(path)
    return b""


def read_record(paths: Paths) -> dict[Path, str] | None:
    """Return the record, or None if none can be read."""
    try:
        document = json.loads(read_bounded(paths.state / _RECORD))
        if document["version"] != _VERSION:
            return None
        return {Path(name): str(digest) for name, digest in document["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_record(paths: Paths, record: Record) -> None:
    """Write the record, or remove it if nothing is installed. Without a record, the files on disk are trusted."""
    path = paths.state / _RECORD
    with suppress(OSError, PluginError):
        if not record:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = {str(name): digest for name, digest in sorted(record.items())}
        write_durably(path, json.dumps({"version": _VERSION, "files": files}, indent=1).encode())


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that differs from what was installed."""

    path: Path
    kind: Literal["missing", "damaged", "foreign"]

    def __str__(self) -> str:
        if self.kind == "foreign":
            return (
                f"{self.path} was replaced by a program that is not nodeplug's; `nodeplug install --force` takes the "
                "name back, or stop claiming it"
            )
        return f"{self.path} is {self.kind}; `nodeplug install` repairs it"


@dataclass(slots=True)
class Inspection:
    """Compares the disk with the record, repeatedly. Used from one thread at a time."""

    _right: dict[Path, tuple[object, ...]] = field(default_factory=dict)

    def faults(self, record: Record) -> list[Fault]:
        """Return every file that differs from what was installed."""
        found = ((path, self._look(path, digest)) for path, digest in sorted(record.items()))
        return [Fault(path, kind) for path, kind in found if kind is not None]

    def _look(self, path: Path, digest: str) -> Literal["missing", "damaged", "foreign"] | None:
        try:
            status = path.lstat()
            identity = (digest, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)
            if self._right.get(path) == identity:
                return None
            if not stat.S_ISREG(status.st_mode):
                return "damaged" if is_our_link(path) else "foreign"
            data = read_bounded(path, LARGEST)
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            return "foreign" if error.errno in NOT_OURS else "damaged"
        wanted = 0 if path.name == CAPABILITIES else _EXECUTABLE
        if _digest(data) == digest and status.st_mode & wanted == wanted:
            self._right[path] = identity
            return None
        return "damaged" if _was_ours(path, data) else "foreign"


def _was_ours(path: Path, data: bytes) -> bool:
    """Whether a file that differs from what was installed bears our mark, or is the rest of one that did."""
    named = path.name == CAPABILITIES or path.name.startswith(PROGRAM)
    return named or is_ours(data) or not data.strip(b"\0") or _is_torn(data)


def _is_torn(data: bytes) -> bool:
    head, _, second = data.partition(b"\n")
    return head.startswith(b"#!") and b"\n" not in second and MARKER.startswith(second) and bool(second)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
