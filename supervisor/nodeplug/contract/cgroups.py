"""Cgroups of programs that a plugin starts for containers: such a program outlives the plugin, and its limits do too.

Owns: what a plugin asks for and is told.
Refuses: to make any: the daemon does, where it may. What stands here is the answer where nobody makes one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProgramCgroups"]


@dataclass(frozen=True, slots=True)
class ProgramCgroups:
    """The cgroups of the programs of one plugin, by names that the plugin chooses. Any thread; each call may block.

    They stay when the plugin or the daemon ends, and are found again by their names (cgroups(7)).
    """

    def lacking(self) -> Mapping[str, str]:
        """Return why a limit cannot be kept, by its name, `memory` or `tasks`; those that can be are not there."""
        return dict.fromkeys(("memory", "tasks"), "nobody makes cgroups here")

    def make(self, name: str, *, memory: int | None = None, tasks: int | None = None) -> tuple[Path, ...]:
        """Make the cgroup of a program that is about to be started; one of that name is removed before.

        Where a process in that one does not die, the new one is made beside it: the program can start all the same.

        Args:
            name: letters and digits, at most 64.
            memory: bytes that it may have with all that it starts; None: as many as there are.
            tasks: processes and threads that it may have; None: as many as there may be.

        Returns:
            Files: the program writes "0" into each before it does anything else, and is in the cgroup then, with all
            that it starts. None: there is no cgroup, see `lacking`.

        Raises:
            InvalidRequest: it cannot be named so.
            TryAgain: the kernel refuses, or there are 8 of that name already in which a process does not die.
        """
        del name, memory, tasks
        return ()

    def excess(self, name: str, *, own: bool = False) -> str:
        """Say why the kernel has ended a process of a program for memory; nothing if it has not, or nothing is known.

        Args:
            name: of the cgroup.
            own: only if the program has exceeded its own limit: nothing if the node, or a cgroup above, was short.

        Raises:
            InvalidRequest: none can be named so.
        """
        del name, own
        return ""

    def remove(self, name: str) -> None:
        """End all that is in a cgroup, and remove it; succeed when there is none.

        Args:
            name: of the cgroup.

        Raises:
            InvalidRequest: none can be named so.
            TryAgain: a process in it does not die.
        """
        del name
