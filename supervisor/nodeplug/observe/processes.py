"""What the processes of plugins use.

Owns: their memory and processor time, from /proc.
Refuses: the event loop: the kernel walks every page of a process to count its share.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process uses.

    Attributes:
        memory: bytes; a page that several processes share counts for each as its part (Pss of smaps_rollup, proc(5)).
        cpu: seconds, of the process and the children that it has waited for.
    """

    memory: int = 0
    cpu: float = 0.0


def usage(pids: Iterable[int]) -> Mapping[int, Usage]:
    """Return what processes use, without those that have ended meanwhile. May block."""
    found = {}
    for pid in pids:
        with suppress(OSError, ValueError):
            found[pid] = Usage(_memory(Path("/proc", str(pid))), _cpu(Path("/proc", str(pid))))
    return found


def _memory(process: Path) -> int:
    for line in (process / "smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def _cpu(process: Path) -> float:
    # The second field is the name in brackets, which may contain blanks and brackets.
    fields = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS
