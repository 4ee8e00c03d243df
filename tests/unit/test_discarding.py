"""Descriptors of strangers that take long to close."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest
from tests.node.workers.lingering import lingering

from nodeplug.contract import discarding
from nodeplug.contract.discarding import DISCARDING, discard
from nodeplug.testing.waiting import until


@pytest.fixture
def far() -> Iterator[socket.socket]:
    """The other end of a socket that was discarded, and waits until this one has read everything."""
    near, end = lingering()
    discard([around(near).detach()])
    yield end
    end.close()


def around(near: socket.socket) -> socket.socket:
    """Return a socket that has another one in its queue; who closes the first closes the other one."""
    inner, outer = socket.socketpair()
    with near, inner:
        socket.send_fds(inner, [b"x"], [near.fileno()])
    return outer


def closing() -> int:
    return sum(one.name == DISCARDING for one in threading.enumerate())


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_whoever_discards_a_descriptor_that_does_not_close_goes_on(far: socket.socket) -> None:
    assert closing() == 1
    far.close()
    until(lambda: closing() == 0)


def test_others_are_closed_meanwhile(far: socket.socket) -> None:
    assert far.fileno() >= 0
    other = os.dup(0)
    discard([other])
    until(lambda: not is_open(other))


def test_with_every_thread_kept_descriptors_stay_open_until_one_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discarding, "_THREADS", threading.Semaphore(0))
    first, second = os.dup(0), os.dup(0)
    discard([first])
    assert is_open(first)
    monkeypatch.setattr(discarding, "_THREADS", threading.Semaphore(1))
    discard([second])
    until(lambda: not is_open(first) and not is_open(second))


def test_a_socket_is_closed_without_waiting_for_its_other_end() -> None:
    near, far = lingering()
    discard([near.detach()])
    until(lambda: closing() == 0)
    far.close()
