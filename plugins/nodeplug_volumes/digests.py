"""The digest of an image file: computed once, with its progress in the log.

Owns: SHA-256 of an open file, and a note of each result that holds while the file is unchanged (device, inode, size,
time of the last write and of the last change).
Refuses: to notice a write to a file that is mounted already, and one that leaves both times as they were: root can do
that, and root owns the images.
"""

import hashlib
import json
import logging
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug import InvalidRequest, PluginError, TryAgain
from nodeplug.fields import show_quantity as show

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PIECE: Final = 1 << 20
_LARGE: Final = 256 << 20
"""Bytes from which a reader of the log wants to know what takes so long."""
_INTERVAL: Final = 10.0
_NOTES_LIMIT: Final = 1000


def checked_form(text: str) -> str:
    """Return a digest as it was written.

    Raises:
        InvalidRequest: it is none.
    """
    if text and not _DIGEST.fullmatch(text):
        raise InvalidRequest(
            f"option digest is {text[:80]!r}; it must be sha256: and 64 hexadecimal digits, as `sha256sum` prints them"
        )
    return text


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of the images of one node.

    Attributes:
        folder: of the notes; made when needed.
        log: hears of the progress.
    """

    folder: Path
    log: logging.LoggerAdapter[logging.Logger]

    def check(self, descriptor: int, name: str, wanted: str) -> None:
        """Check an open file, reading it whole unless that was done before.

        Args:
            descriptor: of the file; its offset is not used.
            name: for people.
            wanted: such as "sha256:...".

        Raises:
            InvalidRequest: the file has another digest.
            TryAgain: it was written to meanwhile.
            PluginError: it cannot be read.
        """
        found = self._noted(descriptor) or self._computed(descriptor, name)
        if found != wanted:
            raise InvalidRequest(
                f"image {name} has the digest {found}, and {wanted} is asked for: the file was replaced or damaged, or "
                "the digest is of another one"
            )

    def _noted(self, descriptor: int) -> str:
        with suppress(OSError, ValueError):
            note = json.loads(self._note(descriptor).read_text(encoding="ascii"))
            if isinstance(note, dict) and note.get("state") == _state(descriptor):
                return str(note.get("digest"))
        return ""

    def _computed(self, descriptor: int, name: str) -> str:
        before = _state(descriptor)
        try:
            digest = f"sha256:{self._read(descriptor, name)}"
        except OSError as error:
            raise PluginError(f"image {name} cannot be read: {error.strerror}") from error
        if _state(descriptor) != before:
            raise TryAgain(f"image {name} was written to while its digest was computed; wait until it is complete")
        try:
            self._write(self._note(descriptor), json.dumps({"state": before, "digest": digest}))
        except OSError as error:
            self.log.warning("the digest of image %s is computed again the next time: %s", name, error.strerror)
        return digest

    def _read(self, descriptor: int, name: str) -> str:
        size, done, algorithm = os.fstat(descriptor).st_size, 0, hashlib.sha256()
        said = time.monotonic()
        if size >= _LARGE:
            self.log.info("image %s is checked by its digest: %s are read, once", name, show(size))
        while piece := os.pread(descriptor, _PIECE, done):
            algorithm.update(piece)
            done += len(piece)
            if time.monotonic() - said >= _INTERVAL:
                said = time.monotonic()
                self.log.info("image %s: %s of %s are checked", name, show(done), show(size))
        return algorithm.hexdigest()

    def _note(self, descriptor: int) -> Path:
        status = os.fstat(descriptor)
        return self.folder / f"{status.st_dev}-{status.st_ino}.json"

    def _write(self, note: Path, text: str) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        notes = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for other in notes[: max(0, len(notes) - _NOTES_LIMIT)]:
            other.unlink(missing_ok=True)
        fresh = note.with_suffix(f".{time.monotonic_ns()}")
        fresh.write_text(text, encoding="ascii")
        fresh.replace(note)


def _state(descriptor: int) -> list[int]:
    status = os.fstat(descriptor)
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
