"""What is executed, as fanotify(7) reports it: needs CAP_SYS_ADMIN and Linux 5.0."""

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

_LIBC = ctypes.CDLL(None, use_errno=True)
_FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_UNLIMITED_QUEUE = 0x1, 0x2, 0x10
_FAN_MARK_ADD, _FAN_MARK_MOUNT, _FAN_MARK_FILESYSTEM = 0x1, 0x10, 0x100
_FAN_OPEN_EXEC = 0x1000
_EVENT = struct.Struct("=IBBHQii")  # fanotify_event_metadata
_READ = 1 << 16

Identity = tuple[int, int]
"""The device and the number of a file, which are the same in every mount namespace."""


class Executions:
    """The files that processes execute.

    Args:
        folders: every file of the filesystems that they are in is reported.
        everywhere: also what is executed in other mount namespaces than this process's.

    Raises:
        OSError: the kernel or a missing right forbids it.
    """

    def __init__(self, folders: Iterable[str], *, everywhere: bool) -> None:
        self._fd = _check(_LIBC.fanotify_init(_FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_UNLIMITED_QUEUE, os.O_RDONLY))
        for folder in folders:
            mask = ctypes.c_uint64(_FAN_OPEN_EXEC)
            flags = _FAN_MARK_ADD | (_FAN_MARK_FILESYSTEM if everywhere else _FAN_MARK_MOUNT)
            _check(_LIBC.fanotify_mark(self._fd, flags, mask, -1, folder.encode()))

    def drain(self) -> Iterator[tuple[int, Identity]]:
        """Give the process and the file of each execution since the last call."""
        with suppress(BlockingIOError):
            while data := os.read(self._fd, _READ):
                for start in range(0, len(data), _EVENT.size):
                    *_, descriptor, pid = _EVENT.unpack_from(data, start)
                    status = os.fstat(descriptor)
                    os.close(descriptor)
                    yield pid, (status.st_dev, status.st_ino)


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
