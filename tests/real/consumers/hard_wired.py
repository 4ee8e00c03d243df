"""The folders that kubelet and libcni hard-wire, as mount points for private nodes.

Owns: that they are there while any private node of this machine lives, and that those which were made for one are gone
after the last.
Refuses: what lies below them: each node mounts a folder of its own there, in its own mount namespace.

To remove a folder takes the mount on it away in every namespace (rmdir(2) since Linux 3.13), hence only the last may.
"""

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_PATHS: Final = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers")
_MADE: Final = "/run/nodeplug-private-nodes"
"""Which were made, one a line. Who lives holds a shared lock on it."""


class HardWired:
    """The mount points, for one node, until it leaves; `more` are those of others that it has to itself."""

    def __init__(self, more: Sequence[str] = ()) -> None:
        self.paths = (*_PATHS, *more)
        self._file = os.open(_MADE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_SH)
        for path in self.paths:
            with suppress(FileExistsError):
                Path(path).mkdir(parents=True)
                os.write(self._file, f"{path}\n".encode())

    def leave(self) -> None:
        """Remove what was made, if no other node lives."""
        with suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in os.pread(self._file, 4096, 0).decode().split():
                with suppress(OSError):  # somebody uses it by now
                    Path(path).rmdir()
            os.truncate(self._file, 0)
        os.close(self._file)
