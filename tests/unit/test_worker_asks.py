"""How many requests of a plugin's own threads are answered at once."""

import socket
import threading
from collections.abc import Iterator

import pytest

from nodeplug.testing.waiting import until
from nodeplug.worker import asks
from nodeplug.worker.asks import AT_ONCE, Asks
from nodeplug.worker.wire import Channel


class Answering:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.answered: list[Channel] = []
        self.now = 0
        self.most = 0
        self._changing = threading.Lock()

    def __call__(self, channel: Channel) -> None:
        with self._changing:
            self.now += 1
            self.most = max(self.most, self.now)
        self.go.wait(30)
        with self._changing:
            self.now -= 1
            self.answered.append(channel)


@pytest.fixture
def pairs() -> Iterator[list[tuple[Channel, socket.socket]]]:
    made = [socket.socketpair() for _ in range(2 * AT_ONCE)]
    yield [(Channel(mine), theirs) for mine, theirs in made]
    for pair in made:
        for end in pair:
            end.close()


def test_so_many_are_answered_at_once_and_the_others_afterwards(pairs: list[tuple[Channel, socket.socket]]) -> None:
    answering = Answering()
    taken = Asks("guest", answering)
    for channel, _ in pairs:
        taken.take(channel)
    until(lambda: answering.now == AT_ONCE)
    answering.go.set()
    until(lambda: len(answering.answered) == len(pairs))
    assert answering.most == AT_ONCE


def test_of_too_many_the_last_are_closed(
    pairs: list[tuple[Channel, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asks, "WAITING", 2)
    answering = Answering()
    taken = Asks("guest", answering)
    for channel, _ in pairs:
        taken.take(channel)
    assert [theirs.recv(1) for _, theirs in pairs[AT_ONCE + 2 :]] == [b""] * (AT_ONCE - 2)
    answering.go.set()
    until(lambda: len(answering.answered) == AT_ONCE + 2)


def test_what_waits_is_closed_with_the_process(pairs: list[tuple[Channel, socket.socket]]) -> None:
    answering = Answering()
    taken = Asks("guest", answering)
    for channel, _ in pairs:
        taken.take(channel)
    taken.close()
    assert [theirs.recv(1) for _, theirs in pairs[AT_ONCE:]] == [b""] * AT_ONCE
    answering.go.set()
    until(lambda: len(answering.answered) == AT_ONCE)


def test_a_thread_that_cannot_be_started_takes_no_place(
    pairs: list[tuple[Channel, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering = Answering()
    answering.go.set()
    taken = Asks("guest", answering)

    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        for channel, _ in pairs:
            with pytest.raises(RuntimeError):
                taken.take(channel)
    taken.take(pairs[0][0])
    until(lambda: len(answering.answered) == 1)
