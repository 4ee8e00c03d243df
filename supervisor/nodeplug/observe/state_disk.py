"""Whether the state folder is writable, by trying.

Owns: a thread that keeps writing a file there, so that /readyz reports a read-only, full or frozen disk before the next
pod fails; and the removals that wait for such a disk.
Refuses: the event loop, which a frozen filesystem would block, and to repair a disk.
"""

import errno
import logging
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.contract.removals import Removals

LOG: Final = logging.getLogger(__name__)
_PERIOD: Final = 5.0
_PATIENCE: Final = 10.0
_NO_NAMELESS: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR})
"""Errors of O_TMPFILE on a filesystem without unnamed files, where only the removals show the state."""


@dataclass(slots=True)
class StateDisk:
    """The disk of the state folder. One thread writes, any thread reads: each attribute is set in one assignment."""

    folder: Path
    removals: Removals = field(default_factory=Removals)
    _refusal: str = ""
    _asked: float = 0.0

    def watch(self) -> None:
        """Keep trying until the process ends."""
        threading.Thread(target=self._watch, name="state disk", daemon=True).start()

    @property
    def reason(self) -> str:
        """Why the folder is not writable; empty if it is."""
        asked = self._asked
        refusal = self._refusal
        if asked and time.monotonic() - asked > _PATIENCE:
            refusal = f"a write has not ended for {time.monotonic() - asked:.0f} s"
        refusal = refusal or self.removals.refusal
        if not refusal:
            return ""
        waiting = f"; {len(self.removals)} records wait there to be removed" if self.removals else ""
        return f"the state folder {self.folder} cannot be written: {refusal}{waiting}; make it writable, or free space"

    def look(self) -> None:
        """Try once. May block."""
        self._asked = time.monotonic()
        refusal = self._try()
        self._asked = 0.0
        if refusal and refusal != self._refusal:
            LOG.error(
                "the state folder %s cannot be written: %s; pods can stop, but none can start", self.folder, refusal
            )
        elif self._refusal and not refusal:
            LOG.info("the state folder %s can be written again", self.folder)
        self._refusal = refusal
        if not refusal:
            self.removals.retry()

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(_PERIOD)

    def _try(self) -> str:
        """Write one byte to an unnamed file, which leaves nothing behind and needs no sync."""
        try:
            descriptor = os.open(self.folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the folder was removed; `Daemon._keep_folders` creates it again
            return ""
        except OSError as error:
            return "" if error.errno in _NO_NAMELESS else error.strerror or str(error)
        try:
            os.write(descriptor, b".")
        except OSError as error:
            return error.strerror or str(error)
        finally:
            os.close(descriptor)
        return ""
