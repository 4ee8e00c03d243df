"""What tests cost: seconds of wall time, and of CPU time with every process below the one that runs them.

`pytest --costs FILE` writes a line of JSON for each test. `pytest --cpu-budget SECONDS` fails a session that uses more
than a fifth above its budget. CPU time is user and system time. A process that outlives its parent leaves the tree, and
what it used is not counted.

The same work takes more CPU time on a slower or busier machine. So each process that runs tests of a session with a
budget times a fixed piece of work between them, again and again, and what the session used is told as on the machine
where the median of these is `STANDARD` seconds. The piece is what most of the session's time goes into: the start of an
interpreter that imports modules. A loop would tell the speed of one build of Python: Debian's does it in half the time
of another, and the session takes as long with both.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.descendants import tree

STANDARD = 0.045
"""CPU seconds of the fixed piece of work on the machine where budgets are set."""
_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY = 50
_WORK = "import json, pathlib, subprocess"
_SAMPLES = "nodeplug speed"
_TOLERANCE = 1.2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="append what each test costs to this file, one line of JSON for each")
    parser.addoption("--cpu-budget", type=float, help="fail if the session uses a fifth more CPU seconds than these")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("costs") is not None:
        config.pluginmanager.register(Costs(config.getoption("costs").absolute()))
    if config.getoption("cpu_budget") is not None:
        speed = Speed()
        config.pluginmanager.register(speed)
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(CpuBudget(config.getoption("cpu_budget"), speed))


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


class Speed:
    """Times the fixed piece of work beside a process that runs tests.

    Attributes:
        samples: the seconds of CPU time that each piece took.
    """

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._tests = 0

    @pytest.hookimpl(trylast=True)  # by then the test has put back what it changed
    def pytest_runtest_teardown(self) -> None:
        if self._tests % _EVERY == 0:
            self.samples.append(time_fixed_work())
        self._tests += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)  # what pytest-xdist takes to the process that waits
        if output is not None:
            output[_SAMPLES] = self.samples


class CpuBudget:
    """Compares the CPU time of a session with its budget.

    Args:
        seconds: the budget, on the machine of `STANDARD`.
        speed: of this process, if it runs tests itself.
    """

    def __init__(self, seconds: float, speed: Speed) -> None:
        self._seconds = seconds
        self._samples = speed.samples
        self._used = 0.0

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._samples += getattr(node, "workeroutput", {}).get(_SAMPLES, [])

    @pytest.hookimpl(trylast=True)  # by then pytest-xdist has ended the processes that ran tests
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        self._used = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        if self._exceeded and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU time")
        terminalreporter.write_line(
            f"{self._used:.0f} s here, which are {self._standard:.0f} s of the budget of {self._seconds:.0f} s "
            f"(the fixed piece took {self._piece * 1000:.2f} ms)"
        )
        if self._exceeded:
            terminalreporter.write_line(
                "This is more than a fifth above the budget. `pytest --costs FILE` tells what each test costs."
            )

    @property
    def _standard(self) -> float:
        return self._used * STANDARD / self._piece

    @property
    def _piece(self) -> float:
        return median(self._samples or [STANDARD])

    @property
    def _exceeded(self) -> bool:
        return self._standard > self._seconds * _TOLERANCE


def time_fixed_work() -> float:
    """Return the CPU seconds of the fixed piece of work."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", _WORK], {})
    usage = os.wait4(pid, 0)[2]
    return usage.ru_utime + usage.ru_stime


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and all that descend from it, running or waited for."""
    return sum(map(_own, tree(pid))) / _TICKS


def _own(pid: int) -> int:
    """Return its ticks and those of its children that ended: utime, stime, cutime, cstime of proc(5)."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return sum(map(int, fields[11:15]))
    return 0
