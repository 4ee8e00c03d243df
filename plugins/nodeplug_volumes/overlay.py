"""A writable layer over a directory that nobody writes to, for one pod.

Owns: overlay mounts (Documentation/filesystems/overlayfs.rst) whose upper layer is a filesystem of a fixed size, in a
file whose blocks are reserved.
Refuses: to keep anything. The file loses its name as soon as it is mounted, and the kernel frees it with the last user:
nothing is left after an unmount, a kill or a reboot.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug import Exhausted, PluginError, mount, unmount
from nodeplug.fields import show_quantity as show
from nodeplug_volumes import filesystem, loopdev

SMALLEST: Final = 4 << 20
"""Bytes of the smallest layer: room for the structures of ext4."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Layers:
    """The writable layers of one node.

    Attributes:
        files: where their files are, for a moment each.
        places: where their filesystems are mounted, for a moment each.
    """

    files: Path
    places: Path

    def sweep(self) -> None:
        """Remove what a killed daemon left half made; one that is still being made then fails, and is tried again."""
        for place in self.places.glob("*"):
            with suppress(PluginError, OSError):
                unmount(str(place))
                place.rmdir()
        for file in self.files.glob("*.img"):
            file.unlink(missing_ok=True)

    def mount(self, lower: str, target: str, size: int, *, group: int | None, options: Sequence[str]) -> None:
        """Mount a writable view of a directory.

        Args:
            lower: the directory; it is not changed.
            target: an existing directory.
            size: bytes that the pod may write, with what the filesystem itself needs.
            group: of the view's root, which its members may then write to; None leaves it as it is below.
            options: flags of the mount.

        Raises:
            Exhausted: the disk has no room for that.
            PluginError: a tool or the kernel refused.
        """
        below = os.open(lower, _DIRECTORY)
        try:
            with self._filesystem(size) as top:
                _make_root(top, below, group)
                own = f"lowerdir=/proc/self/fd/{below}"
                own += f",upperdir=/proc/self/fd/{top}/upper,workdir=/proc/self/fd/{top}/work"
                mount("overlay", target, "overlay", options=(*options, *own.split(",")))
        finally:
            os.close(below)

    @contextmanager
    def _filesystem(self, size: int) -> Iterator[int]:
        """Make a filesystem in a file without a name; it lives as long as the descriptor, or a mount made inside."""
        name = secrets.token_hex(8)
        file, place = self.files / f"{name}.img", self.places / name
        try:
            place.mkdir(mode=0o700, parents=True)
            self._reserve(file, size)
            filesystem.make(file, "ext4")
            with loopdev.attached(file) as loop:
                mount(loop.path, str(place), "ext4", options=("nosuid", "nodev"))
            top = os.open(place, _DIRECTORY)
            try:
                _check_mounted(top, place)
                yield top
            finally:
                os.close(top)
        except OSError as error:
            raise PluginError(f"cannot make a writable layer in {self.files}: {error.strerror}") from error
        finally:
            # The overlay has mounts of its own, which nobody else can see.
            with suppress(PluginError):
                unmount(str(place), lazy=True)
            file.unlink(missing_ok=True)
            with suppress(OSError):
                place.rmdir()

    def _reserve(self, file: Path, size: int) -> None:
        self.files.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            free, whole = filesystem.space(self.files)
            raise Exhausted(
                f"no room for a writable layer of {show(size)} in {self.files}: {show(free)} free of {show(whole)}"
            ) from error
        finally:
            os.close(descriptor)


def _check_mounted(top: int, place: Path) -> None:
    """Make sure that a sweep has not unmounted it: what a pod writes would go to the run folder, without a limit."""
    if os.fstat(top).st_dev == place.parent.stat().st_dev:
        raise PluginError(f"{place} was unmounted while it was being prepared; try again")


def _make_root(top: int, below: int, group: int | None) -> None:
    """Make the layer's folders; the view's root has the owner and the mode of the upper one."""
    status = os.fstat(below)
    os.mkdir("work", 0o700, dir_fd=top)
    os.mkdir("upper", 0o700, dir_fd=top)
    os.chown("upper", status.st_uid, status.st_gid if group is None else group, dir_fd=top)
    os.chmod("upper", (status.st_mode & 0o7777) | (0 if group is None else 0o2770), dir_fd=top)
