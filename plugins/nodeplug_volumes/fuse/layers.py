"""Mounts over mounts: how pods get the filesystem of a program that was started anew.

Owns: the one propagation flag and the one unmount that nodeplug's own calls lack, and what other mount namespaces see.
Refuses: to look into any filesystem: mountinfo and the targets' parents are all that is read.
"""

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeplug import PluginError, bind, mounts

_PRIVATE: Final = 1 << 18  # linux/mount.h, MS_PRIVATE
_DETACH: Final = 2
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def make_private(path: str) -> None:
    """Keep what is mounted on a mount from its copies, and each copy in a group of its own; PluginError if refused."""
    if _LIBC.mount(b"", os.fsencode(path), b"", ctypes.c_ulong(_PRIVATE), None) != 0:
        raise PluginError(f"cannot make {path} private: {os.strerror(ctypes.get_errno())}")


def mount_over(source: str, target: str, *, read_only: bool) -> None:
    """Bind a directory on top of the dead mount of a pod.

    Of several dead ones all but the lowest are unmounted before: that is the one that containers have as their own, and
    through which the new one reaches them.

    Raises:
        PluginError: the kernel refused.
    """
    name = os.path.realpath(Path(target).parent) + "/" + Path(target).name
    layers = [one for one in mounts() if one.target == name]
    for _ in layers[1:]:
        _LIBC.umount2(os.fsencode(target), _DETACH)
    if layers:  # else the pod ends just now
        bind(source, target, read_only=read_only)


def uncovered(devices: Sequence[str], source: str) -> int:
    """Return how many mount namespaces show a filesystem of one of these devices, with nothing mounted over it.

    Args:
        devices: of filesystems that have ended. The kernel gives a number again once nobody sees its filesystem.
        source: which all of them have.
    """
    if not devices:
        return 0
    seen, count = set(), 0
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            namespace = (process / "ns" / "mnt").readlink() if process.name.isdecimal() else None
            if namespace is not None and namespace not in seen:
                seen.add(namespace)
                count += _shows(process / "mountinfo", devices, source)
    return count


def _shows(mountinfo: Path, devices: Sequence[str], source: str) -> bool:
    rows = [line.split(" ", 5) for line in mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()]
    below = {(parent, target) for _, parent, _, _, target, _ in rows}
    return any(
        device in devices and f" {source} " in rest and (own, target) not in below
        for own, _, device, _, target, rest in rows
    )
