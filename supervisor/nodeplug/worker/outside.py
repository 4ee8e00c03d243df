"""Where programs that plugins start for containers are, when the daemon itself is in a container.

A runtime ends all that is in the cgroup of a container that has ended, and kubelet all that is in that of its pod
(containerd by the hierarchy of `devices` in version 1). So such a program leaves both, in every hierarchy: for a cgroup
that an administrator has named, from the roots on, where a limit can be kept, and for the root in all others.

Owns: finding these, and making the named one.
Refuses: the cgroups of single programs (`programs`), and the daemon's own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.contract.mounts import mounts
from nodeplug.worker.cgroup import Base, write

_LIMITING: Final = ("memory", "pids")
_KINDS: Final = frozenset({"cgroup", "cgroup2"})
_CHILDREN: Final = "cgroup.subtree_control"


@dataclass(frozen=True, slots=True)
class Outside:
    """What was found.

    Attributes:
        bases: below which the cgroups of programs are made, with the controllers whose limits are kept there.
        exits: what a program writes itself into, besides, to be in no other cgroup of the container.
        lacking: by controller, why its limits are not kept.
    """

    bases: Mapping[Base, tuple[str, ...]] = field(default_factory=dict)
    exits: tuple[Path, ...] = ()
    lacking: Mapping[str, str] = field(default_factory=dict)


def find(name: str) -> Outside:
    """Find the hierarchies that are mounted here as a whole, and make the named cgroup in them. May block."""
    bases: dict[Base, tuple[str, ...]] = {}
    exits: list[Path] = []
    lacking = dict.fromkeys(_LIMITING, "no hierarchy that has it is mounted as a whole where the daemon could see it")
    for mount in {one.device: one for one in mounts() if one.fs_type in _KINDS and one.root == "/"}.values():
        root, unified = Path(mount.target), mount.fs_type == "cgroup2"
        controllers = [one for one in _LIMITING if unified or one in mount.options]
        if not controllers:
            exits.append(root / "cgroup.procs")
            continue
        folder = root / name.strip("/")
        why = _made(root, folder, controllers if unified else ())
        if folder.is_dir():
            kept = tuple(one for one in controllers if one not in why)
            bases[Base(folder, folder, unified)] = kept
            lacking = {one: reason for one, reason in lacking.items() if one not in kept}
        lacking |= {one: reason for one, reason in why.items() if one in lacking}
    return Outside(bases, tuple(exits), lacking)


def _made(root: Path, folder: Path, controllers: Iterable[str]) -> Mapping[str, str]:
    """Make a cgroup that gives these controllers to its children; return why it does not, by controller."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return dict.fromkeys(_LIMITING, f"{error.strerror}: {folder}")
    lacking = {}
    above = [one for one in (*reversed(folder.parents), folder) if one.is_relative_to(root)]
    for controller in controllers:
        try:
            for one in above:
                if controller not in (one / _CHILDREN).read_text(encoding="ascii").split():
                    write(one / _CHILDREN, f"+{controller}")
        except OSError as error:
            lacking[controller] = f"{error.strerror}: {error.filename}"
    return lacking
