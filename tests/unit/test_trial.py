"""What `nodeplug try` shows of the daemon's log when a plugin fails."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodeplug.cli import trial


class GrowingLog:
    """A node to whose log each look adds a line, until there are enough."""

    def __init__(self, lines: int) -> None:
        self.lines, self.looks = lines, 0

    @property
    def log(self) -> str:
        self.looks += 1
        return "line\n" * min(self.looks, self.lines)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only sleeping moves."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(trial, "time", clock)
    return clock


def test_lines_that_come_after_the_failure_are_in_the_log_that_is_shown(clock: SimpleNamespace) -> None:
    assert trial._quiet_log(cast("Any", GrowingLog(3))) == "line\n" * 3


def test_a_log_that_never_ends_is_shown_after_three_seconds(clock: SimpleNamespace) -> None:
    trial._quiet_log(cast("Any", GrowingLog(1_000_000)))
    assert 3 <= clock.now < 3.5
