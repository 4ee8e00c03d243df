"""Filesystems in image files: what is in one, and the host's tools that create, check and grow them.

Owns: recognition by superblock, mkfs, fsck and resize for ext4, xfs and btrfs, and messages for what the tools say.
Refuses: to format anything but a new file (the caller creates one), mounting, and shells.
"""

import errno
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final, Literal

from nodeplug import Exhausted, InvalidRequest, PluginError, TryAgain
from nodeplug.fields import show_quantity as show

FsType = Literal["ext4", "xfs", "btrfs"]
FS_TYPES: Final[tuple[FsType, ...]] = ("ext4", "xfs", "btrfs")
SMALLEST: Final[Mapping[FsType, int]] = {"ext4": 1 << 20, "xfs": 300 << 20, "btrfs": 128 << 20}
"""Bytes below which the tools refuse to make one (mkfs.xfs(8), mkfs.btrfs(8))."""
_BTRFS_MAGIC_AT: Final = (64 << 10) + 0x40
_EXT_MAGIC_AT: Final = 1024 + 0x38
_TIMEOUT: Final = 100.0
"""Seconds for one tool at which nobody looks: less than the deadline of volume_stage, so that it ends before that."""
_KILLED: Final = 2.0
"""Seconds that a tool has to end after SIGKILL."""
_LOOK_EVERY: Final = 0.5
Look = Callable[[str, int], bool]
"""Told the name and the process of a tool that works for long, again and again; False ends it."""
_CORRECTED: Final = 3
"""e2fsck(8): 1 = errors corrected, 2 = the system should be rebooted (not for an unmounted image)."""
_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType({"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"})


def identify(image: Path) -> FsType | Literal["", "unknown"]:
    """Tell what an image holds: a filesystem, nothing at all (""), or something unknown.

    Raises:
        PluginError: it cannot be read.
    """
    try:
        with image.open("rb") as stream:
            head = stream.read(4096)
            if head[:4] == b"XFSB":
                return "xfs"
            if head[_EXT_MAGIC_AT : _EXT_MAGIC_AT + 2] == b"\x53\xef":
                return "ext4"
            stream.seek(_BTRFS_MAGIC_AT)
            if stream.read(8) == b"_BHRfS_M":
                return "btrfs"
            return "unknown" if _has_data(stream.fileno()) else ""
    except OSError as error:
        raise PluginError(f"cannot read {image}: {error.strerror}") from error


def _has_data(descriptor: int) -> bool:
    try:
        os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole
            return False
        raise
    return True


def make(image: Path, fs_type: FsType, look: Look | None = None) -> None:
    """Create a filesystem in a new file.

    Args:
        image: the file.
        fs_type: what to make.
        look: at the tool, which may take as long as it likes then.

    Raises:
        InvalidRequest: the tool refuses the size.
        Exhausted: the disk is full.
        PluginError: the tool is missing or failed.
    """
    if fs_type == "ext4":
        # The file is a hole: nothing to discard. Lazy inode tables: no minutes of zeros for a large volume.
        command = ["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1", str(image)]
    elif fs_type == "xfs":
        command = ["mkfs.xfs", "-q", "-f", "-K", str(image)]
    else:
        command = ["mkfs.btrfs", "-q", "-f", "-K", str(image)]
    status, text = run(command, look=look)
    if status == 0:
        return
    _refuse_full(image, text)
    small = "larger than" in text or "too small" in text or "minimum size" in text
    kind = InvalidRequest if small else PluginError
    raise kind(f"{command[0]} cannot make a filesystem of {show(image.stat().st_size)} in {image.name}: {text}")


