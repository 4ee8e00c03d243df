"""Starts a program of MPS: `python -IS launch.py FOLDER CGROUPS PROGRAM [ARGUMENT]...`.

Owns: a mount namespace for that program, in which FOLDER, a mount point, is /dev/shm as well, unless it is empty; and
the cgroups in which the program is from then on, CGROUPS, files with a `:` between them.
Refuses: packages, even our own: it is a file for the bare interpreter, and executes the program in its place.

Only the mount on which /dev/shm lies stops propagating to the node. What the node unmounts later is unmounted here
too: a daemon that runs for months in a private copy of everything would keep the volumes of ended pods mounted.
"""

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Final

SHM: Final = "/dev/shm"  # noqa: S108 - what glibc's shm_open(3) uses
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS: Final = 0x00020000  # sched.h, CLONE_NEWNS; Python 3.11 has no os.unshare
_BIND, _RECURSIVE, _PRIVATE, _SLAVE = 1 << 12, 1 << 14, 1 << 18, 1 << 19  # linux/mount.h, MS_*


def enter(folder: str) -> None:
    """Give this process, which has one thread, a mount namespace in which a folder is /dev/shm as well.

    Args:
        folder: a mount point.

    Raises:
        OSError: the kernel refused; the message names the path.
    """
    _check(_LIBC.unshare(_NEW_MOUNTS), "a mount namespace")
    target = os.path.realpath(SHM)
    if not any(_make_slave(str(place)) for place in (Path(target), *Path(target).parents)):
        _chroot_into_copy(folder)
    _mount(folder, target, _BIND)


def join(file: str) -> None:
    """Enter a cgroup by its file of processes; raises OSError with the path."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)  # never made: what is missing is an error
    try:
        os.write(descriptor, b"0")
    except OSError as error:
        raise OSError(error.errno, error.strerror, file) from None
    finally:
        os.close(descriptor)


def _make_slave(place: str) -> bool:
    """Make a mount a slave, so that nothing propagates to the node; return whether it is a mount point at all."""
    try:
        _mount("", place, _SLAVE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _chroot_into_copy(folder: str) -> None:
    """Change root into a copy of the mount tree: in a plain chroot, `/` is not a mount point that could become a slave.

    The copy needs a place that is private already: a mount on the folder, which the copy itself does not contain.
    """
    _mount("", folder, _PRIVATE)
    _mount("nodeplug", folder, 0, "tmpfs")
    copy = Path(folder) / "copy"
    copy.mkdir()
    _mount("/", str(copy), _BIND | _RECURSIVE)
    _mount("", str(copy), _RECURSIVE | _SLAVE)
    _check(_LIBC.umount2(os.fsencode(f"{copy}{folder}"), 0), folder)
    os.chroot(copy)
    os.chdir("/")


def _mount(source: str, target: str, flags: int, fs_type: str = "") -> None:
    arguments = [os.fsencode(text) for text in (source, target, fs_type)]
    _check(_LIBC.mount(*arguments, ctypes.c_ulong(flags), None), target)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


if __name__ == "__main__":
    _, shared, cgroups, *command = sys.argv
    try:
        for file in filter(None, cgroups.split(":")):
            join(file)
        if shared:
            enter(shared)
        os.execvp(command[0], command)  # noqa: S606 - a program and its arguments, no shell
    except OSError as failure:
        what = f"{failure.filename}: {failure.strerror}"
        raise SystemExit(f"{command[0]} cannot be started with a /dev/shm and cgroups of its own: {what}") from None
