"""Starts a program of MPS with another /dev/shm: `python -IS launch.py FOLDER PROGRAM [ARGUMENT]...`.

Owns: a mount namespace for that program, in which FOLDER, a mount point, is /dev/shm as well.
Refuses: packages, also our own: it is a file for the interpreter alone, and gives its process to the program.

Only the mount on which /dev/shm lies is cut off from the node. What the node unmounts later goes here too: a daemon
that lives for months in a private copy of everything would keep the volumes of ended pods mounted.
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
    if not any(_cut_off(str(place)) for place in (Path(target), *Path(target).parents)):
        _move_to_a_copy(folder)
    _mount(folder, target, _BIND)


def _cut_off(place: str) -> bool:
    """Keep what is mounted on a mount from the node; tell whether the place is a mount point at all."""
    try:
        _mount("", place, _SLAVE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _move_to_a_copy(folder: str) -> None:
    """Make a copy of the tree of mounts the root: here, in a plain chroot, `/` is no mount point that could be cut off.

    The copy needs a mount that is private already: one on the folder, which the copy then shows without it.
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
    _, shared, *command = sys.argv
    try:
        enter(shared)
        os.execvp(command[0], command)  # noqa: S606 - a program and its arguments, no shell
    except OSError as failure:
        raise SystemExit(f"no /dev/shm of its own for {command[0]}: {failure.filename}: {failure.strerror}") from None
