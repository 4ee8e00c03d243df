"""In which cgroup the daemon may make others, one for each worker with limits and for each program of a plugin's.

Owns: which controllers can be used and why not, making cgroups, and sweeping those that a killed daemon left.
Refuses: a cgroup that is not the daemon's own: one that nobody has delegated to it, or the root of a hierarchy; and
what is not named as ours.

In version 2 the daemon has to be in a leaf, LEAF, before the cgroup above may give controllers to its children
(cgroup-v2.rst, "No Internal Process Constraint").
"""

import itertools
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from nodeplug.contract.errors import TryAgain
from nodeplug.contract.journal import file_name
from nodeplug.worker import outside
from nodeplug.worker.cgroup import Base, Cgroup, Part, enter, found, write
from nodeplug.worker.hierarchies import UNIFIED, Hierarchy, delegated, hierarchies, members
from nodeplug.worker.shortage import Ended

LOG: Final = logging.getLogger(__name__)
LEAF: Final = "nodeplug-daemon"
"""Where the daemon itself is in version 2; deploy/nodeplug.service has systemd start it there."""
PREFIX: Final = "nodeplug-worker-"
"""Before the process id of the daemon that made it."""
PROGRAM: Final = "nodeplug-program-"
"""Before the name of a program that a plugin has started for containers (`programs`): it outlives the daemon."""
Wanted = bool | Literal["auto"]


class _Unusable(Exception):
    """Why a controller cannot be used."""


class Cgroups:
    """The cgroups of workers. Any thread may use it.

    Args:
        wanted: True: the daemon's cgroup is its own; False: it is not; "auto": it is if systemd says so.
        programs: the cgroup for programs that outlive the daemon, from the roots on; empty: the daemon's own.

    Attributes:
        ended: in the daemon's own, for want of memory.
    """

    def __init__(self, wanted: Wanted = False, programs: str = "") -> None:
        self._wanted, self._programs = wanted, programs
        self._outside = outside.Outside()
        self._lock = threading.Lock()
        self._prepared = False
        self._bases: dict[str, Base] = {}
        self._lacking: dict[str, str] = {}
        self._left: list[Cgroup] = []
        self._numbers = itertools.count(1)
        self.ended = Ended()

    def prepare(self) -> None:
        """Find out, once, what can be used, and remove what a killed daemon left. Does not raise; may block."""
        with self._lock:
            if self._prepared:
                return
            self._prepared = True
            self._find()
            for base in dict.fromkeys(self._bases.values()):
                _sweep(base)
            if self._programs:
                self._outside = outside.find(self._programs)
                for base in self._outside.bases:
                    _sweep_programs(base)

    def close(self) -> None:
        """Remove what is left of this daemon's own, whose workers have to end now. May block."""
        for base in dict.fromkeys(self._bases.values()):
            for folder in base.folder.glob(f"{PREFIX}{os.getpid()}-*"):
                found(folder, base.home).remove()

    def lacks(self, controller: str) -> str:
        """Return why a controller (`memory` or `pids`) cannot be used; nothing if it can. May block."""
        self.prepare()
        return self._lacking.get(controller, "")

    def programs(self) -> outside.Outside:
        """Return where the cgroups of programs can be made. May block."""
        self.prepare()
        if self._programs:
            return self._outside
        bases: dict[Base, tuple[str, ...]] = {}
        for controller, base in self._bases.items():
            bases[base] = (*bases.get(base, ()), controller)
        return outside.Outside(bases, (), self._lacking)

    def make(self, name: str, memory: int | None, tasks: int | None) -> Cgroup:
        """Make the cgroup of a plugin's worker, with the limits that it can keep. May block.

        Raises:
            TryAgain: the kernel refuses.
        """
        limits = {"memory": memory, "pids": tasks}
        usable = {one: limit for one, limit in limits.items() if limit is not None and not self.lacks(one)}
        child = f"{PREFIX}{os.getpid()}-{next(self._numbers)}-{file_name(name)}"
        parts = []
        for base in dict.fromkeys(self._bases[one] for one in usable):
            here = {one: limit for one, limit in usable.items() if self._bases[one] == base}
            part = Part(base.folder / child, base.home, here.get("memory"), here.get("pids"), base.unified)
            parts.append(part)
        made = Cgroup(tuple(parts))
        try:
            for part in parts:
                part.make()
        except OSError as error:
            self.remove(made)
            raise TryAgain(f"the daemon cannot make a cgroup for plugin {name!r}: {told(error)}") from None
        return made

    def remove(self, cgroup: Cgroup, session: int = 0) -> None:
        """Remove the cgroup of a worker that has ended; see `Cgroup.remove`. May block."""
        with self._lock:
            left, self._left = self._left, []
        for one in left:
            if not one.remove():
                self._left.append(one)
        if not cgroup.remove(session):
            LOG.warning("%s stays until the next plugin ends: a process in it does not die", cgroup.parts[0].folder)
            self._left.append(cgroup)

    def _find(self) -> None:
        if self._wanted is False:
            self._lacking = dict.fromkeys(("memory", "pids"), "`cgroups` is false")
            return
        try:
            places = hierarchies()
        except (OSError, ValueError) as error:
            LOG.warning("the daemon's own cgroup is not known: %s", error)
            places = {}
        for controller in ("memory", "pids"):
            try:
                base = self._bases[controller] = self._base(controller, places)
                LOG.info("cgroups in %s limit the %s of plugins", base.folder, controller)
            except _Unusable as error:
                self._lacking[controller] = str(error)
                LOG.info("no cgroup limits the %s of plugins: %s", controller, error)

    def _base(self, controller: str, places: Mapping[str, Hierarchy]) -> Base:
        unified = controller not in places
        own = places.get(UNIFIED if unified else controller)
        if own is None:
            raise _Unusable("no hierarchy that has it is mounted where the daemon could see itself")
        if own.is_root:
            raise _Unusable("the daemon is in the root of the hierarchy")
        started_there = unified and own.path.name == LEAF
        if self._wanted == "auto":
            _check_delegated(own, places, started_there=started_there)
        if unified and not started_there:
            _check_leaf(own, places)
        folder = own.folder.parent if started_there else own.folder
        if not os.access(folder, os.W_OK):
            raise _Unusable(f"{folder} is read-only")
        if not unified:
            return Base(folder, folder)
        _enable(controller, folder)
        return Base(folder, folder / LEAF, unified=True)


