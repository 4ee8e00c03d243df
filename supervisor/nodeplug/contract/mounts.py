"""Mounts as the kernel reports them.

Owns: mount(2), umount2(2) and `/proc/self/mountinfo`, for the host and for volume plugins.
Refuses: to remember. Whether something is mounted is read from mountinfo each time, never from stat(2): a dead FUSE
server or NFS server makes stat fail or hang, and a bind mount on the same filesystem does not change `st_dev`.
"""

import ctypes
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import InvalidRequest, PluginError, TryAgain

__all__ = ["Mount", "bind", "mount", "mounted_at", "mounts", "unmount"]

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_FLAGS: Final = {
    "ro": 1,
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "sync": 16,
    "mand": 64,
    "dirsync": 128,
    "nosymfollow": 256,
    "noatime": 1024,
    "nodiratime": 2048,
    "silent": 1 << 15,
    "relatime": 1 << 21,
    "iversion": 1 << 23,
    "strictatime": 1 << 24,
    "lazytime": 1 << 25,
}
"""The words of mount(8) that are flags of mount(2) (linux/mount.h, MS_*)."""
_CLEARS: Final = {
    **{
        flag.removeprefix("no") if flag.startswith("no") else f"no{flag}": bit
        for flag, bit in _FLAGS.items()
        if flag not in {"ro", "sync", "dirsync", "silent"}
    },
    "rw": _FLAGS["ro"],
    "async": _FLAGS["sync"],
    "loud": _FLAGS["silent"],
    "defaults": 0,
}
"""Their opposites: each clears a flag that an earlier option set."""
_ELSEWHERE: Final = frozenset(
    {
        *("auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev", "loop"),
        *("bind", "rbind", "move", "remount", "unbindable", "runbindable"),
        *("shared", "rshared", "slave", "rslave", "private", "rprivate"),
    }
)
"""Words that mount(8) or fstab(5) handle themselves, or that are another operation of mount(2)."""
_PER_MOUNT: Final = ("nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime", "nosymfollow")
_REMOUNT: Final = 32
_BIND: Final = 4096
_DETACH: Final = 2


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo (proc(5)).

    Attributes:
        target: the mount point, unescaped.
        root: the directory of the filesystem that is mounted there (not "/" for a bind mount of a part).
        fs_type: such as "ext4".
        source: the device or server, as the kernel spells it.
        options: per-mount and per-superblock options.
        device: `major:minor` of the filesystem: with `root` it identifies the directory that a mount shows.
    """

    target: str
    root: str
    fs_type: str
    source: str
    options: tuple[str, ...]
    device: str = ""

    @property
    def read_only(self) -> bool:
        """Whether the mount point refuses writes."""
        return "ro" in self.options


def _unescape(field: str) -> str:
    if "\\" not in field:
        return field
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def mounts() -> tuple[Mount, ...]:
    """Read every mount of this process's mount namespace, in mount order."""
    rows = []
    for line in Path("/proc/thread-self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        options = tuple(before[5].split(",")) + tuple(after[2].split(","))
        rows.append(
            Mount(_unescape(before[4]), _unescape(before[3]), after[0], _unescape(after[1]), options, before[2])
        )
    return tuple(rows)


def mounted_at(path: str) -> Mount | None:
    """Return the topmost mount at exactly this path, or None. Symlinks in the parent are resolved, `path` itself not.

    The last component is never touched, so a hung or disconnected filesystem there cannot block.
    """
    parent, name = os.path.split(os.path.normpath(path))
    resolved = str(Path(os.path.realpath(parent)) / name) if name else "/"
    return next((mount for mount in reversed(mounts()) if mount.target == resolved), None)


def _call_mount(source: str, target: str, fs_type: str, flags: int, own: Sequence[str] = ()) -> None:
    arguments = [os.fsencode(text) for text in (source, target, fs_type)]
    if _LIBC.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(",".join(own)) or None) != 0:
        code = ctypes.get_errno()
        what = fs_type or ("remount" if flags & _REMOUNT else "bind")
        if own and code == errno.EINVAL:  # only the names: a value may be a password
            names = ", ".join(option.partition("=")[0] for option in own)
            what += f", which may not know one of its options {names}"
        raise PluginError(f"cannot mount {source!r} on {target!r} ({what}): {os.strerror(code)}")


def _sort_options(options: Sequence[str], *, read_only: bool) -> tuple[int, list[str]]:
    """Split the flags of mount(2) from the options of the filesystem.

    Raises:
        InvalidRequest: an option is neither.
    """
    flags, own = 0, []
    for option in options:
        if not option or option in _ELSEWHERE or option.startswith(("x-", "X-", "comment=")):
            raise InvalidRequest(
                f"mount option {option!r} means nothing to mount(2): it is for mount(8) or fstab(5); leave it out"
            )
        if option in _FLAGS:
            flags |= _FLAGS[option]
        elif option in _CLEARS:
            flags &= ~_CLEARS[option]
        else:
            own.append(option)
    return flags | read_only, own


def mount(source: str, target: str, fs_type: str, *, options: Sequence[str] = (), read_only: bool = False) -> None:
    """Mount a filesystem; `target` must exist.

    Args:
        source: a device path, or what the filesystem expects.
        target: an existing directory.
        fs_type: such as "ext4".
        options: one word each. The flags of mount(8) (`nosuid`, `noatime` ...) and their opposites (`suid`, `atime`
            ...) become flags of mount(2), a later one wins; what mount(8) or fstab(5) handle themselves (`nofail`,
            `loop`, `bind`, `x-...`) is refused; the rest goes to the filesystem, which refuses what it does not know.
        read_only: mount without write access, whatever the options say.

    Raises:
        InvalidRequest: an option is for mount(8), not for the kernel.
        PluginError: the kernel refused; the message carries its reason.
    """
    flags, own = _sort_options(options, read_only=read_only)
    _call_mount(source, target, fs_type, flags, own)


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Bind-mount a directory or file on an existing target; read-only takes a second call (mount(2), MS_REMOUNT).

    If the read-only step fails, the first one is undone: nothing stays mounted after an error.

    Raises:
        PluginError: the kernel refused.
    """
    _call_mount(source, target, "", _BIND)
    if not read_only:
        return
    try:
        # The flags that the mount has already must be repeated, or an unprivileged namespace refuses (EPERM).
        found = mounted_at(target)
        kept = sum(_FLAGS[option] for option in set(found.options if found else ()) & set(_PER_MOUNT))
        _call_mount("", target, "", _BIND | _REMOUNT | 1 | kept)
    except PluginError:
        unmount(target)
        raise


def unmount(path: str, *, lazy: bool = False) -> None:
    """Unmount everything that is stacked on a path; succeed when nothing is.

    Args:
        path: the mount point.
        lazy: detach at once and let the kernel finish later (MNT_DETACH): the last resort for a dead server.

    Raises:
        TryAgain: the mount is busy; the message says so.
        PluginError: the kernel refused for another reason.
    """
    while mounted_at(path) is not None:
        if _LIBC.umount2(os.fsencode(path), ctypes.c_int(_DETACH if lazy else 0)) == 0:
            continue
        code = ctypes.get_errno()
        if code == errno.EINVAL:  # unmounted by another process between check and call
            if mounted_at(path) is None:
                return
        elif code == errno.EBUSY:
            raise TryAgain(f"cannot unmount {path!r}: it is in use; end the processes that use it, then try again")
        raise PluginError(f"cannot unmount {path!r}: {os.strerror(code)}")
