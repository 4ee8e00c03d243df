"""What the kernel tells of a process, and how it is judged whether one grows."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from nodeplug.testing import processes
from nodeplug.testing.conformance import process
from nodeplug.testing.conformance.rounds import Rounds, Sample
from nodeplug.testing.waiting import until

if TYPE_CHECKING:
    from nodeplug.testing.conformance.examination import Examination

_MIB = 1 << 20


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    env = {**os.environ, processes.MARK: str(tmp_path)}
    with subprocess.Popen(["sleep", "60"], start_new_session=True, cwd="/usr", env=env) as process:
        until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        yield process
        process.kill()


def test_a_process_of_a_rig_is_found_in_a_session_of_its_own(
    sleeper: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    assert list(processes.marked(tmp_path)) == [(sleeper.pid, "sleep 60")]
    assert list(processes.marked(tmp_path / "other")) == []


def test_the_processes_of_a_rig_are_killed_and_no_others(sleeper: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    processes.kill_marked(tmp_path / "other")
    assert sleeper.poll() is None
    processes.kill_marked(tmp_path)
    assert sleeper.wait() == -9


def test_a_process_is_seen_with_its_folder_memory_and_descriptors(sleeper: "subprocess.Popen[bytes]") -> None:
    assert processes.folder(sleeper.pid) == "/usr"
    assert 0 < processes.memory(sleeper.pid) < 100 * _MIB
    assert set(processes.descriptors(sleeper.pid)) >= {0, 1, 2}


def test_a_process_that_has_ended_is_told_as_an_oserror() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        with pytest.raises(OSError, match=str(process.pid)):
            processes.memory(process.pid)


def test_a_thread_has_run_or_waited_for_what_schedstat_says(tmp_path: Path) -> None:
    (tmp_path / "schedstat").write_text("700 42 3\n")
    assert processes.demand(tmp_path) == 742


def test_a_kernel_without_schedstat_tells_ticks(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("7 (a) b) S 1 7 7 0 -1 4194304 9 0 0 0 30 20 0 0 20 0 1 0 5 0 0\n")
    assert processes.demand(tmp_path) == 50 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def seen(*memory: int, opened: int = 5) -> Rounds:
    return Rounds("inspect", [Sample(one * _MIB, Counter({"/dev/null": opened})) for one in memory])


def test_a_process_that_works_is_runnable_and_one_that_sleeps_is_not(sleeper: "subprocess.Popen[bytes]") -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as working:
        try:
            until(lambda: processes.is_runnable(working.pid))
            until(lambda: not processes.is_runnable(sleeper.pid))
        finally:
            working.kill()


@pytest.mark.parametrize(("waits", "share"), [(True, 0.9), (False, 0.2)])
def test_a_wait_for_a_processor_that_is_not_counted_yet_makes_a_longer_window(
    waits: bool, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine lets a thread wait for longer than a window; the kernel counts that when it runs again."""
    seconds, counted = iter([0.0, 1.0, 2.0]), iter([{1: 0}, {1: 200_000_000}, {1: 1_800_000_000}])
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None))
    monkeypatch.setattr(processes, "demands", lambda _: next(counted))
    monkeypatch.setattr(processes, "is_runnable", lambda _: waits)
    assert process._share(cast("Examination", SimpleNamespace(pid=1))) == share


def test_memory_grows_that_is_more_in_each_sample() -> None:
    assert seen(20, 23, 26, 29, 32).memory_grows


@pytest.mark.parametrize("memory", [(20, 30, 40, 40, 40), (20, 21, 22, 23, 24), (20, 30, 10, 50, 90)])
def test_memory_that_stays_or_creeps_or_falls_once_does_not_grow(memory: tuple[int, ...]) -> None:
    assert not seen(*memory).memory_grows


def test_descriptors_grow_apart_from_memory() -> None:
    found = Rounds("inspect", [Sample(20 * _MIB, Counter({"/dev/null": 10 * turn})) for turn in range(1, 6)])
    assert (found.memory_grows, found.descriptors_grow) == (False, True)
