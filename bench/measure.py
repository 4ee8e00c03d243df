"""Timing one execution, and summing up many.

Owns: spawning an executable with environment and stdin, timed from before the spawn to after the wait; percentiles.
Refuses: opinions. Nothing here passes or fails.
"""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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


def execute(path: str, env: Mapping[str, str], stdin: bytes, argv: Sequence[str] = ()) -> Execution:
    """Run an executable with posix_spawn; stdin and stdout are memory files, so no pipe is scheduled."""
    source, sink = os.memfd_create("stdin"), os.memfd_create("stdout")
    try:
        os.write(source, stdin)
        os.lseek(source, 0, os.SEEK_SET)
        actions = [(os.POSIX_SPAWN_DUP2, source, 0), (os.POSIX_SPAWN_DUP2, sink, 1)]
        started = time.perf_counter()
        pid = os.posix_spawn(path, [path, *argv], dict(env), file_actions=actions)
        _, status, used = os.wait4(pid, 0)
        seconds = time.perf_counter() - started
        os.lseek(sink, 0, os.SEEK_SET)
        stdout = os.read(sink, 1 << 20)
        return Execution(seconds, os.waitstatus_to_exitcode(status), stdout, used.ru_utime + used.ru_stime)
    finally:
        os.close(source)
        os.close(sink)


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
