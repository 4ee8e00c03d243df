"""New namespaces, also where `/` is not a mount point.

Owns: the commands that start a program in fresh namespaces or in those of a process, and that no mount made inside of
fresh ones is ever seen outside.
Refuses: what is done in them.

The kernel changes the propagation only of mount points, and the root of a plain chroot is not one: `unshare` with any
propagation but "unchanged" fails there. A private copy of the whole tree of mounts then becomes the root. It needs a
place that is private already, and the one mount point that every such root has is `/proc`.
"""

import ctypes
import errno
import os
import shutil
import sys
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import NotReady, PluginError
from nodeplug.contract.mounts import mount, mounted_at

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS: Final = 0x00020000  # sched.h; Python 3.11 has no os.unshare
_NEW_NETWORK: Final = 0x40000000
_NO_PROC: Final = "nothing is mounted at /proc, as in a chroot: mount -t proc proc /proc, then try again"
_BIND, _RECURSIVE, _PRIVATE = 1 << 12, 1 << 14, 1 << 18  # linux/mount.h, MS_*


def command(*, network: bool, host_name: bool = False) -> list[str]:
    """Return what starts a program, given as further arguments, in a mount namespace of its own.

    An ordinary user becomes root in a user namespace, where the machine allows that.

    Args:
        network: in a network namespace of its own too.
        host_name: with a host name of its own too.

    Raises:
        NotReady: util-linux is not installed, or nothing is mounted at /proc.
    """
    if not Path("/proc/thread-self").exists():
        raise NotReady(_NO_PROC)
    unshare = shutil.which("unshare")
    if unshare is None:
        raise NotReady("this needs the tool `unshare` of util-linux; install util-linux, then try again")
    made = [unshare, *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    made += [*(["--net"] if network else []), *(["--uts"] if host_name else [])]
    if mounted_at("/") is not None:
        return [*made, "--mount", "--propagation", "private", "--"]
    return [*made, "--mount", "--propagation", "unchanged", "--", sys.executable, "-m", "nodeplug.testing.kept_mounts"]


def entering(pid: int) -> list[str]:
    """Return the command that executes a program, given as further arguments, in the namespaces of a process.

    Args:
        pid: of that process; its mount, network and host name namespaces count.
    """
    # --root: a process in a chroot has another root directory than its mount namespace.
    return ["nsenter", "-t", str(pid), "-m", "-n", "-u", "--root", "--wd", "--"]


def enter(*, network: bool) -> None:
    """Move the calling thread, and all threads and processes that it starts, into fresh namespaces.

    Args:
        network: also into a network namespace; its loopback is down.

    Raises:
        PluginError: the kernel refused.
    """
    if _LIBC.unshare(_NEW_MOUNTS | (_NEW_NETWORK if network else 0)) != 0:
        raise PluginError(f"cannot make namespaces: {os.strerror(ctypes.get_errno())}")
    keep_mounts()


def keep_mounts() -> None:
    """Let no mount of this thread's mount namespace, which is a fresh one, reach another.

    Raises:
        PluginError: the kernel refused.
        NotReady: `/` is not a mount point and nothing is mounted at `/proc`.
    """
    try:
        _change("", "/", _RECURSIVE | _PRIVATE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise PluginError(f"cannot keep mounts private: {error}") from error
        _move_to_a_copy()


def _move_to_a_copy() -> None:
    if not Path("/proc/thread-self").exists():
        raise NotReady(_NO_PROC)
    working = Path.cwd()
    try:
        _change("", "/proc", _PRIVATE)
        mount("nodeplug", "/proc", "tmpfs")  # on top of what is private, so it is private as well
        Path("/proc/copy").mkdir()
        _change("/", "/proc/copy", _BIND | _RECURSIVE)
        _change("", "/proc/copy", _RECURSIVE | _PRIVATE)
        if _LIBC.umount2(b"/proc/copy/proc", 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.chroot("/proc/copy")
        os.chdir(working)
    except OSError as error:
        raise PluginError(f"cannot make a private copy of `/`, which is not a mount point here: {error}") from error


def _change(source: str, target: str, flags: int) -> None:
    if _LIBC.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)
