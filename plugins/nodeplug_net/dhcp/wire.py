"""The socket over which a DHCP client speaks while its interface has no address.

Owns: a packet socket of one interface, without blocking, whose filter lets only answers through; bringing the interface
up; who may be reached through it.
Refuses: what is said. Nothing here waits for a server.

The socket stays in the namespace of the thread that opens it, and keeps that namespace alive: it is closed as soon as
nothing is awaited.
"""

import ctypes
import socket
import struct
import time
from collections.abc import Iterator
from ipaddress import IPv4Address
from types import TracebackType
from typing import Final, Self

from nodeplug_net.dhcp import datagram
from nodeplug_net.dhcp.exchange import Outgoing
from nodeplug_net.dhcp.message import Malformed, Message, decode
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import OPER_UP, Links

_ETH_P_IP: Final = 0x0800
_EVERYBODY: Final = b"\xff" * 6
_SO_ATTACH_FILTER: Final = 26
_AT_ONCE: Final = 64
"""Packets that are read before others get their turn."""
_SIZE: Final = 65535
_UP_PATIENCE: Final = 1.0
_POLL: Final = 0.001


class Wire:
    """A packet socket of one interface of the calling thread's namespace.

    Raises:
        OSError: there is no such interface, or it is down.
    """

    __slots__ = ("_socket", "mac")

    def __init__(self, ifname: str) -> None:
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_PACKET, kind, 0)  # 0: nothing arrives before the filter is there
        try:
            program = ctypes.create_string_buffer(datagram.FILTER, len(datagram.FILTER))
            described = struct.pack("HP", datagram.FILTER_LENGTH, ctypes.addressof(program))
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
            self._socket.bind((ifname, _ETH_P_IP))
            self.mac: bytes = self._socket.getsockname()[4]
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor, for those that wait."""
        return self._socket.fileno()

    def send(self, outgoing: Outgoing) -> None:
        """Send a message.

        Raises:
            OSError: the interface is down or gone.
        """
        data = datagram.wrap(outgoing.message.encode(), outgoing.source, outgoing.destination)
        name = self._socket.getsockname()[0]
        self._socket.sendto(data, (name, _ETH_P_IP, 0, 0, outgoing.mac or _EVERYBODY))

    def received(self) -> Iterator[tuple[Message, bytes]]:
        """Read what has arrived: messages, each with the hardware address of its sender; all else is dropped.

        Raises:
            OSError: the interface is down or gone.
        """
        for _ in range(_AT_ONCE):
            try:
                data, sender = self._socket.recvfrom(_SIZE)
            except (BlockingIOError, InterruptedError):
                return
            payload = datagram.unwrap(data)
            if payload is None:
                continue
            try:
                yield decode(payload), sender[4]
            except Malformed:
                continue

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def bring_up(ifname: str) -> bool:
    """Bring an interface of the calling thread's namespace up, and wait a little until packets pass.

    Returns:
        Whether there is such an interface.

    Raises:
        OSError: the kernel refuses.
    """
    with Netlink() as netlink:
        links = Links(netlink)
        link = links.get(ifname)
        if link is not None and not link.is_up:
            links.set_up(link)
            until = time.monotonic() + _UP_PATIENCE
            while link is not None and link.state != OPER_UP and time.monotonic() < until:
                time.sleep(_POLL)
                link = links.get(ifname)
    return link is not None


def bring_down(ifname: str) -> None:
    """Bring an interface of the calling thread's namespace down, if there is one.

    Raises:
        OSError: the kernel refuses.
    """
    with Netlink() as netlink:
        links = Links(netlink)
        link = links.get(ifname)
        if link is not None:
            links.set_down(link)


def can_open() -> None:
    """Open such a socket and close it.

    Raises:
        OSError: this process may not.
    """
    socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0).close()


def send_from_host(outgoing: Outgoing, via: str) -> None:
    """Send a message from the host in the name of a client whose interface is gone.

    Args:
        outgoing: to one server.
        via: an interface of the calling thread's namespace that leads into the network; empty, or of another
            namespace, to let routes decide.

    Raises:
        OSError: there is no way to the server.
    """
    if via and outgoing.mac is not None:
        try:
            with Wire(via) as wire:
                wire.send(outgoing)
        except OSError:
            pass
        else:
            return
    _by_route(outgoing.message.encode(), outgoing.destination)


def _by_route(data: bytes, server: IPv4Address) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(data, (str(server), datagram.SERVER_PORT))
