"""What a filesystem stores of a file: copying it in an instant, copying it as it is, and what it shares with others.

Owns: the ioctls for reflinks (ioctl_ficlone(2)) and for the map of extents (Documentation/filesystems/fiemap.rst).
Refuses: to know what the files are.
"""

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from typing import Final

from nodeplug import PluginError

_CLONE: Final = 0x40049409
_MAP: Final = 0xC020660B
_MAP_HEAD: Final = struct.Struct("=QQIIII")
_EXTENT: Final = struct.Struct("=QQQQQIIII")
_LAST: Final = 0x1
_SHARED: Final = 0x2000
_AT_ONCE: Final = 128
_CHUNK: Final = 16 << 20
_UNABLE: Final = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM})
"""What a filesystem without reflinks says, or one to which the other file does not belong."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def clone(source: int, target: int) -> bool:
    """Let a new file share everything with another one; return False if their filesystem cannot.

    It is one point in time: what was written before is in the copy, and nothing that is written after.

    Raises:
        OSError: the disk is full, or fails.
    """
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError as error:
        if error.errno in _UNABLE:
            return False
        raise
    return True


def stored(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data: begin and end, in bytes. What lies between are holes (lseek(2), SEEK_DATA)."""
    end, size = 0, os.fstat(descriptor).st_size
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, end


def copy(source: int, target: int, told: Callable[[int], bool]) -> bool:
    """Copy the data of a file into a new one, holes as holes; return False if it was told to stop.

    Args:
        source: a descriptor to read.
        target: a descriptor of an empty file to write.
        told: is told how far it is, in bytes of the source, and returns whether to go on.

    Raises:
        OSError: the disk is full, or fails.
    """
    os.ftruncate(target, os.fstat(source).st_size)
    for begin, end in stored(source):
        at = begin
        while at < end:
            if not told(at):
                return False
            written = os.copy_file_range(source, target, min(_CHUNK, end - at), at, at)
            if not written:
                raise OSError(errno.EIO, "the file became shorter while it was copied")
            at += written
    return True


def shared(descriptor: int) -> int:
    """Return how many bytes of a file other files share; 0 where the filesystem has no map or shares nothing."""
    total, start = 0, 0
    while True:
        head = _MAP_HEAD.pack(start, (1 << 64) - 1 - start, 0, 0, _AT_ONCE, 0)
        answer = bytearray(head + bytes(_EXTENT.size * _AT_ONCE))
        try:
            fcntl.ioctl(descriptor, _MAP, answer)
        except OSError as error:
            if error.errno in _UNABLE:
                return 0
            raise
        mapped = _MAP_HEAD.unpack_from(answer)[3]
        flags = 0
        for number in range(mapped):
            found = _EXTENT.unpack_from(answer, _MAP_HEAD.size + number * _EXTENT.size)
            logical, length, flags = found[0], found[2], found[5]
            total += length if flags & _SHARED else 0
            start = logical + length
        if not mapped or flags & _LAST:
            return total


def sync_filesystem(path: str) -> None:
    """Write what a mounted filesystem holds in memory (syncfs(2)).

    Raises:
        PluginError: it cannot be opened or written.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise PluginError(f"cannot open {path}: {error.strerror}") from error
    try:
        if _LIBC.syncfs(descriptor) != 0:
            raise PluginError(f"cannot write what {path} holds in memory: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)
