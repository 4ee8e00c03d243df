"""A call whose answer to one message to the kernel is lost: of each of its messages in turn.

The kernel does what a message asks, and then has no room for the answer in the socket's queue (ENOBUFS, netlink(7)). So
the caller knows less than after a refusal: what it asked for may be there.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.node.failing import CALLS

from nodeplug import PluginError
from nodeplug_net.netlink.connection import Netlink

_QUESTION = bytes.fromhex("1400000012000103000000000000000011000000")
"""RTM_GETLINK, of every link; the answer may as well be a refusal."""
_ENOUGH = 64
"""Questions whose answers are more than the smallest queue holds (SOCK_MIN_RCVBUF, 2 or 4 kB)."""


def overfill(sock: socket.socket) -> None:
    """Have the kernel answer questions until no more fits into the queue of a socket, as small as there are."""
    room = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel counts its own part twice
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    for _ in range(_ENOUGH):
        sock.send(_QUESTION)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)  # what comes later has room as ever


@contextmanager
def _overflowing(number: int) -> Iterator[Callable[[], bool]]:
    """Let the answer to one message be lost; what it yields says whether the work came so far."""
    count, exchange = 0, Netlink.exchange

    def counted(self: Netlink, messages: Any) -> Any:
        nonlocal count
        if threading.current_thread().name == CALLS:
            count += 1
            if count == number:
                overfill(self._socket)
        return exchange(self, messages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Netlink, "exchange", counted)
        yield lambda: count >= number


def every_overflow(work: Callable[[], object], *, least: int) -> Iterator[str]:
    """Do some work once for each of its messages, whose answer is lost; what the work said of it is yielded.

    Args:
        work: runs in threads of `run_in`, as calls do, and is to send the same messages each time.
        least: how many messages it sends at least.
    """
    number = 0
    while True:
        number += 1
        said = ""
        with _overflowing(number) as reached:
            try:
                work()
            except (PluginError, OSError) as error:
                said = str(error)
            if not reached():
                assert not said
                assert number > least
                return
        yield said
