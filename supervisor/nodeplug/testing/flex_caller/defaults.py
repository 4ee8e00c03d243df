"""What kubelet does itself around a FlexVolume driver: mounts in its place, ownership, metrics, waiting.

Owns: kubelet's defaults for verbs that are not supported, SetVolumeOwnership, and the backoff of an operation.
Refuses: formatting a device: kubelet would make a filesystem on an empty one.
"""

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from nodeplug.contract.errors import PluginError
from nodeplug.contract.mounts import bind, mount
from nodeplug.testing.flex_caller.answers import FlexFailure

_READ_WRITE: Final = 0o660
_EXECUTE: Final = 0o110
_T = TypeVar("_T")


def bind_device(source: str, target: str, *, read_only: bool) -> None:
    """Stand in for a mount that is not supported: bind the device's directory (mounter-defaults.go).

    Raises:
        FlexFailure: there is no such directory: nothing was mounted for the device, or the driver has no attach.
    """
    if not Path(source).is_dir():
        raise FlexFailure(f"mount failed: exit status 32: {source} does not exist")
    bind(source, target, read_only=read_only)


def mount_device(device: str, target: str, fs_type: str, *, read_only: bool) -> None:
    """Stand in for a mountdevice that is not supported (attacher-defaults.go); without a device nothing is done.

    Raises:
        FlexFailure: it cannot be mounted.
    """
    if not device:
        return
    try:
        mount(device, target, fs_type or "ext4", options=["ro" if read_only else "rw"])
    except PluginError as error:
        raise FlexFailure(f"mountdevice failed: exit status 32: {error.message}") from error


def own(folder: Path, group: int, *, policy: str = "Always") -> None:
    """Give a whole tree to a group: chown, rw bits, and for directories x and setgid (pkg/volume, volume_linux.go).

    Kubelet ignores every error of it, and so does this; symlinks are chowned and not followed.

    Args:
        folder: the mount point.
        group: the pod's fsGroup.
        policy: the pod's fsGroupChangePolicy; "OnRootMismatch" stops when the root is right already.
    """
    if policy == "OnRootMismatch" and _is_owned(folder, group):
        return
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            with suppress(OSError):
                _own_one(Path(parent) / name, group)
    with suppress(OSError):
        _own_one(folder, group)


def _own_one(path: Path, group: int) -> None:
    found = path.lstat()
    os.chown(path, -1, group, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        return
    mask = _READ_WRITE | (_EXECUTE | stat.S_ISGID if stat.S_ISDIR(found.st_mode) else 0)
    path.chmod(stat.S_IMODE(found.st_mode) | mask)


def _is_owned(folder: Path, group: int) -> bool:
    found = folder.stat()
    mask = _READ_WRITE | _EXECUTE | stat.S_ISGID
    return found.st_gid == group and found.st_mode & mask == mask


@dataclass(slots=True)
class Backoff:
    """Exponential backoff for each operation on a volume (pkg/util/goroutinemap/exponentialbackoff).

    Attributes:
        first: seconds after the first failure.
        last: the longest wait, in seconds.
        scale: factor for the time really slept; 0 for tests that only look at `waits`.
        waits: the waits so far, unscaled, oldest first.
    """

    first: float = 0.5
    last: float = 122.0
    scale: float = 1.0
    waits: list[float] = field(default_factory=list)
    _present: dict[str, float] = field(default_factory=dict)

    def failed(self, operation: str) -> float:
        """Note a failure; return for how many seconds kubelet permits no retry."""
        before = self._present.get(operation)
        self._present[operation] = self.first if before is None else min(before * 2, self.last)
        return self._present[operation]

    def succeeded(self, operation: str) -> None:
        """Forget the failures of an operation."""
        self._present.pop(operation, None)

    def repeat(self, operation: str, work: Callable[[], _T], tries: int, failure: type[Exception] = FlexFailure) -> _T:
        """Do something until it succeeds, with at most `tries` attempts and kubelet's waits between them.

        Args:
            operation: its name: failures of others do not slow it down.
            work: what.
            tries: after so many failures the last one is raised.
            failure: what is repeated; anything else is raised at once.

        Raises:
            FlexFailure: of the last try; or what `failure` says.
        """
        for left in reversed(range(tries)):
            try:
                done = work()
            except failure:
                seconds = self.failed(operation)
                if not left:
                    raise
                self.waits.append(seconds)
                time.sleep(seconds * self.scale)
            else:
                self.succeeded(operation)
                return done
        raise ValueError(f"{operation}: at least one try is needed")
