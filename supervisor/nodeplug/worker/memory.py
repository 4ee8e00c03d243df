"""How much memory a process has resident, and whether that is more than it may.

Owns: looking, often for a process with a limit of its section and seldom for any other, and the sentence.
Refuses: limits of address space (setrlimit(2), RLIMIT_AS): libraries of vendors reserve far more than they touch.
"""

from contextlib import suppress
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path
from typing import Final

_OFTEN: Final = 0.2
_SELDOM: Final = 5.0
UNSAID: Final = 1 << 30
"""Bytes that a process may have resident whose section does not say."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one process may have resident; its children do not count.

    Attributes:
        limit: bytes; None: somebody else looks.
        seldom: whether it is enough to look now and then.
    """

    limit: int | None = None
    seldom: bool = False

    @property
    def pause(self) -> float:
        """Seconds from one look to the next."""
        return _SELDOM if self.seldom or self.limit is None else _OFTEN

    def excess(self, pid: int) -> str:
        """Say how much a process has beyond its limit; nothing if it has not, or has ended."""
        if self.limit is None:
            return ""
        used = 0
        with suppress(OSError, IndexError, ValueError):
            used = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGESIZE
        if used <= self.limit:
            return ""
        return f"it used {used / (1 << 20):.0f} MiB and may use {self.limit / (1 << 20):g} MiB"
