"""Timing one execution, and summing up many.

Owns: spawning an executable with environment and stdin, timed from before the spawn to after the wait; percentiles.
Refuses: opinions. Nothing here passes or fails.
"""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Execution:
    """One finished execution: seconds from before the spawn to after the wait; of the processor with its children."""

    seconds: float
    status: int
    stdout: bytes
    cpu: float = 0.0

    def checked(self, what: str) -> "Execution":
        """Return itself if it succeeded.

        Raises:
            RuntimeError: with what the executable printed.
        """
        if self.status:
            raise RuntimeError(f"{what} failed with status {self.status}: {self.stdout.decode(errors='replace')}")
        return self


@dataclass(slots=True)
class Prepared:
    """An execution that has not begun. To be run once, and ended.

    Stdin and stdout are memory files, so no pipe is scheduled.
    """

    path: str
    argv: list[str]
    env: dict[str, str]
    source: int
    sink: int
    seconds: float = 0.0
    status: int = 0
    cpu: float = 0.0

    @classmethod
    def of(cls, path: str, env: Mapping[str, str], stdin: bytes, argv: Sequence[str] = ()) -> Self:
        """Prepare the execution of a program."""
        source, sink = os.memfd_create("stdin"), os.memfd_create("stdout")
        os.write(source, stdin)
        os.lseek(source, 0, os.SEEK_SET)
        return cls(path, [path, *argv], dict(env), source, sink)

    def run(self) -> Self:
        """Execute it with posix_spawn, and wait for its end."""
        actions = [(os.POSIX_SPAWN_DUP2, self.source, 0), (os.POSIX_SPAWN_DUP2, self.sink, 1)]
        started = time.perf_counter()
        pid = os.posix_spawn(self.path, self.argv, self.env, file_actions=actions)
        _, status, used = os.wait4(pid, 0)
        self.seconds = time.perf_counter() - started
        self.status, self.cpu = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        return self

    def ended(self) -> Execution:
        """Return what it took and printed, and close its files."""
        try:
            os.lseek(self.sink, 0, os.SEEK_SET)
            return Execution(self.seconds, self.status, os.read(self.sink, 1 << 20), self.cpu)
        finally:
            os.close(self.source)
            os.close(self.sink)


def execute(path: str, env: Mapping[str, str], stdin: bytes, argv: Sequence[str] = ()) -> Execution:
    """Run an executable."""
    return Prepared.of(path, env, stdin, argv).run().ended()


@dataclass(frozen=True, slots=True)
class Summary:
    """Percentiles of one series, in milliseconds."""

    count: int
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Summary":
        """Sum up a series of seconds."""
        ordered = sorted(value * 1e3 for value in seconds)
        return cls(len(ordered), statistics.median(ordered), _rank(ordered, 0.9), _rank(ordered, 0.99))

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p90:.2f} / {self.p99:.2f}"


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
