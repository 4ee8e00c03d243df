"""Where the cgroup of this process is in each hierarchy (cgroups(7)), and whether systemd has given it away.

Owns: /proc/self/cgroup and the mounts, of version 1, of version 2 and of both at once, also in a cgroup namespace.
Refuses: to change anything, and to guess: a folder counts only if this process is listed in it.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from nodeplug.contract.mounts import Mount, mounts

UNIFIED: Final = ""
"""The name of version 2's hierarchy in `hierarchies`."""
_SYSTEMD: Final = "name=systemd"
_MARKS: Final = ("user.delegate", "trusted.delegate")
"""Attributes with which systemd marks a cgroup that it has delegated (its CGROUP_DELEGATION.md): of 251 and later, and
of all that have `Delegate=`."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The cgroup of this process in one hierarchy.

    Attributes:
        path: as the kernel names it.
        folder: where that is mounted.
    """

    path: PurePosixPath
    folder: Path

    @property
    def is_root(self) -> bool:
        """Whether it is the kernel's own: these files are in every other of version 2, and in no other of version 1."""
        if (self.folder / "cgroup.controllers").exists():
            return not (self.folder / "cgroup.type").exists()
        return (self.folder / "release_agent").exists()


def hierarchies() -> Mapping[str, Hierarchy]:
    """Return where this process is, by controller of version 1; by `UNIFIED` in version 2."""
    found: dict[str, Hierarchy] = {}
    mounted = [mount for mount in mounts() if mount.fs_type in {"cgroup", "cgroup2"}]
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            for mount in mounted:
                if _shows(mount, name) and (one := _seen(mount, PurePosixPath(path))) is not None:
                    found.setdefault(name, one)
    return found


def members(folder: Path) -> list[int]:
    """Return the processes in a cgroup, 0 for those that this process cannot name; none if it is gone."""
    with suppress(OSError):
        return [int(line) for line in (folder / "cgroup.procs").read_text(encoding="ascii").split()]
    return []


def delegated(found: Mapping[str, Hierarchy], leaf: str) -> PurePosixPath | None:
    """Return the cgroup that systemd has delegated to this process, which is in it or in its child `leaf`."""
    for one in (found.get(_SYSTEMD), found.get(UNIFIED)):
        if one is None:
            continue
        if _is_marked(one.folder):
            return one.path
        if one.path.name == leaf and _is_marked(one.folder.parent):
            return one.path.parent
    return None


def _shows(mount: Mount, name: str) -> bool:
    return mount.fs_type == "cgroup2" if name == UNIFIED else mount.fs_type == "cgroup" and name in mount.options


def _seen(mount: Mount, path: PurePosixPath) -> Hierarchy | None:
    """Return a cgroup as a mount shows it; None if that mount shows another part of the hierarchy."""
    if not path.is_relative_to(mount.root) or ".." in path.parts:
        return None
    folder = Path(mount.target) / path.relative_to(mount.root)
    return Hierarchy(path, folder) if os.getpid() in members(folder) else None


def _is_marked(folder: Path) -> bool:
    for mark in _MARKS:
        with suppress(OSError):
            if os.getxattr(folder, mark) == b"1":
                return True
    return False
