"""Processes that the kernel has ended because memory was short (its OOM killer, proc(5)).

Owns: how willingly it ends a plugin's process, and how many it has ended in the daemon's own cgroup, where those are
that have none of their own.
Refuses: to guess: a process that was killed while nobody was ended for memory was killed by somebody else. And the root
of version 2, which counts nothing.
"""

import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeplug.worker.hierarchies import UNIFIED, hierarchies

LOG: Final = logging.getLogger(__name__)
SHORT: Final = "it was killed by SIGKILL; the node, or the daemon's cgroup, had no memory left"
_SCORE: Final = 100
"""At least: a tenth of the memory that there is. The daemon's own is below."""


def end_first(pid: int) -> None:
    """Have the kernel end a child of this process before this one when memory is short.

    By this process, and not by the child: what the child runs before it could do so needs memory too, and what a
    process with CAP_SYS_RESOURCE has set is the least that another one can go back to.
    """
    with suppress(OSError):  # it has ended
        score = Path(f"/proc/{pid}/oom_score_adj")
        score.write_text(str(max(int(score.read_text(encoding="ascii")), _SCORE)), encoding="ascii")


class Ended:
    """How many processes of the daemon's cgroup the kernel has ended for memory. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: Path | None = None
        self._told = 0

    def prepare(self) -> None:
        """Find where the daemon is, which may have moved; what was ended there earlier does not count. May block."""
        file = _counter()
        with self._lock:
            if file != self._file:
                self._file, self._told = file, counted(file) if file is not None else 0

    def another(self) -> bool:
        """Whether one more has been ended; each is told once."""
        with self._lock:
            if self._file is None or counted(self._file) <= self._told:
                return False
            self._told += 1
            return True


def counted(events: Path, event: str = "oom_kill") -> int:
    """Return how often a cgroup says that something has happened in it, such as a process ended for memory."""
    with suppress(OSError, ValueError):
        counts = (line.split() for line in events.read_text(encoding="ascii").splitlines())
        return next((int(count) for name, count in counts if name == event), 0)
    return 0


def _counter() -> Path | None:
    """Return the file in which the kernel counts for the cgroup of this process."""
    try:
        places = hierarchies()
    except (OSError, ValueError) as error:
        LOG.warning("the daemon's own cgroup is not known: %s", error)
        return None
    if "memory" in places:
        return places["memory"].folder / "memory.oom_control"
    if UNIFIED not in places:
        return None
    # Without the controller it is counted in the next one above that has it. Its children count for themselves.
    own = places[UNIFIED]
    for folder in (own.folder, *own.folder.parents)[: len(own.path.parts)]:
        if (folder / "memory.events.local").exists():
            return folder / "memory.events.local"
    return None
