"""Whether a mounted filesystem answers, found out without waiting for one that does not.

Owns: looks at mounts, each in a process that can be left behind, and the way to end a FUSE connection.
Refuses: stat(2) and statfs(2) in this process. The kernel lets no signal end a request that a server has taken and
never answers: a thread that looks would be lost, and with it the call that it works for.
"""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug import PluginError, mount, unmount

_LOOK: Final = """
import os, sys
try:
    os.stat(sys.argv[1])
    found = os.statvfs(sys.argv[1])
except OSError as error:
    print(-error.errno)
else:
    print(found.f_blocks * found.f_frsize, (found.f_blocks - found.f_bfree) * found.f_frsize,
        found.f_bavail * found.f_frsize, found.f_files, found.f_files - found.f_ffree)
"""
_STUCK: Final[dict[str, subprocess.Popen[bytes]]] = {}
"""Looks that were given up, by path; while one has not ended, the answer is known."""
_LOCK: Final = threading.Lock()
_CONNECTIONS: Final = "/sys/fs/fuse/connections"


@dataclass(frozen=True, slots=True)
class Usage:
    """What statfs(2) says, in bytes and files."""

    total: int
    used: int
    available: int
    inodes: int
    inodes_used: int


class Silent(Exception):
    """Whether a filesystem answers is not known: it has not yet."""


class Look:
    """One look at a mount. Begin it, and ask for the outcome until there is one.

    Args:
        path: of the mount.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with _LOCK:
            former = _STUCK.get(path)
            if former is not None and former.poll() is None:
                self._child = former
                return
            _STUCK.pop(path, None)
        command = [sys.executable, "-IS", "-c", _LOOK, path]
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def wait(self, seconds: float) -> Usage:
        """Return what was found.

        Raises:
            Silent: nothing after so many seconds; ask again, or give it up.
            OSError: what the filesystem answered.
        """
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Silent from None
        stream = self._child.stdout
        words = stream.read().split() if stream is not None and not stream.closed else []
        if stream is not None:
            stream.close()
        if len(words) == 5:
            return Usage(*map(int, words))
        code = -int(words[0]) if words else errno.EIO
        raise OSError(code, os.strerror(code), self._path)

    def give_up(self) -> None:
        """End it, or leave it behind if it cannot be ended; the next look finds it."""
        self._child.kill()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(0.1)
        if self._child.stdout is not None:
            self._child.stdout.close()
        if self._child.returncode is None:
            with _LOCK:
                _STUCK[self._path] = self._child


def look(path: str, patience: float) -> Usage:
    """Look once.

    Raises:
        Silent: no answer in so many seconds.
        OSError: what the filesystem answered.
    """
    one = Look(path)
    try:
        return one.wait(patience)
    except Silent:
        one.give_up()
        raise


def within(seconds: float, work: Callable[[], object]) -> bool:
    """Do some work in a thread of its own; return whether it has ended by then. It raises what the work raised."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="unmounts a volume", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    return not thread.is_alive()


def abort(device: str, folder: Path) -> None:
    """End a FUSE connection: every request that waits fails (Documentation/filesystems/fuse/fuse.rst).

    Args:
        device: of the mount, `major:minor`.
        folder: where to mount the control filesystem for a moment if the node has it nowhere.

    Raises:
        PluginError: the kernel has no control filesystem for FUSE.
    """
    name = device.rpartition(":")[2]
    if (Path(_CONNECTIONS) / name).exists():
        _abort(Path(_CONNECTIONS) / name)
        return
    place = folder / f"{name}-{time.monotonic_ns()}"
    place.mkdir(mode=0o700, parents=True)
    try:
        mount("fusectl", str(place), "fusectl", options=("nosuid", "nodev", "noexec"))
        _abort(place / name)
    finally:
        with suppress(PluginError):
            unmount(str(place), lazy=True)
        place.rmdir()


def sweep(folder: Path) -> None:
    """Remove what `abort` left in a folder when it was killed."""
    for place in folder.glob("*"):
        with suppress(PluginError, OSError):
            unmount(str(place), lazy=True)
            place.rmdir()


def _abort(connection: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):  # it has ended by itself
        (connection / "abort").write_text("1", encoding="ascii")
