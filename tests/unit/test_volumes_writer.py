"""One thread that writes, while its disk answers and while it does not."""

import logging
import threading
from collections.abc import Callable

import pytest

from nodeplug import PluginError
from nodeplug.process.lane import Unanswered
from nodeplug.testing.waiting import until
from nodeplug.volumes.records import Writer

PATIENCE = 1.0


class Disk:
    """What a writer writes to: it notes what was written, and freezes when told so."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.threads: list[int] = []
        self.frozen, self._thawed = threading.Event(), threading.Event()

    def write(self, what: str) -> Callable[[], None]:
        def work() -> None:
            self.threads.append(threading.get_ident())
            self.written.append(what)

        return work

    def freeze(self) -> None:
        self.frozen.set()
        assert self._thawed.wait(10)

    def thaw(self) -> None:
        self._thawed.set()


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def writer() -> Writer:
    return Writer("the disk", PATIENCE)


def test_all_is_written_by_one_thread_which_is_no_callers(writer: Writer, disk: Disk) -> None:
    for number in range(3):
        writer.run("k", disk.write(str(number)))
    assert disk.written == ["0", "1", "2"]
    assert len(set(disk.threads)) == 1
    assert threading.get_ident() not in disk.threads


def test_what_the_work_raises_is_raised(writer: Writer) -> None:
    def refuse() -> None:
        raise PluginError("no space left")

    with pytest.raises(PluginError, match="no space left"):
        writer.run("k", refuse)


def test_a_caller_waits_for_a_frozen_disk_with_patience_and_the_next_not_at_all(writer: Writer, disk: Disk) -> None:
    with pytest.raises(Unanswered, match=r"the disk does not answer \(for"):
        writer.run("k", disk.freeze)
    with pytest.raises(Unanswered, match=r"the disk does not answer \(for"):
        writer.run("k", disk.write("never"))
    disk.thaw()
    until(lambda: not writer.lane.stuck)
    writer.run("k", disk.write("again"))
    assert disk.written == ["again"]


def test_who_stood_in_line_when_the_disk_froze_is_refused_and_its_work_never_done(writer: Writer, disk: Disk) -> None:
    refused: list[str] = []

    def write(what: str, work: Callable[[], None]) -> None:
        try:
            writer.run(what, work)
        except Unanswered:
            refused.append(what)

    callers = [threading.Thread(target=write, args=("first", disk.freeze))]
    callers[0].start()
    assert disk.frozen.wait(10)
    callers.append(threading.Thread(target=write, args=("second", disk.write("second"))))
    callers[1].start()
    for caller in callers:
        caller.join(10)
    disk.thaw()
    until(lambda: not writer.lane.stuck)
    writer.run("third", disk.write("third"))
    assert (sorted(refused), disk.written) == (["first", "second"], ["third"])


def test_what_was_postponed_is_done_when_the_disk_answers(writer: Writer, disk: Disk) -> None:
    with pytest.raises(Unanswered):
        writer.run("k", disk.freeze)
    writer.postpone("k", disk.write("older"))
    writer.postpone("k", disk.write("late"))
    disk.thaw()
    until(lambda: disk.written == ["late"])


def test_what_was_postponed_is_not_done_after_something_newer(disk: Disk) -> None:
    writer, inside, gate = Writer("the disk", 10.0), threading.Event(), threading.Event()

    def waiting() -> None:
        inside.set()
        assert gate.wait(10)

    blocked = threading.Thread(target=lambda: writer.run("other", waiting))
    blocked.start()
    assert inside.wait(10)
    writer.postpone("k", disk.write("late"))
    newer = threading.Thread(target=lambda: writer.run("k", disk.write("newer")))
    newer.start()
    until(lambda: not writer._late)
    gate.set()
    blocked.join(10)
    newer.join(10)
    writer.run("end", disk.write("end"))
    assert disk.written == ["newer", "end"]


def test_postponed_work_that_fails_is_logged_and_keeps_nobody(
    writer: Writer, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise PluginError("read-only")

    with caplog.at_level(logging.WARNING):
        writer.postpone("k", refuse)
        until(lambda: "the record 'k' stays as it is: read-only" in caplog.text)
    writer.run("k", disk.write("on"))
    assert disk.written == ["on"]


def test_the_thread_ends_when_there_is_nothing_to_write_and_a_new_one_comes(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeplug.process.lane._IDLE", 0.02)
    writer = Writer("the disk that is written to seldom", PATIENCE)
    for number in range(2):
        writer.run("k", disk.write(str(number)))
        until(lambda: not any("written to seldom" in thread.name for thread in threading.enumerate()))
    assert disk.written == ["0", "1"]
