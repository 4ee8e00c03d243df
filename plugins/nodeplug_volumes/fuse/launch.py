"""What becomes a FUSE program: `python -IS launch.py SETTINGS`, with an open FUSE connection as descriptor CONNECTION.

Owns: what the program must not have any more: the daemon's user, groups, capabilities and mounts; and what it finds in
place of fusermount(1) and /dev/fuse.
Refuses: packages, even our own: it is a file for the bare interpreter, and executes the program in its place.

A library for FUSE that may not mount executes fusermount, which is set-user-ID root and would be of no use to a process
without new privileges. Here it finds another one, which hands over the connection that is mounted already.
"""

import ctypes
import errno
import json
import os
import resource
import stat
import sys
from typing import Any, Final

CONNECTION: Final = 10
VARIABLE: Final = "NODEPLUG_FUSE_CONNECTION"
_PLACES: Final = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin")
NAMES: Final = ("fusermount", "fusermount3")
FOLDERS: Final = ("mountpoint", "secrets", "home")
"""In the program's own /tmp, and its own. libfuse wants a mount point: nothing is mounted there."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS: Final = 0x00020000  # sched.h, CLONE_NEWNS; Python 3.11 has no os.unshare
_BIND, _RECURSIVE, _PRIVATE, _SLAVE = 1 << 12, 1 << 14, 1 << 18, 1 << 19  # linux/mount.h, MS_*
TMP: Final = "/tmp"  # noqa: S108 - the program's own: secrets, home, and what it writes meanwhile
_NO_NEW_PRIVS: Final = 38  # linux/prctl.h, PR_SET_NO_NEW_PRIVS
_DEVICE: Final = "/dev/fuse"
_SCORE: Final = "/proc/self/oom_score_adj"


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def _mount(source: str, target: str, flags: int, fs_type: str = "") -> None:
    arguments = [os.fsencode(text) for text in (source, target, fs_type)]
    _check(_LIBC.mount(*arguments, ctypes.c_ulong(flags), None), target)


def _enter(private: str, hidden: str) -> None:
    """Have mounts of one's own, from which nothing propagates to the node, and a folder as /tmp."""
    _check(_LIBC.unshare(_NEW_MOUNTS), "a mount namespace")
    try:
        _mount("", "/", _RECURSIVE | _SLAVE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _chroot_into_copy(private)
    _hide(hidden, private)
    _mount(private, TMP, _BIND)


def _chroot_into_copy(folder: str) -> None:
    """Change root into a copy of the mount tree: in a plain chroot, `/` is not a mount point that could become a slave.

    The copy needs a place that is private already: a mount on the folder, which the copy itself does not contain.
    """
    _mount("", folder, _PRIVATE)
    _mount("nodeplug", folder, 0, "tmpfs")
    copy = f"{folder}/copy"
    os.mkdir(copy)  # noqa: PTH102 - pathlib takes 5 ms to import
    _mount("/", copy, _BIND | _RECURSIVE)
    _mount("", copy, _RECURSIVE | _SLAVE)
    _check(_LIBC.umount2(os.fsencode(f"{copy}{folder}"), 0), folder)
    os.chroot(copy)
    os.chdir("/")


def _replace_programs() -> None:
    """Put our fusermount in place of the node's, for this process alone."""
    own = f"{TMP}/programs"
    paths = {os.path.realpath(f"{place}/{name}"): name for place in _PLACES for name in NAMES}
    for path, name in paths.items():
        if os.path.isfile(path):  # noqa: PTH113
            _mount(f"{own}/{name}", path, _BIND)
    # Libraries open it before they look for fusermount. It is of no use to whoever may not mount.
    if stat.S_IMODE(os.stat(_DEVICE).st_mode) & 0o006 != 0o006:  # noqa: PTH116
        _mount(f"{own}/device", _DEVICE, _BIND)


def _hide(folder: str, private: str) -> None:
    """Let go of what nodeplug has mounted for other volumes, and of the filesystem that the program serves itself.

    Where `/` is not shared, an unmount on the node would not reach the copies here, and the filesystems would live on.
    """
    with open("/proc/self/mountinfo", "rb") as stream:  # noqa: PTH123
        targets = [line.split()[4].decode("unicode_escape") for line in stream]
    for target in reversed(targets):
        if target.startswith(f"{folder}/") and not f"{private}/".startswith(f"{target}/"):
            _LIBC.umount2(os.fsencode(target), 2)  # MNT_DETACH


def _become(user: int, group: int) -> None:
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    _check(_LIBC.prctl(_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))), "no_new_privs")


def _be_limited(cgroups: list[str]) -> None:
    """Enter cgroups, and be no less likely than others to be ended when memory is short, as the daemon is."""
    for path in (*cgroups, _SCORE):
        if path != _SCORE or _read_score() < 0:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # never made: what is missing is an error
            try:
                os.write(descriptor, b"0")
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from None
            finally:
                os.close(descriptor)


def _read_score() -> int:
    with open(_SCORE, encoding="ascii") as stream:  # noqa: PTH123
        return int(stream.read())


def main(settings: dict[str, Any]) -> None:
    """Give everything up, and become the program."""
    command = settings["command"]
    try:
        _be_limited(settings["cgroups"])
        _enter(settings["private"], settings["hidden"])
        _replace_programs()
        for name, most in settings["limits"].items():
            resource.setrlimit(getattr(resource, name), (most, most))
        os.umask(0o077)
        _become(settings["user"], settings["group"])
        os.chdir(f"{TMP}/home")
        os.execvp(command[0], command)  # noqa: S606 - a program and its arguments, no shell
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        raise SystemExit(f"{command[0]} cannot be executed: {what}{error.strerror}") from None


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