@contextmanager
def locked(image: Path) -> Iterator[int]:
    """Lock an image for one caller, and for the tools that inherit the descriptor.

    A tool outlives a daemon that is killed; its lock keeps the next daemon from mounting what it still writes.

    Raises:
        TryAgain: it is being mounted or copied, or a tool of an earlier daemon still works on it.
        PluginError: the image cannot be opened.
    """
    try:
        descriptor = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise PluginError(f"cannot open {image}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    except BlockingIOError:
        raise TryAgain(
            f"{image} is still being checked, grown or copied for an earlier call; ask again after that"
        ) from None
    finally:
        os.close(descriptor)


def check(image: Path, fs_type: FsType, lock: int, look: Look | None = None) -> bool:
    """Check an unmounted image, repair what can be repaired automatically, and return whether something was.

    xfs and btrfs repair themselves at mount (fsck.xfs(8) and fsck.btrfs(8) do nothing).

    Args:
        image: the file.
        fs_type: what it holds.
        lock: from `locked`.
        look: at the tool, which may take as long as it likes then.

    Raises:
        PluginError: the damage needs manual repair.
    """
    if fs_type != "ext4":
        return False
    status, text = run(["e2fsck", "-p", str(image)], lock, look=look)
    if status & ~_CORRECTED:
        _refuse_full(image, text)
        raise PluginError(
            f"the filesystem in {image} is damaged and e2fsck cannot repair it (status {status}): {text}; "
            f"run `e2fsck {image}` on the node"
        )
    return status != 0


def has_room(image: Path, fs_type: FsType) -> bool:
    """Whether an unmounted ext4 image is larger than its filesystem; the others are grown when mounted.

    Read from the superblock (kernel, Documentation/filesystems/ext4/super.rst): resize2fs itself requires a full check
    of the filesystem before it says that there is nothing to do.
    """
    if fs_type != "ext4":
        return False
    with image.open("rb") as stream:
        head = stream.read(4096)
    low, log_size, high = (int.from_bytes(head[1024 + at :][:4], "little") for at in (0x4, 0x18, 0x150))
    block = 1024 << min(log_size, 6)
    return image.stat().st_size // block > (high << 32) + low


def grow_offline(image: Path, lock: int, look: Look | None = None) -> None:
    """Let an unmounted ext4 filesystem fill its image.

    Args:
        image: the file.
        lock: from `locked`.
        look: at the tools, which may take as long as they like then.

    Raises:
        PluginError: the tool failed.
    """
    status, text = run(["resize2fs", str(image)], lock, look=look)
    if status == 0:
        return
    if "e2fsck" in text:  # resize2fs(8) wants a full check when the filesystem was mounted since the last one
        full, said = run(["e2fsck", "-f", "-p", str(image)], lock, look=look)
        if full & ~_CORRECTED:
            raise PluginError(f"the filesystem in {image} cannot be checked for growth (status {full}): {said}")
        status, text = run(["resize2fs", str(image)], lock, look=look)
    if status:
        _refuse_full(image, text)
        raise PluginError(f"resize2fs cannot grow {image} (status {status}): {text}")


def grow_online(mount_path: str, device: str, fs_type: FsType, look: Look | None = None) -> None:
    """Let a mounted filesystem fill its device.

    Raises:
        PluginError: the tool failed. ext4 needs CAP_SYS_RESOURCE for it; without, it grows at the next stage.
    """
    commands = {
        "ext4": ["resize2fs", device],
        "xfs": ["xfs_growfs", mount_path],
        "btrfs": ["btrfs", "filesystem", "resize", "max", mount_path],
    }
    command = commands[fs_type]
    status, text = run(command, look=look)
    if status:
        raise PluginError(f"{command[0]} cannot grow {device} while it is mounted (status {status}): {text}")


def run(command: Sequence[str], *inherited: int, look: Look | None = None) -> tuple[int, str]:
    """Run a tool; return its status and the last lines of its output, without its usage.

    Args:
        command: the tool and its arguments.
        inherited: descriptors that it gets, too.
        look: at the tool, which may take as long as it likes then.

    Raises:
        PluginError: it is not installed, or does not end in time.
        TryAgain: it was ended.
    """
    try:
        with _written() as out, _written() as said:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                pass_fds=inherited,
                env=_ENVIRONMENT,
            )
            _wait(process, command[0], look)
            text = (_read(said) or _read(out)).decode("utf-8", "replace").partition("Usage:")[0]
    except FileNotFoundError:
        raise PluginError(f"{command[0]} is not installed on this node; install the package that has it") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return process.returncode, "; ".join(lines[-3:])


def _written() -> BinaryIO:
    """Return a file in memory for what a tool says: a pipe would kill one that says it to an ended daemon."""
    return os.fdopen(os.memfd_create("said", os.MFD_CLOEXEC), "w+b", buffering=0)


def _read(said: BinaryIO) -> bytes:
    said.seek(0)
    return said.read()


def _wait(process: subprocess.Popen[bytes], tool: str, look: Look | None) -> None:
    while True:
        try:
            process.wait(timeout=_TIMEOUT if look is None else _LOOK_EVERY)
            return
        except subprocess.TimeoutExpired:
            if look is not None and look(tool, process.pid):
                continue
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel, and ends as soon as it does not
                process.wait(_KILLED)
        if look is not None:
            raise TryAgain(f"{tool} was ended; ask again, and it begins anew")
        raise PluginError(f"{tool} did not end within {_TIMEOUT:g} s and was stopped")


def space(folder: Path) -> tuple[int, int]:
    """Return the free and the whole bytes of the disk that holds a folder."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def _refuse_full(image: Path, text: str) -> None:
    free, whole = space(image.parent)
    if "No space left" in text or "Disk quota exceeded" in text or free == 0:
        raise Exhausted(
            f"the disk of {image.parent} is full: {show(free)} free of {show(whole)}; free space there: {text}"
        )
