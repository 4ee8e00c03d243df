"""The cgroup of one worker (cgroups(7)): its limits, how the kernel keeps them, and its removal.

Owns: the files of the controllers `memory` and `pids`, of version 1 and of version 2, and who ends with the worker.
Refuses: to know in which cgroups others may be made (`cgroups`).

A process in a session of its own outlives its worker, since containers may use it: a limit must not end it either. So
it does not count for `memory`: it is moved out within a second. For `tasks`, a limit that ends nothing, it counts as
long as the worker lives.

In version 2 a worker is in the child `worker`, and what has left that is beside it in `kept`: a cgroup whose children
have controllers may not have processes of its own (cgroup-v2.rst, "No Internal Process Constraint").
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug.worker.hierarchies import members
from nodeplug.worker.shortage import SHORT, counted

_WORKER: Final = "worker"
_KEPT: Final = "kept"
_PAUSE: Final = 0.5
_BATCH: Final = 1 << 18
"""Bytes at most that the kernel reserves at once. When that fails, a cgroup has had so much less than its limit."""
_PATIENCE: Final = 2.0
"""Seconds in which processes that were killed leave their cgroup."""


@dataclass(frozen=True, slots=True)
class Base:
    """Where cgroups are made in one hierarchy.

    Attributes:
        folder: below which others are made.
        home: where the daemon is, if it is not elsewhere.
        unified: whether it is of version 2.
    """

    folder: Path
    home: Path
    unified: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A worker's cgroup in one hierarchy.

    Attributes:
        folder: it.
        home: the daemon's, to which goes at its end what outlives the worker.
        memory: bytes; None: it does not limit memory.
        tasks: how many; None: it does not limit tasks.
        unified: whether it is of version 2.
        whole: whether all that is in it ends with it, in whatever session, and counts for every limit.
    """

    folder: Path
    home: Path
    memory: int | None = None
    tasks: int | None = None
    unified: bool = False
    whole: bool = False

    @property
    def entrance(self) -> Path:
        """Where the worker itself is."""
        inner = self.folder / _WORKER
        return inner if inner.exists() else self.folder

    @property
    def relief(self) -> Path:
        """Where that is which outlives the worker, as long as it lives."""
        kept = self.folder / _KEPT
        return kept if kept.exists() else self.home

    def make(self) -> None:
        """Make it, with its limits; raises OSError."""
        self.folder.mkdir()
        if self.tasks is not None:
            write(self.folder / "pids.max", self.tasks)
        if self.memory is None:
            return
        if not self.unified:
            write(self.folder / "memory.limit_in_bytes", self.memory)
            _write_if_there(self.folder / "memory.memsw.limit_in_bytes", self.memory)
            return
        if not self.whole:
            write(self.folder / "cgroup.subtree_control", "+memory")
            (self.folder / _KEPT).mkdir()
            (self.folder / _WORKER).mkdir()
        write(self.entrance / "memory.max", self.memory)
        _write_if_there(self.entrance / "memory.swap.max", 0)
        _write_if_there(self.entrance / "memory.oom.group", 1)

    def ended_for_memory(self) -> str:
        """Say why the kernel has ended a process of it for memory; nothing if it has not."""
        if not counted(self.entrance / ("memory.events" if self.unified else "memory.oom_control")):
            return ""
        if self.memory is None or not self._reached():
            return SHORT
        return f"it exceeded its memory of {self.memory / (1 << 20):g} MiB"

    def exceeded(self) -> str:
        """Say the same if that was for its own limit; nothing if a cgroup above, or the node, had no memory left."""
        return "" if (why := self.ended_for_memory()) == SHORT else why

    def _reached(self) -> bool:
        """Whether it has ever wanted more than its limit: a cgroup above, or the node, may have had none left."""
        if self.unified:
            return counted(self.entrance / "memory.events", "oom") > 0
        with suppress(OSError, ValueError):
            most = int((self.folder / "memory.max_usage_in_bytes").read_text(encoding="ascii"))
            return most >= (self.memory or 0) - _BATCH
        return True

    def relieve(self, session: int) -> None:
        """Move away what is in another session than the worker's."""
        _move(self.entrance, self.relief, lambda own, _: own != session)

    def remove(self, session: int) -> bool:
        """Do what `Cgroup.remove` does, once."""
        if not self.whole:
            _move(self.folder / _KEPT, self.home, lambda *_: True)
            leaves = _in_another(session) if session else _has_leader
            _move(self.entrance, self.home, leaves)
        with suppress(OSError):
            _write_if_there(self.folder / "pids.max", 0)  # nobody multiplies faster than this ends them
        _end_all(self.entrance)
        for one in (self.folder / _WORKER, self.folder / _KEPT, self.folder):
            with suppress(OSError):
                one.rmdir()
        return not self.folder.exists()


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The cgroup of one worker, in one or two hierarchies; without parts there is none."""

    parts: tuple[Part, ...] = ()

    @property
    def limits_memory(self) -> bool:
        """Whether the kernel keeps its limit of memory."""
        return any(part.memory is not None for part in self.parts)

    @property
    def limits_tasks(self) -> bool:
        """Whether the kernel keeps its limit of tasks."""
        return any(part.tasks is not None for part in self.parts)

    @property
    def entrances(self) -> tuple[Path, ...]:
        """The files into which the worker writes itself."""
        return tuple(part.entrance / "cgroup.procs" for part in self.parts)

    @property
    def pause(self) -> float:
        """Seconds from one look at it to the next."""
        return _PAUSE if self.limits_memory else float("inf")

    def look(self, session: int) -> str:
        """Move away what is in another session than the worker's; say what it had too much of, or nothing."""
        for part in self.parts:
            if part.memory is not None:
                part.relieve(session)
                if ended := part.ended_for_memory():
                    return ended
        return ""

    def remove(self, session: int = 0) -> bool:
        """End what is left in it, but for sessions of their own, and remove it; return whether it is gone. May block.

        Args:
            session: of the worker. 0: nobody knows any more; then those outlive it whose session's leader is there.
        """
        end = time.monotonic() + _PATIENCE
        left = self.parts
        while left := tuple(part for part in left if not part.remove(session)):
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True


