"""Descriptors that come over a socket."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from nodeplug.descriptors import receive

SO_PASSPIDFD = 76
"""socket(7), asm-generic; Python has no name for it."""


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_no_process_that_is_started_meanwhile_inherits_them(ends: tuple[socket.socket, socket.socket]) -> None:
    socket.send_fds(ends[0], [b"two"], [0, 1])
    data, descriptors, _ = receive(ends[1], 64, 8)
    try:
        assert (data, len(descriptors)) == (b"two", 2)
        assert not any(os.get_inheritable(one) for one in descriptors)
    finally:
        for one in descriptors:
            os.close(one)


def test_who_only_looks_does_not_wait(ends: tuple[socket.socket, socket.socket]) -> None:
    end_a_wait = threading.Timer(5, ends[0].shutdown, [socket.SHUT_RDWR])
    end_a_wait.start()
    try:
        with pytest.raises(BlockingIOError):
            receive(ends[1], 64, 8, socket.MSG_DONTWAIT)
    finally:
        end_a_wait.cancel()


def test_more_than_are_accepted_are_told(ends: tuple[socket.socket, socket.socket]) -> None:
    socket.send_fds(ends[0], [b"many"], [0] * 8)
    _, descriptors, flags = receive(ends[1], 64, 2)
    for one in descriptors:
        os.close(one)
    assert len(descriptors) < 8
    assert flags & socket.MSG_CTRUNC


def test_a_descriptor_of_the_sender_that_a_stranger_has_asked_for_is_closed(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    try:
        ends[1].setsockopt(socket.SOL_SOCKET, SO_PASSPIDFD, 1)
    except OSError:
        pytest.skip("needs Linux 6.5: this kernel has no SO_PASSPIDFD")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the folder itself is one
    for _ in range(3):
        ends[0].send(b"x")
        assert receive(ends[1], 64, 8).descriptors == []
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
