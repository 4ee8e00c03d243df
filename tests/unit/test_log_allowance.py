"""How many lines of a plugin's process reach the daemon's log."""

import logging

import pytest

from nodeplug.worker.log_allowance import BURST, PER_SECOND, LogAllowance


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_burst_passes_and_then_so_many_in_each_second() -> None:
    clock = Clock()
    allowance = LogAllowance("acme", clock)
    assert [allowance.take() for _ in range(BURST + 1)].count(True) == BURST
    clock.now = 0.99
    assert not allowance.take()
    clock.now = 1
    assert [allowance.take() for _ in range(2 * PER_SECOND)].count(True) == PER_SECOND
    clock.now = 1e6
    assert [allowance.take() for _ in range(2 * BURST)].count(True) == BURST


def test_the_first_line_after_others_says_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    allowance = LogAllowance("acme", clock)
    for _ in range(BURST + 7):
        allowance.take()
    assert said(caplog) == []
    clock.now = 1
    assert allowance.take()
    assert said(caplog) == ["7 lines of plugin acme were left out: it may log 100 in a second, and 1000 at once"]
    assert allowance.take()
    allowance.end()
    assert len(said(caplog)) == 1


def test_in_a_flood_there_is_one_such_sentence_in_a_second(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    allowance = LogAllowance("acme", clock)
    taken = 0
    for step in range(10_000):
        clock.now = step / 1000
        taken += allowance.take()
    assert BURST + 8 * PER_SECOND <= taken <= BURST + 10 * PER_SECOND
    assert len(said(caplog)) <= 10


def test_the_end_says_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    allowance = LogAllowance("acme", Clock())
    for _ in range(BURST + 1):
        allowance.take()
    allowance.end()
    assert said(caplog)[0].startswith("1 lines of plugin acme")
