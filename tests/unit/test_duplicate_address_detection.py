"""How long an address is waited for that the kernel is still detecting duplicates of."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from nodeplug_net.netlink import dad

LINK: Any = SimpleNamespace(name="eth0", index=2)


class Waiting:
    """The kernel's messages, which never come; each wait lasts as long as it may."""

    def __init__(self) -> None:
        self.now, self.waits, self.looks = 100.0, list[float](), list[bool]()

    @contextmanager
    def changes(self, _: object) -> Iterator["Waiting"]:
        yield self

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds + 0.001

    def settled(self, *_: object, last: bool) -> bool:
        self.looks.append(last)
        return last


def test_detection_that_tells_nothing_is_waited_for_once_and_looked_at_a_last_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = Waiting()
    monkeypatch.setattr(dad, "time", SimpleNamespace(monotonic=lambda: waiting.now))
    monkeypatch.setattr(dad, "Changes", waiting.changes)
    monkeypatch.setattr(dad, "_settled", waiting.settled)
    dad.settle(LINK, LINK)
    assert waiting.looks == [False, True]
    assert waiting.waits == [pytest.approx(dad._PATIENCE)]
