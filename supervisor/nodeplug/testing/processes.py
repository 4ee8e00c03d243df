"""What the kernel tells of a process that somebody else started: its memory, descriptors, signals, and what it wants.

Owns: reading /proc(5), and finding every process of a node, also one that has left its parent, by a variable in its
environment.
Refuses: judgement.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "NODEPLUG_RIG"
"""The variable in which each process of a rig's node has the folder of the rig."""
OWN: Final = "self"
"""In place of an id: the calling process."""
_KIB: Final = 1024
_PROC: Final = Path("/proc")
_TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def status(pid: int | str) -> dict[str, str]:
    """Return the lines of /proc/PID/status.

    Raises:
        OSError: the process has ended.
    """
    lines = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def folder(pid: int) -> str:
    """Return the working directory of a process.

    Raises:
        OSError: the process has ended.
    """
    return str((_PROC / str(pid) / "cwd").readlink())


def memory(pid: int) -> int:
    """Return the bytes that a process has resident without those of files.

    Raises:
        OSError: the process has ended.
    """
    return int(status(pid).get("RssAnon", "0").split()[0]) * _KIB


def descriptors(pid: int) -> dict[int, str]:
    """Return what each descriptor of a process refers to.

    Raises:
        OSError: the process has ended.
    """
    found = {}
    for entry in (_PROC / str(pid) / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found[int(entry.name)] = str(entry.readlink())
    return found


def signals(pid: int, which: str) -> frozenset[signal.Signals]:
    """Return the signals of a mask of /proc/PID/status, such as `SigIgn` or `SigCgt`.

    Raises:
        OSError: the process has ended.
    """
    mask = int(status(pid)[which], 16)
    return frozenset(one for one in signal.Signals if mask & 1 << (one - 1))


def demands(pid: int) -> dict[int, int]:
    """Return for each thread the nanoseconds in which it ran or waited for a processor: a busy machine changes little.

    Raises:
        OSError: the process has ended.
    """
    found = {}
    for task in (_PROC / str(pid) / "task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            found[int(task.name)] = demand(task)
    return found


def demand(task: Path) -> int:
    """Return the nanoseconds in which one thread ran or waited, or only ran where the kernel does not count the rest.

    Args:
        task: its folder in /proc.

    Raises:
        OSError: the thread has ended.
    """
    schedstat = task / "schedstat"
    if schedstat.exists():  # not in every kernel
        ran, waited, _ = schedstat.read_text(encoding="ascii").split()
        return int(ran) + int(waited)
    fields = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


def is_runnable(pid: int) -> bool:
    """Tell whether a thread of a process is running or runnable (state R).

    schedstat counts a wait for a processor only after the wait has ended.

    Raises:
        OSError: the process has ended.
    """
    for task in (_PROC / str(pid) / "task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            stat = (task / "stat").read_text(encoding="utf-8", errors="replace")
            if stat.rpartition(")")[2].split()[0] == "R":
                return True
    return False


def marked(folder: Path) -> Iterator[tuple[int, str]]:
    """Find every process with the mark of a rig: its id and its command line."""
    mark = f"{MARK}={folder}".encode()
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    yield int(entry.name), b" ".join(words).decode(errors="replace").strip()


def kill_marked(folder: Path) -> None:
    """End every process with the mark of a rig."""
    for pid, _ in marked(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
