"""Files that are created, replaced and removed in one step each.

Owns: temporary names, syncing file and folder, and the wait until a new program can be executed.
Refuses: to know who owns a file (see `nodeplug.install.ownership`) or what it is for.

libcni takes "text file busy" for success after six tries, and containerd does not notice a file that is moved in from
another folder. So every file is written under a temporary name in its own folder, then renamed.
"""

import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import Exhausted, PluginError
from nodeplug.contract.journal import sync_folder
from nodeplug.install.ownership import TEMPORARY, ForeignFile, content
from nodeplug.install.report import Report

_WRITER_TRIES: Final = 1000
_WRITER_PAUSE: Final = 0.002
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})


def temporary_in(folder: Path) -> Path:
    """Return a name for a new file: its dot hides it from kubelet, its suffix from runtimes."""
    return folder / f"{TEMPORARY}{os.urandom(6).hex()}.tmp"


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Create a file and sync it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)  # regardless of the umask
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)
    if mode & 0o111:
        wait_for_writers(path)


def wait_for_writers(path: Path) -> None:
    """Wait until nobody has a file open for writing: until then execve(2) fails with ETXTBSY.

    A child forked by this process keeps the file open until its own exec. A read lease (fcntl(2), F_SETLEASE) is
    granted only once there is no writer; on a filesystem without leases there is no wait.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(_WRITER_TRIES):
            try:
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except BlockingIOError:
                time.sleep(_WRITER_PAUSE)
            except OSError:
                return
            else:
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                return
    finally:
        os.close(descriptor)


def put_file(path: Path, data: bytes, mode: int, report: Report, may_go: Callable[[Path], bool]) -> None:
    """Give a file these bytes and this mode.

    `may_go` says whether a different file at that path may be replaced. It is asked after the new file is written and
    synced, because another installer may have run meanwhile; if one has, ForeignFile is raised.
    """
    there = os.path.lexists(path)
    if has(path, data, mode):
        report.unchanged.append(str(path))
        return
    temporary = temporary_in(path.parent)
    try:
        write_new(temporary, data, mode)
        if not there:
            _link_in(temporary, path)
        elif may_go(path):
            temporary.rename(path)
        else:
            raise _made_meanwhile(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    (report.updated if there else report.created).append(str(path))


def has(path: Path, data: bytes, mode: int) -> bool:
    """Whether a path is a regular file, not a symlink, with these bytes and this mode."""
    if path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_mode & 0o777 == mode and path.stat().st_size == len(data) and content(path) == data


def _made_meanwhile(path: Path) -> ForeignFile:
    return ForeignFile(f"{path} was made by somebody else meanwhile; install again")


def _link_in(temporary: Path, path: Path) -> None:
    """Give a file its name. Unlike a rename, link(2) cannot replace a file that somebody else has just created."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise _made_meanwhile(path) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        temporary.rename(path)


def remove(path: Path, report: Report) -> None:
    """Unlink a file, which may be gone already."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
    report.removed.append(str(path))


def failed(what: str, error: OSError) -> PluginError:
    """Return the error for a failed step of the installation."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return Exhausted(f"cannot {what} the entrypoint scripts: {error.strerror}; free space there and try again")
    place = error.filename2 or error.filename or "an entrypoint"  # a failed read names no file
    return PluginError(f"cannot {what} {place}: {error.strerror}; make its folder writable, or name another")
