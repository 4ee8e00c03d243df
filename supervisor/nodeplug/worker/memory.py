"""How much memory a process has resident, and whether that is more than it may.

Owns: looking, often for a process with a limit, and the sentence.
Refuses: limits of address space (setrlimit(2), RLIMIT_AS): libraries of vendors reserve far more than they touch.
"""

from contextlib import suppress
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path
from typing import Final

_OFTEN: Final = 0.2
_SELDOM: Final = 5.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What one process may have resident, in bytes; None: as much as the node has. Its children do not count."""

    limit: int | None = None

    @property
    def pause(self) -> float:
        """Seconds from one look to the next."""
        return _SELDOM if self.limit is None else _OFTEN

    def excess(self, pid: int) -> str:
        """Say how much a process has beyond its limit; nothing if that is none, or it has ended."""
        if self.limit is None:
            return ""
        used = 0
        with suppress(OSError, IndexError, ValueError):
            used = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGESIZE
        if used <= self.limit:
            return ""
        return f"it used {used / (1 << 20):.0f} MiB and may use {self.limit / (1 << 20):g} MiB"
