"""Directories and files below a root, reached without following anything out of it.

Owns: openat2(2), which Python does not wrap: one kernel call resolves a whole path and refuses `..`, symlinks and
magic links, so there is no moment between check and use.
Refuses: paths as results. A directory is an open descriptor; /proc/self/fd/N names exactly that directory to mount(2).
"""

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import Final

from nodeplug import InvalidRequest, NotFound, NotReady, PluginError

_SYS_OPENAT2: Final = 437  # one number on every architecture but alpha
_RESOLVE: Final = 0x08 | 0x04 | 0x02  # BENEATH, NO_SYMLINKS, NO_MAGICLINKS (include/uapi/linux/openat2.h)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PARTS_LIMIT: Final = 64


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _openat2(folder: int, path: str, kind: int = os.O_DIRECTORY) -> int:
    how = _OpenHow(os.O_RDONLY | os.O_CLOEXEC | kind, 0, _RESOLVE)
    descriptor: int = _LIBC.syscall(
        ctypes.c_long(_SYS_OPENAT2), folder, os.fsencode(path), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


def parts_of(path: str) -> list[str]:
    """Split a relative path.

    Raises:
        InvalidRequest: it is absolute, goes up, or is unreasonably deep.
    """
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if path.startswith("/") or ".." in parts or "\0" in path or len(parts) > _PARTS_LIMIT:
        raise InvalidRequest(f"option path is {path[:200]!r}; it must be relative to its root, without '..'")
    return parts


def open_root(path: str) -> int:
    """Open a root of the configuration; here symlinks are the administrator's choice.

    Raises:
        NotReady: it does not exist.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NotReady(f"the root {path} cannot be opened: {error.strerror}; is its disk mounted?") from error


def open_beneath(root: int, path: str) -> int:
    """Open a directory below an open root.

    Returns:
        A descriptor that the caller closes.

    Raises:
        NotFound: there is no such directory.
        InvalidRequest: the path leads out of the root, through a symlink, or to something that is not a directory.
    """
    name = "/".join(parts_of(path)) or "."
    try:
        return _openat2(root, name)
    except OSError as error:
        raise _explain(error, path) from error


def open_file_beneath(root: int, path: str, *, or_directory: bool = False) -> int:
    """Open a regular file below an open root, for reading.

    Args:
        root: an open directory.
        path: relative to it.
        or_directory: it may be a directory, too.

    Returns:
        A descriptor that the caller closes.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: the path leads out of the root, through a symlink, or to something that is not a file.
    """
    try:
        found = _openat2(root, "/".join(parts_of(path)), os.O_NONBLOCK)  # a FIFO would wait for its writer
    except OSError as error:
        raise _explain(error, path, "file") from error
    mode = os.fstat(found).st_mode
    if not stat.S_ISREG(mode) and not (or_directory and stat.S_ISDIR(mode)):
        os.close(found)
        raise InvalidRequest(f"option path is {path!r}: it is not a regular file")
    return found


def make_beneath(root: int, path: str, mode: int, group: int | None) -> int:
    """Open a directory below an open root, creating it and its missing parents.

    Args:
        root: an open directory.
        path: relative to it.
        mode: of every directory that is created, whatever the umask.
        group: of every directory that is created, or None.

    Returns:
        A descriptor that the caller closes.

    Raises:
        InvalidRequest: as `open_beneath`.
    """
    here = os.dup(root)
    for part in parts_of(path):
        parent = here
        try:
            here = _step(parent, part, mode, group)
        except OSError as error:
            raise _explain(error, path) from error
        finally:
            os.close(parent)
    return here


def _step(parent: int, part: str, mode: int, group: int | None) -> int:
    try:
        os.mkdir(part, 0o700, dir_fd=parent)
    except FileExistsError:
        return _openat2(parent, part)
    made = _openat2(parent, part)
    try:
        if group is not None:
            os.fchown(made, -1, group)
        os.fchmod(made, mode)
    except OSError:
        os.close(made)
        raise
    return made


def same_directory(descriptor: int, path: str) -> bool:
    """Whether an open directory is the one that a path shows."""
    one, other = os.fstat(descriptor), Path(path).lstat()
    return stat.S_ISDIR(other.st_mode) and (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _explain(error: OSError, path: str, kind: str = "directory") -> PluginError:
    if error.errno == errno.ENOENT and kind == "file":
        return NotFound(f"option path is {path!r}: there is no such file below its root on this node")
    if error.errno == errno.ENOENT:
        return NotFound(f"option path is {path!r}: there is no such directory below its root; create it, or set create")
    if error.errno in {errno.EXDEV, errno.ELOOP}:
        return InvalidRequest(
            f"option path is {path!r}: it leads through a symlink or out of its root, which is refused"
        )
    if error.errno == errno.ENOTDIR:
        # Linux reports a symlink as the last component like this, because of O_DIRECTORY.
        return InvalidRequest(f"option path is {path!r}: a part of it is not a directory (a file or a symlink)")
    if error.errno == errno.ENOSYS:
        return NotReady("this kernel has no openat2(2), which came with Linux 5.6")
    return PluginError(f"option path is {path!r}: {error.strerror}")
