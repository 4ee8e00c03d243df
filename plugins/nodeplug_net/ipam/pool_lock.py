"""The lock of a folder of addresses, which the daemon and the reference take in turn: flock(2) on `lock`."""

import errno
import fcntl
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from nodeplug import PluginError, TryAgain

_NO_FOLDER: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
"""Errors that mean that the folder does not exist."""
_UNWRITABLE: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_POLL: Final = 0.001
"""Seconds between two looks at a lock that others hold: they hold it for about that long."""
_ANSWERING: Final = 0.2
"""Seconds before the deadline at which a call gives up, so that its error arrives in time."""


class PoolLock:
    """The lock of one folder.

    Args:
        folder: `<dataDir>/<network>`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = threading.Lock()

    @contextmanager
    def held(self, *, create: bool, deadline: float) -> Iterator[bool]:
        """Hold the lock.

        Args:
            create: create the folder if it is missing.
            deadline: `time.monotonic()` until which others may hold it.

        Yields:
            Whether the folder exists.

        Raises:
            PluginError: the folder cannot be used.
            TryAgain: another call or process holds the lock until the deadline.
        """
        with self._alone(deadline):
            descriptor = self._open(create=create)
            if descriptor is None:
                yield False
                return
            try:
                self._lock(descriptor, deadline)
                yield True
            finally:
                os.close(descriptor)

    @contextmanager
    def _alone(self, deadline: float) -> Iterator[None]:
        """Let one thread at a time ask for the lock: a mutex wakes the next one, where flock(2) would be polled."""
        patience = -1 if deadline == math.inf else max(0.0, deadline - _ANSWERING - time.monotonic())
        if not self._mutex.acquire(timeout=patience):
            raise self._refusal("another call")
        try:
            yield
        finally:
            self._mutex.release()

    def _lock(self, descriptor: int, deadline: float) -> None:
        """Take the lock from other processes. The kernel wakes who waits without a limit; otherwise it is polled."""
        if deadline == math.inf:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline - _ANSWERING:
                    raise self._refusal("another process") from None
            time.sleep(_POLL)

    def _refusal(self, by: str) -> TryAgain:
        text = f"the lock of the pool {self._folder} is held by {by}"
        return TryAgain(text, details="lslocks shows which process has it")

    def _open(self, *, create: bool) -> int | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(f"{self._folder}/lock", flags, 0o600)
        except OSError as error:
            if not create and error.errno in _NO_FOLDER:
                return None
            if not create and error.errno in _UNWRITABLE:
                return self._open_to_read()
            if error.errno != errno.ENOENT:
                raise PluginError(f"cannot open the lock of {self._folder}: {error.strerror}") from error
        try:
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            return os.open(self._folder / "lock", flags, 0o600)
        except OSError as error:
            raise PluginError(f"cannot make the folder {self._folder} for addresses: {error.strerror}") from error

    def _open_to_read(self) -> int | None:
        """Open the lock read-only: on a read-only disk nothing can be reserved, but DEL has to succeed."""
        try:
            return os.open(self._folder / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PluginError(f"cannot open the lock of {self._folder}: {error.strerror}") from error
