"""Whether a folder is the one that has this node's volumes: a marker in it, and a note of that beside the state.

Owns: the marker, a file with an id that stays with the folder wherever its disk is mounted; the note, by folder.
Refuses: to take an empty mount point for a folder without volumes. What is noted and not there is away, not gone.

A folder has a marker from its first volume to its last. One that has volumes and neither marker nor note is of an
earlier version, and gets both. A marker without a note is taken over: the folder comes from another node, or the state
is new. Without a note a folder is away, too, if fstab has a disk there that is not mounted: an earlier version, which
marked nothing, may have had its volumes on it, and what lies below the mount point would lock the disk out if it were
marked.
"""

import json
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug import NotReady
from nodeplug_volumes.durable import write
from nodeplug_volumes.fstab import missing_mount

MARKER: Final = ".nodeplug-volumes"


@dataclass(frozen=True, slots=True)
class Marker:
    """The marker of one folder. Any thread.

    Attributes:
        directory: the folder.
        notes: the file with the ids of all folders, by their paths.
    """

    directory: Path
    notes: Path
    _writing: threading.Lock = field(default_factory=threading.Lock, compare=False)

    def check(self, has_volumes: Callable[[], bool]) -> None:
        """Take note of the folder, if it is to be noted.

        Args:
            has_volumes: asked where there is neither a marker nor a note, and no disk is missing.

        Raises:
            NotReady: it is not the folder that was noted, or none was and a disk of fstab is missing.
        """
        noted, found = self._noted(), self._found()
        if noted != found:
            with self._writing:  # its last volume may have been removed between the two
                noted, found = self._noted(), self._found()
        if noted:
            if found != noted:
                what = "is not the one that is noted" if found else "is missing"
                raise NotReady(
                    f"the volumes of {self.directory} are away: its marker {MARKER} {what}; is its disk "
                    f"mounted? If they are gone for good, remove {self.notes}"
                )
        elif (place := missing_mount(self.directory)) is not None:
            raise NotReady(
                f"the volumes of {self.directory} are away: fstab has a disk at {place}, and nothing is mounted there; "
                "is its disk mounted? If none belongs there, take it out of fstab"
            )
        elif found or has_volumes():
            with suppress(OSError):  # a full or read-only disk: its volumes are served all the same
                self.put()

    def put(self) -> None:
        """Mark the folder, and note it; OSError if that fails."""
        with self._writing:
            if self._noted():
                return
            found = self._found()
            if not found:
                found = uuid.uuid4().hex
                write(self.directory / MARKER, f"{found}\n".encode())
            write(self.notes, json.dumps({**self._all_noted(), str(self.directory): found}).encode())

    def drop(self, has_volumes: Callable[[], bool]) -> None:
        """Forget a folder without volumes: its disk may be replaced by a blank one."""
        with self._writing, suppress(OSError):  # else the folder stays marked
            found = self._found()
            if not found or found != self._noted() or has_volumes():
                return
            others = {path: noted for path, noted in self._all_noted().items() if path != str(self.directory)}
            write(self.notes, json.dumps(others).encode())  # first: a note alone would say that volumes are away
            (self.directory / MARKER).unlink(missing_ok=True)

    def _found(self) -> str:
        try:
            return (self.directory / MARKER).read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise NotReady(f"cannot read {self.directory / MARKER}: {error.strerror}; is its disk well?") from error

    def _noted(self) -> str:
        return str(self._all_noted().get(str(self.directory), ""))

    def _all_noted(self) -> dict[str, str]:
        try:
            found = json.loads(self.notes.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise NotReady(f"cannot read {self.notes}: {error}; remove it if all volumes are there") from error
        if not isinstance(found, dict):
            raise NotReady(f"{self.notes} has no notes of folders; remove it if all volumes are there")
        return found
