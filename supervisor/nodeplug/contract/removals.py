"""Records that are no longer needed but cannot be removed, because the disk refuses.

Owns: which files count as removed although they are still there, and the retries. Pods must be able to terminate on a
disk that is read-only or broken: what the kernel no longer has is gone, whatever can be written.
Refuses: to outlive the process. After a restart such a record is read again; it says what was intended, and the reader
asks the kernel.
"""

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Removals:
    """The removals that are still due. Any thread may call it.

    Attributes:
        lock: keeps a record that is being rewritten from being removed.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    _due: dict[Path, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, path: object) -> bool:
        return path in self._due

    @property
    def refusal(self) -> str:
        """One of the removals that are due, with the reason why the disk refused it; empty if there is none."""
        return next((f"{path}: {reason}" for path, reason in list(self._due.items())), "")

    def postpone(self, path: Path, error: OSError) -> None:
        """Count a file as removed from now on, and retry later."""
        reason = error.strerror or str(error)
        if self._due.get(path) != reason:
            LOG.warning("cannot remove %s: %s; it counts as removed, and will be as soon as possible", path, reason)
        self._due[path] = reason

    def forget(self, path: Path) -> None:
        """Count a file as present again: it was rewritten."""
        self._due.pop(path, None)

    def retry(self) -> None:
        """Remove what can be removed now. May block: not on the event loop."""
        for path in list(self._due):
            with self.lock, suppress(OSError):
                if path in self._due:
                    path.unlink(missing_ok=True)
                    del self._due[path]
                    LOG.info("removed %s, which was no longer needed", path)
