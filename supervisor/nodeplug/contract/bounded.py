"""Reads whole files up to a limit: those that a configuration names, or that others can write.

A pipe or a device may never end, and a sparse file of gigabytes costs nothing until it is read.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

__all__ = ["read_bounded"]

RECORD_LIMIT: Final = 16 << 20
"""Bytes of one record of the daemon's own."""


def read_bounded(path: Path, limit: int = RECORD_LIMIT) -> bytes:
    """Read a regular file.

    Raises:
        OSError: it cannot be read; EFBIG: it has more than `limit` bytes; EISDIR or EINVAL: it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, and {limit} at most are read", str(path))
        with os.fdopen(os.dup(descriptor), "rb") as stream:
            return stream.read(limit)
    finally:
        os.close(descriptor)
