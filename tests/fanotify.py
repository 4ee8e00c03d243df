"""What is executed, as fanotify(7) reports it: needs CAP_SYS_ADMIN and Linux 5.0."""

import ctypes
import os
import struct
from collections.abc import Iterable
from contextlib import suppress

_LIBC = ctypes.CDLL(None, use_errno=True)
_FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_UNLIMITED_QUEUE = 0x1, 0x2, 0x10
_FAN_MARK_ADD, _FAN_MARK_MOUNT = 0x1, 0x10
_FAN_OPEN_EXEC = 0x1000
_EVENT = struct.Struct("=IBBHQii")  # fanotify_event_metadata
_READ = 1 << 16


class Executions:
    """The files that processes execute, seen through the mounts of some folders in this process's mount namespace.

    Args:
        folders: every file of the mounts that they are in is reported.

    Raises:
        OSError: the kernel or a missing right forbids it.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        self._fd = _check(_LIBC.fanotify_init(_FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_UNLIMITED_QUEUE, os.O_RDONLY))
        for folder in folders:
            mask, flags = ctypes.c_uint64(_FAN_OPEN_EXEC), _FAN_MARK_ADD | _FAN_MARK_MOUNT
            _check(_LIBC.fanotify_mark(self._fd, flags, mask, -1, folder.encode()))

    def drain(self) -> set[str]:
        """Return the paths of what was executed since the last call."""
        found: set[str] = set()
        with suppress(BlockingIOError):
            while data := os.read(self._fd, _READ):
                for start in range(0, len(data), _EVENT.size):
                    descriptor = _EVENT.unpack_from(data, start)[5]
                    found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
                    os.close(descriptor)
        return found


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
