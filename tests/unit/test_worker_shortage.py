"""How often the kernel has ended a process of the daemon's cgroup for memory, as its files tell."""

from pathlib import Path

import pytest

from nodeplug.worker import shortage
from nodeplug.worker.shortage import Ended, counted


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the kernel counts; two were ended before anybody looked."""
    file = tmp_path / "memory.events.local"
    file.write_text("low 0\noom 9\noom_kill 2\n")
    monkeypatch.setattr(shortage, "_counter", lambda: file)
    return file


def test_each_process_that_is_ended_is_told_once(events: Path) -> None:
    ended = Ended()
    ended.prepare()
    assert not ended.another()
    events.write_text("oom_kill 4\n")
    assert [ended.another() for _ in range(3)] == [True, True, False]


def test_what_was_told_is_not_told_again_when_the_daemon_has_not_moved(events: Path) -> None:
    ended = Ended()
    ended.prepare()
    events.write_text("oom_kill 3\n")
    ended.prepare()
    assert [ended.another() for _ in range(2)] == [True, False]


def test_without_a_cgroup_nobody_was_ended(events: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Ended()
    assert not ended.another()
    monkeypatch.setattr(shortage, "_counter", lambda: None)
    ended.prepare()
    assert not ended.another()


def test_what_cannot_be_read_counts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "memory.oom_control"
    assert counted(file) == 0
    file.write_text("oom_kill_disable 0\nunder_oom 1\n")
    assert (counted(file), counted(file, "under_oom")) == (0, 1)
    file.write_text("oom_kill many\n")
    assert counted(file) == 0
