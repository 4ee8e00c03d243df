"""Intents on disk: one file per key, stamped with the boot id.

Owns: `<state>/journal/<plugin>/<key>.json`, written to a temporary file, synced, renamed, and the folder synced, so
that a record is whole or absent after `kill -9` or a power cut. Writes happen in the calling thread, never on the loop.
Refuses: to be the truth. The kernel comes first, then kubelet, then the journal: it says what was *intended*, for
undo, repeated calls and verbs that carry too little. Secrets are never written.
"""

import errno
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from nodeplug.contract.bounded import RECORD_LIMIT, read_bounded
from nodeplug.contract.errors import Exhausted, PluginError
from nodeplug.contract.inputs import NODE_FILE
from nodeplug.contract.removals import Removals

__all__ = ["Entry", "Journal"]

LOG: Final = logging.getLogger(__name__)
VERSION: Final = 1
_NAME_LIMIT: Final = 200
_TEMPORARY: Final = ".tmp"
_LEFTOVER_AGE: Final = 60.0
_NO_RECORD: Final = frozenset({errno.EISDIR, errno.EINVAL, errno.EFBIG, errno.ENXIO, errno.ELOOP})
"""Permanent reasons not to read a file: a directory, a pipe, a socket, gigabytes."""


def read_boot_id() -> str:
    """Return the id that the kernel drew at boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@lru_cache(maxsize=256)  # an attachment has several files, and its DEL asks for them again
def file_name(key: str) -> str:
    """Return a file name for any key: readable when short, otherwise the beginning and a digest of the whole."""
    quoted = quote(key, safe="=@+,", errors="surrogateescape").replace(".", "%2E")
    if len(quoted) <= _NAME_LIMIT:
        return quoted
    import hashlib  # noqa: PLC0415 - OpenSSL comes with it, 3 MiB in every process of a plugin

    return f"{quoted[:100]}-{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file (mode 0600), so that a crash at any instruction leaves the old bytes or the new ones.

    Raises:
        Exhausted: the disk or its quota is full.
        PluginError: the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.{os.urandom(4).hex()}{_TEMPORARY}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        kind = Exhausted if error.errno in {errno.ENOSPC, errno.EDQUOT} else PluginError
        raise kind(f"cannot write {path}: {error.strerror}; free space there or make the folder writable") from error


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file (mode 0600), so that the end of this process leaves the old bytes or the new ones.

    Not synced: for what counts only in this boot. Raises OSError.
    """
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}{_TEMPORARY}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    temporary.rename(path)


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Entry:
    """One record.

    Attributes:
        key: as written, not the file name.
        phase: the plugin's own name for how far it got.
        boot_id: of the boot that wrote it; `Journal.is_stale` compares.
        request: what was asked.
        data: what the plugin needs to continue or to undo.
    """

    key: str
    phase: str
    boot_id: str
    request: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Journal:
    """The records of one plugin; the folder is made by the first write.

    Attributes:
        folder: where they are.
        boot_id: of this boot.
        removals: records that have ended on a disk that refuses to remove them; shared by all journals of a daemon.
    """

    folder: Path
    boot_id: str = field(default_factory=read_boot_id)
    removals: Removals = field(default_factory=Removals, compare=False, repr=False)

    def write(
        self, key: str, *, phase: str, data: Mapping[str, Any] | None = None, request: Mapping[str, Any] | None = None
    ) -> Entry:
        """Write or replace a record, durably.

        Raises:
            Exhausted: the disk is full.
            PluginError: the folder cannot be written.
        """
        entry = Entry(key, phase, self.boot_id, dict(request or {}), dict(data or {}))
        document = {"version": VERSION} | {one.name: getattr(entry, one.name) for one in fields(entry)}
        text = json.dumps(document, indent=1).encode()
        if len(text) > RECORD_LIMIT:
            raise PluginError(f"a record of {len(text)} bytes is too large for the journal, which takes {RECORD_LIMIT}")
        try:
            NODE_FILE.check(text)
        except ValueError as error:
            raise PluginError(f"a record is too large for the journal: {error}") from None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise PluginError(f"cannot make the journal folder {self.folder}: {error.strerror}") from error
        self._replace(self._path(key), text)
        return entry

    def _replace(self, path: Path, text: bytes) -> None:
        if path not in self.removals:
            write_durably(path, text)
            return
        with self.removals.lock:
            write_durably(path, text)
            self.removals.forget(path)

    def read(self, key: str) -> Entry | None:
        """Return a record, or None. A damaged file counts as none and is set aside as `*.damaged`."""
        path = self._path(key)
        entry = self._load(path)
        return entry if entry is not None and entry.key == key else None

    def remove(self, key: str) -> None:
        """Remove a record, durably; succeed when there is none.

        A disk that refuses is no error: pods must be able to terminate. The record counts as removed from now on, and
        the daemon removes it as soon as the disk allows; its log and /readyz say so.
        """
        path = self._path(key)
        try:
            path.unlink()
            sync_folder(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            self.removals.forget(path)
        except OSError as error:
            self.removals.postpone(path, error)
        else:
            self.removals.forget(path)

    def count_as_removed(self, key: str, reason: str) -> None:
        """Count a record as removed from now on because its disk hangs; remove it when that responds again.

        Does not block. The caller makes sure that the record is not being written when `remove` is finally called.
        """
        self.removals.postpone(self._path(key), OSError(reason))

    def entries(self) -> tuple[Entry, ...]:
        """Return every valid record, by key. Damaged files are set aside, leftovers of a killed write removed."""
        if not self.folder.is_dir():
            return ()
        self._remove_leftovers()
        found = (self._load(path) for path in sorted(self.folder.glob("*.json")))
        return tuple(entry for entry in found if entry is not None)

    def is_stale(self, entry: Entry) -> bool:
        """Whether another boot wrote the record: its containers, mounts and links are gone."""
        return entry.boot_id != self.boot_id

    def _remove_leftovers(self) -> None:
        # A young temporary file may be a write in progress in another thread.
        for leftover in self.folder.glob(f".*{_TEMPORARY}"):
            with suppress(FileNotFoundError):
                if time.time() - leftover.stat().st_mtime > _LEFTOVER_AGE:
                    leftover.unlink()

    def _path(self, key: str) -> Path:
        return self.folder / f"{file_name(key)}.json"

    def _load(self, path: Path) -> Entry | None:
        if path in self.removals:
            return None
        try:
            text = read_bounded(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno not in _NO_RECORD:
                raise PluginError(f"cannot read {path}: {error.strerror}") from error
            self._set_aside(path, error.strerror or "")
            return None
        try:
            NODE_FILE.check(text)
            document = json.loads(text)
            if document["version"] != VERSION:
                raise ValueError(document["version"])
            entry = Entry(
                str(document["key"]),
                str(document["phase"]),
                str(document["boot_id"]),
                dict(document["request"]),
                dict(document["data"]),
            )
            if file_name(entry.key) != path.stem:  # also UnicodeEncodeError, for half of a surrogate pair
                raise ValueError(entry.key)
            return entry
        except (ValueError, KeyError, TypeError, RecursionError):
            self._set_aside(path, "its name or its JSON is not that of one")
            return None

    def _set_aside(self, path: Path, why: str) -> None:
        LOG.warning("%s is set aside as *.damaged: it is not a record: %s", path, why)
        with suppress(OSError):  # on a read-only disk it stays, and counts as none
            path.rename(path.with_suffix(".damaged"))
