"""Sockets of nf_tables that stay open between calls.

Owns: idle sockets, by network namespace; each is used by one call at a time.
Refuses: rtnetlink, whose sockets cost nothing to close. Closing a socket of nf_tables waits for a grace period of RCU
when anything was deleted shortly before, and it holds the mutex of all transactions meanwhile (nft_rcv_nl_event). Every
link deletion needs that mutex while it holds RTNL: a close after each DEL makes all of them 10 ms slower.

An open socket keeps its namespace alive. The node's own exists anyway; for any other one the sockets are closed
after `IDLE` seconds without use, at the next call, or at `close`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from nodeplug import Netns
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.reaper import Reaper

IDLE: Final = 60.0
NETLINK_NETFILTER: Final = 12
OWN_PORTS: Final[set[int]] = set()
"""The addresses (netlink(7), nl_pid) of this process's sockets: what the kernel tells of their doings is no news."""

Identity = tuple[int, int]


class NftSocket(Netlink):
    """A socket of nf_tables in the calling thread's namespace, known as this process's own while it is open."""

    __slots__ = ("_port",)

    def __init__(self) -> None:
        super().__init__(NETLINK_NETFILTER)
        self._port = 0
        try:
            self._port = self.bind()
        except BaseException:
            super().close()
            raise
        OWN_PORTS.add(self._port)

    def close(self) -> None:
        """Close the socket."""
        OWN_PORTS.discard(self._port)
        super().close()


def open_nft() -> Netlink:
    """Open a socket of nf_tables in the calling thread's namespace."""
    return NftSocket()


@dataclass(slots=True)
class NftSockets:
    """The idle sockets. Any thread may call it: a list's append and pop are atomic.

    An open socket keeps its namespace, and so its inode number: the identity cannot be reused.
    """

    reaper: Reaper
    _idle: dict[Identity, list[tuple[float, Netlink]]] = field(default_factory=dict)
    _closed: bool = False

    @contextmanager
    def lent(self, netns: Netns) -> Iterator[Netlink]:
        """Lend a socket of the namespace that the calling thread is in.

        Args:
            netns: that namespace.

        Yields:
            A socket; it is closed if the block fails, because replies may be left in it.
        """
        namespace = netns.identity
        netlink = self.take(namespace)
        try:
            yield netlink
        except BaseException:
            self.reaper.close(netlink)
            raise
        self.give_back(namespace, netlink)

    def take(self, namespace: Identity) -> Netlink:
        """Return a socket of the namespace that the calling thread is in, for `give_back` or to be closed."""
        try:
            return self._idle.setdefault(namespace, []).pop()[1]
        except IndexError:
            return open_nft()

    def give_back(self, namespace: Identity, netlink: Netlink) -> None:
        """Keep a socket of a namespace for the next call; every reply to it has been read."""
        if self._closed:
            netlink.close()
            return
        self._idle.setdefault(namespace, []).append((time.monotonic(), netlink))
        self._expire(namespace)

    def _expire(self, current: Identity) -> None:
        for identity in list(self._idle):
            if identity != current:
                self._close(identity, time.monotonic() - IDLE)

    def _close(self, identity: Identity, before: float) -> None:
        """Close what was not used since a moment; the list stays, as another thread may hold it."""
        idle = self._idle.get(identity, [])
        try:
            while idle[0][0] <= before:
                self.reaper.close(idle.pop(0)[1])
        except IndexError:  # none left, perhaps because another thread was faster
            return

    def close(self) -> None:
        """Close every idle socket, in the calling thread, and those that are given back from now on."""
        self._closed = True
        for idle in list(self._idle.values()):
            while idle:
                idle.pop()[1].close()
