"""The cgroups of programs that plugins have started for containers, and that outlive plugin and daemon.

Owns: their names, by which the next daemon finds them, their limits, and their end with all that is in them.
Refuses: to know what a program is: the plugin starts it, and it enters by itself.

Such a cgroup stands beside those of workers, in each hierarchy that can be used, also without a limit: its end is then
the end of all that the program has started.
"""

import itertools
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.contract.cgroups import ProgramCgroups
from nodeplug.contract.errors import InvalidRequest, TryAgain, clip
from nodeplug.contract.journal import file_name
from nodeplug.worker.cgroup import Base, Cgroup, Part
from nodeplug.worker.cgroups import PROGRAM, Cgroups, told

_NAME: Final = re.compile(r"[A-Za-z0-9]{1,64}")
_MOST: Final = 8
"""Cgroups of one name, at most: that of the program that runs, and those in which a process does not die."""
_CONTROLLERS: Final = {"memory": "memory", "pids": "tasks"}
"""What limits what, as a section calls it."""


@dataclass(frozen=True, slots=True)
class Programs(ProgramCgroups):
    """The cgroups of the programs of one section's plugin. Any thread.

    Attributes:
        cgroups: those of the daemon.
        section: the plugin's name.
    """

    cgroups: Cgroups = field(default_factory=Cgroups)
    section: str = ""

    def lacking(self) -> Mapping[str, str]:
        """Return why a limit cannot be kept; see `ProgramCgroups`."""
        lacking = self.cgroups.programs().lacking
        return {limit: lacking[one] for one, limit in _CONTROLLERS.items() if one in lacking}

    def make(self, name: str, *, memory: int | None = None, tasks: int | None = None) -> tuple[Path, ...]:
        """Make a program's cgroup anew; see `ProgramCgroups`."""
        number = self._vacate(name)
        limits = {"memory": memory, "pids": tasks}
        parts = []
        place = self.cgroups.programs()
        for base, controllers in place.bases.items():
            memory_here, tasks_here = (limits[one] if one in controllers else None for one in limits)
            folder = base.folder / self._folder(name, number)
            parts.append(Part(folder, base.home, memory_here, tasks_here, base.unified, whole=True))
        try:
            for part in parts:
                part.make()
        except OSError as error:
            Cgroup(tuple(parts)).remove()
            raise TryAgain(
                f"the daemon cannot make a cgroup for a program of {self.section!r}: {told(error)}"
            ) from None
        return (*Cgroup(tuple(parts)).entrances, *place.exits)

    def excess(self, name: str, *, own: bool = False) -> str:
        """Say why the kernel has ended a process of a program for memory; see `ProgramCgroups`."""
        found = self._found(name)
        parts = found[max(found)] if found else []
        return next((why for part in parts if (why := part.exceeded() if own else part.ended_for_memory())), "")

    def remove(self, name: str) -> None:
        """End all that is in a program's cgroups, and remove them; see `ProgramCgroups`."""
        parts = tuple(part for parts in self._found(name).values() for part in parts)
        if not Cgroup(parts).remove():
            raise TryAgain(f"a process in cgroup {self._folder(name)} does not die; ask again")

    def _vacate(self, name: str) -> int:
        """Remove a program's former cgroups; return the number of the next one, beside what cannot be removed.

        A process that waits in the kernel for ever, as for a server that is gone, must not keep the next from starting.
        """
        try:
            self.remove(name)
        except TryAgain:
            number = max(self._found(name), default=-1) + 1
            if number >= _MOST:
                raise
            return number
        return 0

    def _folder(self, name: str, number: int = 0) -> str:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"a cgroup is asked for as {clip(name, 80)!r}; name it by 1 to 64 letters and digits")
        return f"{PROGRAM}{name}{f'.{number}' if number else ''}-{file_name(self.section)}"

    def _found(self, name: str) -> dict[int, list[Part]]:
        """Return the cgroups of a program that are there, by number: the last one is of the program that runs."""
        found: dict[int, list[Part]] = {}
        for base, number in itertools.product(self.cgroups.programs().bases, range(_MOST)):
            folder = base.folder / self._folder(name, number)
            if folder.exists():
                part = Part(folder, base.home, _limit(folder, base), unified=base.unified, whole=True)
                found.setdefault(number, []).append(part)
        return found


def _limit(folder: Path, base: Base) -> int | None:
    """Return how many bytes a cgroup may have; None if it does not say."""
    with suppress(OSError, ValueError):
        name = "memory.max" if base.unified else "memory.limit_in_bytes"
        limit = int((folder / name).read_text(encoding="ascii"))
        return limit if limit < 1 << 62 else None  # version 1 has a number for "as much as there is"
    return None
