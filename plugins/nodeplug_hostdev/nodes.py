"""Device nodes as the filesystem and sysfs show them.

Owns: matching globs, probing a node, its NUMA node, and ids that stay the same for a path.
Refuses: to remember anything. A probe that hangs in the kernel hangs its caller; the host bounds every listing.
"""

import errno
import glob
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Final

from nodeplug import DeviceId

_ID_LIMIT: Final = 57
"""What is left of the 63 characters of a device id beside the number of a share."""
_PLAIN: Final = re.compile(r"/dev/[A-Za-z0-9._]+(?:/[A-Za-z0-9._]+)*")
_USED_BY_OTHERS: Final = frozenset({errno.EBUSY, errno.EAGAIN})
_OPENING_ACTS: Final = frozenset({"tty", "watchdog", "scsi_tape"})
"""Subsystems where open or close does something: raise DTR, arm a reset of the machine, rewind."""
_MISC_WATCHDOG: Final = os.makedev(10, 130)


def matches(pattern: str) -> list[str]:
    """Return the device nodes that a glob matches, symlinks to them included, in natural order (tty2 before tty10)."""
    found = glob.glob(pattern) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207 - a path as the user wrote it
    return sorted((path for path in found if _device(path) is not None), key=_natural)


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]


def _device(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - a path as the user wrote it
    except OSError:
        return None
    return status if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode) else None


def exists(path: str) -> bool:
    """Whether a device node, or a symlink to one, exists."""
    return _device(path) is not None


def absence(path: str) -> str:
    """Return why a path of any kind cannot be mounted into a container, or an empty text."""
    try:
        os.stat(path)  # noqa: PTH116 - a path as the user wrote it
    except OSError as error:
        return f"{path}: {os.strerror(error.errno or 0)}"
    return ""


def device_id(path: str, share: int = 0) -> DeviceId:
    """Return the id of one share of a node.

    Share 0 has no number, so that raising the count of a group keeps the ids that containers hold. A path with
    other characters than an id may have gets a digest, as a long one does.
    """
    name = path.removeprefix("/dev/")
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-")
    if not _PLAIN.fullmatch(path) or len(readable) > _ID_LIMIT:
        readable = f"{readable[: _ID_LIMIT - 17]}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    return DeviceId(f"{readable}::{share}" if share else readable)


def fault(path: str, permissions: str, probe: str) -> str:
    """Probe a node as a container would use it.

    Args:
        path: the node.
        permissions: letters of rwm.
        probe: "open" or "exists".

    Returns:
        Why the node is not usable, or an empty text. A node that another process holds exclusively is usable.
    """
    status = _device(path)
    if status is None:
        return f"there is no device node {path}"
    if probe == "exists" or _opening_acts(status) or not set(permissions) & set("rw"):
        return ""
    try:
        os.close(os.open(path, _flags(status, permissions)))
    except OSError as error:
        return refusal(path, error.errno or 0)
    return ""


def refusal(path: str, code: int) -> str:
    """Return what an error of open(2) means for health; nothing if another process merely holds the node."""
    if code in _USED_BY_OTHERS:
        return ""
    hint = "; set probe = 'exists' if only containers may open it" if code == errno.EPERM else ""
    return f"{path} cannot be opened: {os.strerror(code)}{hint}"


def _flags(status: os.stat_result, permissions: str) -> int:
    # A block device that was open for writing makes udev examine it and announce a change, which would bring us back.
    reads, writes = "r" in permissions, "w" in permissions and stat.S_ISCHR(status.st_mode)
    mode = os.O_RDWR if reads and writes else os.O_WRONLY if writes else os.O_RDONLY
    return mode | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def _opening_acts(status: os.stat_result) -> bool:
    if not stat.S_ISCHR(status.st_mode):
        return False
    link = _sysfs(status) / "subsystem"
    subsystem = os.readlink(link).rpartition("/")[2] if link.is_symlink() else ""
    return subsystem in _OPENING_ACTS or status.st_rdev == _MISC_WATCHDOG


def _sysfs(status: os.stat_result) -> Path:
    kind = "char" if stat.S_ISCHR(status.st_mode) else "block"
    return Path(f"/sys/dev/{kind}/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")


def numa_nodes(path: str) -> tuple[int, ...]:
    """Return the NUMA node of the bus device behind a node, or nothing if the kernel names none."""
    status = _device(path)
    if status is None:
        return ()
    for folder in (place := _sysfs(status).resolve(), *place.parents):
        if (number := folder / "numa_node").is_file():
            value = int(number.read_text(encoding="ascii"))
            return (value,) if value >= 0 else ()
    return ()
