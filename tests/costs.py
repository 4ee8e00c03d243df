"""What each test costs: seconds of wall time, and of CPU time with every process below the one that runs it.

`pytest --costs FILE` writes a line of JSON for each test. CPU time is user and system time. A process that outlives its
parent leaves the tree, and what it used is not counted.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")


class Costs:
    """Measures every test of a session.

    Args:
        path: of the file; each process that runs tests appends to it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began, used = time.monotonic(), cpu_seconds(os.getpid())
        result = yield
        cost = {
            "test": item.nodeid,
            "wall": round(time.monotonic() - began, 3),
            "cpu": round(cpu_seconds(os.getpid()) - used, 3),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(cost) + "\n")
        return result


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and all that descend from it, running or waited for."""
    return sum(map(_own, _tree(pid))) / _TICKS


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            for child in (task / "children").read_text(encoding="ascii").split():
                yield from _tree(int(child))


def _own(pid: int) -> int:
    """Return its ticks and those of its children that ended: utime, stime, cutime, cstime of proc(5)."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return sum(map(int, fields[11:15]))
    return 0
