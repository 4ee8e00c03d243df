"""What the process of a plugin may have, and who sees to it: the kernel by a cgroup, or the daemon by looking.

Owns: that each limit has exactly one of them, and the worker's cgroup from its making to its removal.
Refuses: to end anything: its worker's process does (`process`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from nodeplug.worker.cgroup import Cgroup
from nodeplug.worker.cgroups import Cgroups
from nodeplug.worker.memory import UNSAID, Memory


@dataclass(frozen=True, slots=True)
class Limits:
    """What one worker may have. Any thread may use it.

    Attributes:
        watched: memory that the daemon has to look at.
        cgroup: of this worker.
    """

    watched: Memory = field(default_factory=Memory)
    cgroup: Cgroup = field(default_factory=Cgroup)
    _cgroups: Cgroups = field(default_factory=Cgroups)

    @classmethod
    def of(cls, cgroups: Cgroups, name: str, memory: int | None, tasks: int | None) -> Self:
        """Make the cgroup for the worker of a plugin, if one can keep a limit of it. May block.

        Args:
            cgroups: those of the daemon.
            name: of the section.
            memory: bytes; None: nobody says, and the daemon looks now and then that it is not absurd.
            tasks: processes and threads; None: as many as there may be. The kernel counts them by user otherwise.

        Raises:
            TryAgain: the kernel refuses.
        """
        cgroup = cgroups.make(name, memory, tasks)
        cgroups.ended.prepare()
        watched = Memory(UNSAID, seldom=True) if memory is None else Memory(memory)
        return cls(Memory() if cgroup.limits_memory else watched, cgroup, cgroups)

    @property
    def entrances(self) -> Sequence[Path]:
        """The files into which the worker writes itself before anything else."""
        return self.cgroup.entrances

    @property
    def pause(self) -> float:
        """Seconds from one look to the next."""
        return min(self.watched.pause, self.cgroup.pause)

    def excess(self, pid: int) -> str:
        """Say what a worker had too much of; nothing if nothing."""
        return self.watched.excess(pid) or self.cgroup.look(pid)

    def was_ended_for_memory(self) -> bool:
        """Whether the kernel has ended, for want of memory, one more of those that have no limit of it by a cgroup."""
        return not self.cgroup.limits_memory and self._cgroups.ended.another()

    def end(self, pid: int = 0) -> None:
        """Remove the cgroup of a worker that has ended, with what is left in its session. May block.

        Args:
            pid: which the worker had; 0: it has never been.
        """
        if self.cgroup.parts:
            self._cgroups.remove(self.cgroup, pid)
