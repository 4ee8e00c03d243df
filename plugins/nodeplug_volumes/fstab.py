"""Mounts that the node's fstab names, and that are not there: an empty mount point is not the disk.

Owns: fstab(5), which mount(8) reads too: the file that LIBMOUNT_FSTAB names, or /etc/fstab.
Refuses: to mount, and to know of disks that are mounted otherwise, as by units of systemd or by hand. In a pod it knows
only of mount points below a folder that is bound at its own path: a mount point that is bound itself is always mounted.
"""

import os
import re
from pathlib import Path

from nodeplug import mounts, read_bounded


def missing_mount(folder: Path) -> Path | None:
    """Return the mount point at or above a folder that fstab names, and at which nothing is mounted; None without one.

    What is mounted between the two hides it, so that it does not count. A table that cannot be read names nothing.
    """
    path = Path(os.path.realpath(folder))
    on = max((Path(one.target) for one in mounts() if path.is_relative_to(one.target)), key=_depth, default=Path("/"))
    named = (one for one in _mount_points() if path.is_relative_to(one) and _depth(one) > _depth(on))
    return max(named, key=_depth, default=None)


def _depth(path: Path) -> int:
    return len(path.parts)


def _mount_points() -> list[Path]:
    try:
        text = read_bounded(Path(os.environ.get("LIBMOUNT_FSTAB") or "/etc/fstab")).decode(errors="replace")
    except OSError:
        return []
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    named = [_unescape(row[1]) for row in rows if len(row) > 2 and "swap" not in (row[1], row[2])]
    return [Path(os.path.normpath(place)) for place in named if place.startswith("/")]


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
