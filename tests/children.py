"""The children of a process, whose threads come and go meanwhile."""

from contextlib import suppress
from pathlib import Path


def children_of(pid: int) -> set[int]:
    """Return the processes that the threads of a process have started; none if it has ended."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):  # the thread has ended
            found.update(map(int, (task / "children").read_text(encoding="ascii").split()))
    return found