def found(folder: Path, home: Path) -> Cgroup:
    """Return the cgroup of a worker that was made before."""
    return Cgroup((Part(folder, home),))


def write(path: Path, value: int | str) -> None:
    """Write a setting of a cgroup; raises OSError with the path."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # never made: a file that is missing is a missing controller
    try:
        os.write(descriptor, str(value).encode("ascii"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def _write_if_there(path: Path, value: int) -> None:
    with suppress(FileNotFoundError):
        write(path, value)


def enter(folder: Path, pid: int) -> None:
    """Move a process into a cgroup; one that has ended stays where it is. Raises OSError."""
    with suppress(ProcessLookupError):
        write(folder / "cgroup.procs", pid)


def _in_another(session: int) -> Callable[[int, list[int]], bool]:
    return lambda own, _: own != session


def _has_leader(own: int, here: list[int]) -> bool:
    return own in here


def _move(folder: Path, to: Path, leaves: Callable[[int, list[int]], bool]) -> None:
    """Move those processes that leave: told by the session of each and by all that are there."""
    here = members(folder)
    for pid in filter(None, here):
        with suppress(OSError):
            if leaves(os.getsid(pid), here):
                enter(to, pid)


def _end_all(folder: Path) -> None:
    try:
        write(folder / "cgroup.kill", 1)  # from Linux 5.14, version 2
    except OSError:
        for pid in filter(None, members(folder)):
            with suppress(OSError):
                _end(pid, folder)


def _end(pid: int, folder: Path) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        if pid in members(folder):  # still: so it is the one that was found there
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)