def _check_delegated(own: Hierarchy, places: Mapping[str, Hierarchy], *, started_there: bool) -> None:
    given = delegated(places, LEAF)
    if given is None:
        raise _Unusable("systemd has delegated none to the daemon (Delegate=)")
    if given != (own.path.parent if started_there else own.path):
        raise _Unusable(f"systemd has delegated {given}, and the daemon is in {own.path}")


def _check_leaf(own: Hierarchy, places: Mapping[str, Hierarchy]) -> None:
    """Refuse to move the daemon of a unit into a leaf.

    One that was killed then, and left what containers use, is not started again (status=219/CGROUP): the unit's cgroup
    may have no process while it gives controllers to its children.
    """
    if delegated(places, LEAF) is not None or own.path.suffix == ".service":
        raise _Unusable(f"systemd has not started the daemon in {LEAF} (DelegateSubgroup=, since its version 254)")


def _enable(controller: str, folder: Path) -> None:
    """Give a controller to the children of a cgroup of version 2, and move its processes into a leaf before."""
    try:
        if controller not in (folder / "cgroup.controllers").read_text(encoding="ascii").split():
            raise _Unusable(f"{folder} does not have it")
        (folder / LEAF).mkdir(exist_ok=True)
        for _ in range(10):  # they may have children meanwhile
            for pid in members(folder):
                enter(folder / LEAF, pid)
        write(folder / "cgroup.subtree_control", f"+{controller}")
    except OSError as error:
        raise _Unusable(told(error)) from None


def _sweep(base: Base) -> None:
    """Remove what daemons left that have ended; one that lives, such as one that is being replaced, keeps its own."""
    living = {*members(base.folder), *members(base.home)} - {os.getpid()}
    for folder in base.folder.glob(f"{PREFIX}*"):
        daemon, dash, _ = folder.name.removeprefix(PREFIX).partition("-")
        if not (dash and daemon.isdecimal() and int(daemon) in living):
            gone = found(folder, base.home).remove()
            LOG.log(logging.INFO if gone else logging.WARNING, "%s %s", folder, "is removed" if gone else "stays")
    _sweep_programs(base)


def _sweep_programs(base: Base) -> None:
    for folder in base.folder.glob(f"{PROGRAM}*"):
        with suppress(OSError):  # its program runs, for the next plugin to find
            folder.rmdir()


def told(error: OSError) -> str:
    """Return what the kernel said, and of which file."""
    return f"{error.strerror}: {error.filename}"
