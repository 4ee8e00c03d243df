"""The wait for a change that the kernel tells of (rtnetlink(7), multicast groups).

Owns: one socket that listens while one call waits, and the end of the wait.
Refuses: to say what changed. Who waits looks at what is there: once before it listens, once after it has begun to, and
after every wake-up, so that no change is missed and a lost message (ENOBUFS) is one more look.
"""

import select
import socket
from contextlib import suppress
from typing import Final, Self

LINKS: Final = 1
"""RTMGRP_LINK (linux/rtnetlink.h)."""
IPV6_ADDRESSES: Final = 0x100
"""RTMGRP_IPV6_IFADDR."""
_ROOM: Final = 65536


class Changes:
    """Listens in the network namespace of the thread that makes it, until it is closed.

    Args:
        groups: `LINKS`, `IPV6_ADDRESSES` or both.

    Raises:
        OSError: the kernel forbids to listen.
    """

    __slots__ = ("_poll", "_socket")

    def __init__(self, groups: int) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
        try:
            self._socket.bind((0, groups))
        except OSError:
            self._socket.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def wait(self, seconds: float) -> None:
        """Return when something has changed, or after some seconds; what has been told is read."""
        if self._poll.poll(max(seconds, 0) * 1000):
            with suppress(OSError):  # nothing more, or ENOBUFS
                while self._socket.recv(_ROOM):
                    pass
