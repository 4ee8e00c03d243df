"""What the kernel tells of a process, and how it is judged whether one grows."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug.testing import processes
from nodeplug.testing.conformance.rounds import Rounds, Sample
from nodeplug.testing.waiting import until

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


def test_memory_grows_that_is_more_in_each_sample() -> None:
    assert seen(20, 23, 26, 29, 32).memory_grows


@pytest.mark.parametrize("memory", [(20, 30, 40, 40, 40), (20, 21, 22, 23, 24), (20, 30, 10, 50, 90)])
def test_memory_that_stays_or_creeps_or_falls_once_does_not_grow(memory: tuple[int, ...]) -> None:
    assert not seen(*memory).memory_grows


def test_descriptors_grow_apart_from_memory() -> None:
    found = Rounds("inspect", [Sample(20 * _MIB, Counter({"/dev/null": 10 * turn})) for turn in range(1, 6)])
    assert (found.memory_grows, found.descriptors_grow) == (False, True)
