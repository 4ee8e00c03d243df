"""Loop devices, found by their backing file.

Owns: the ioctls of loop(4): attach with autoclear, find by the backing file's device and inode, resize, release.
Refuses: to store device numbers. A killed daemon leaves only what the kernel still shows, and autoclear releases a
device with its last user: nothing leaks. A device that pods get as such has no autoclear, since nobody may have it open
for a while; `release_idle` ends it.
"""

import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug import Exhausted, NotReady, PluginError, TryAgain, mounted_at, mounts

# include/uapi/linux/loop.h
_SET_FD: Final = 0x4C00
_CLR_FD: Final = 0x4C01
_SET_STATUS64: Final = 0x4C04
_GET_STATUS64: Final = 0x4C05
_SET_CAPACITY: Final = 0x4C07
_CONFIGURE: Final = 0x4C0A
_GET_FREE: Final = 0x4C82
_AUTOCLEAR: Final = 4
_INFO: Final = struct.Struct("=5Q4I64s64s32s2Q")
_CONFIG: Final = struct.Struct(f"=II{_INFO.size}s64x")
_ATTEMPTS: Final = 64
_NAME: Final = re.compile(r"loop[0-9]+")
_MAJOR: Final = 7
_CONTROL: Final = Path("/dev/loop-control")
_DEVICES: Final = frozenset({"devtmpfs", "tmpfs"})
"""What is mounted on /dev, on a node and in a container."""
_GOING: Final = frozenset({errno.ENXIO, errno.ENOENT})  # autoclear releases a device shortly after its last user


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop device, by its path, such as /dev/loop0."""

    path: str

    @contextmanager
    def opened(self, flags: int = os.O_RDWR) -> Iterator[int]:
        """Open the device; an open descriptor keeps autoclear from releasing it."""
        descriptor = _open_node(self.path, flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def in_use(self) -> bool:
        """Whether a mount uses the device: only then does an exclusive open fail (open(2), O_EXCL)."""
        try:
            with self.opened(os.O_RDWR | os.O_EXCL):
                return False
        except OSError as error:
            if error.errno == errno.EBUSY:
                return True
            if error.errno in _GOING:
                return False
            raise PluginError(f"cannot open {self.path}: {error.strerror}") from error

    def is_bound(self) -> bool:
        """Whether the device is bound on a file, for pods that get it as such."""
        root = f"/{Path(self.path).name}"
        return any(one.root == root and one.fs_type in _DEVICES for one in mounts())

    def take_size(self) -> None:
        """Grow the device to the size of its file."""
        try:
            with self.opened() as descriptor:
                fcntl.ioctl(descriptor, _SET_CAPACITY)
        except OSError as error:
            raise PluginError(f"cannot resize {self.path}: {error.strerror}") from error

    def release(self) -> None:
        """Detach the file; the kernel waits for the last user. Succeed if nothing is attached."""
        try:
            with self.opened(os.O_RDONLY) as descriptor:
                fcntl.ioctl(descriptor, _CLR_FD)
        except OSError as error:
            if error.errno not in _GOING:
                raise PluginError(f"cannot release {self.path}: {error.strerror}") from error


def check() -> None:
    """Check that loop devices are available here.

    Raises:
        NotReady: they are not; the message says what to do.
    """
    if not _CONTROL.exists():
        raise NotReady(
            f"there are no loop devices here: {_CONTROL} is missing; load the driver (modprobe loop), and in a "
            "container or chroot provide that file in its /dev"
        )


def find(image: Path) -> list[Loop]:
    """Return the loop devices of a backing file, by whatever path it was attached.

    Raises:
        PluginError: the image cannot be examined.
    """
    try:
        status = image.stat()
    except FileNotFoundError:
        return []
    found = []
    for attribute in sorted(Path("/sys/block").glob("loop*/loop/backing_file")):
        # The name avoids opening foreign devices; device and inode decide.
        with suppress(OSError):
            if Path(attribute.read_text(errors="surrogateescape").rstrip("\n")).name != image.name:
                continue
            loop = Loop(f"/dev/{attribute.parts[3]}")
            with loop.opened(os.O_RDONLY) as descriptor:
                data = fcntl.ioctl(descriptor, _GET_STATUS64, bytes(_INFO.size))
            device, inode = _INFO.unpack(data)[:2]
            if (device, inode) == (status.st_dev, status.st_ino):
                found.append(loop)
    return found


def bound_at(path: str) -> Loop | None:
    """Return the loop device that is bound on a file, whatever has become of its backing file."""
    found = mounted_at(path)
    name = "" if found is None or found.fs_type not in _DEVICES else found.root.removeprefix("/")
    return Loop(f"/dev/{name}") if _NAME.fullmatch(name) else None


def release_idle(image: Path) -> Loop | None:
    """Release every loop device of an image that nobody uses; return one that somebody does."""
    busy = None
    for loop in find(image):
        if loop.in_use() or loop.is_bound():
            busy = loop
        else:
            loop.release()
    return busy


def attach(image: Path) -> Loop:
    """Attach a file to a free loop device, until it is released.

    Raises:
        NotReady: there are no loop devices here.
        Exhausted: no further loop device is available.
        PluginError: the kernel refused.
    """
    loop, descriptor = _open(image, read_only=False, flags=0)
    os.close(descriptor)
    return loop


@contextmanager
def attached(image: Path, *, read_only: bool = False) -> Iterator[Loop]:
    """Attach a file to a free loop device while the block runs; a mount made inside keeps it.

    Autoclear is set in the same step as the file, so that a kill at any instruction leaves no device behind.

    Args:
        image: the file.
        read_only: attach it so that nobody can write to it through the device; it may then be on a read-only disk.

    Raises:
        NotReady: there are no loop devices here.
        Exhausted: no further loop device is available.
        PluginError: the kernel refused.
    """
    loop, descriptor = _open(image, read_only=read_only, flags=_AUTOCLEAR)
    try:
        yield loop
    finally:
        os.close(descriptor)


def _open(image: Path, *, read_only: bool, flags: int) -> tuple[Loop, int]:
    """Attach a file to a loop device; return it, and an open descriptor of it."""
    check()
    try:
        backing = os.open(image, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
    except OSError as error:
        raise PluginError(f"cannot open {image}: {error.strerror}") from error
    try:
        return _attach(backing, image, flags)
    finally:
        os.close(backing)


def _attach(backing: int, image: Path, flags: int) -> tuple[Loop, int]:
    for _ in range(_ATTEMPTS):
        loop = Loop(f"/dev/loop{_free_number()}")
        try:
            descriptor = _open_node(loop.path, os.O_RDWR)
        except OSError as error:
            raise PluginError(f"cannot open {loop.path}: {error.strerror}") from error
        try:
            _configure(descriptor, backing, image, flags)
        except OSError as error:
            os.close(descriptor)
            if error.errno == errno.EBUSY:  # another process took it between the query and this
                continue
            raise PluginError(f"cannot attach {image} to {loop.path}: {error.strerror}") from error
        return loop, descriptor
    raise TryAgain(f"no free loop device stayed free for {_ATTEMPTS} attempts; other processes attach many now")


def _configure(descriptor: int, backing: int, image: Path, flags: int) -> None:
    name = os.fsencode(image)[:63]
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, name, b"", b"", 0, 0)
    try:
        fcntl.ioctl(descriptor, _CONFIGURE, _CONFIG.pack(backing, 0, info))
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTTY, errno.ENOSYS}:
            raise
        fcntl.ioctl(descriptor, _SET_FD, backing)  # before Linux 5.8
        fcntl.ioctl(descriptor, _SET_STATUS64, info)


def _free_number() -> int:
    try:
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise PluginError(f"cannot open {_CONTROL}: {error.strerror}; is the loop driver loaded?") from error
    try:
        return fcntl.ioctl(control, _GET_FREE)
    except OSError as error:
        raise Exhausted(f"the kernel has no free loop device: {error.strerror}; see max_loop") from error
    finally:
        os.close(control)


def _open_node(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        # A container's /dev is not a devtmpfs: nodes of new loop devices do not appear in it.
        number = int(path.removeprefix("/dev/loop"))
        with suppress(FileExistsError):
            os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(_MAJOR, number))
        return os.open(path, flags | os.O_CLOEXEC)
