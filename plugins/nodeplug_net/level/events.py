"""What the kernel tells of changes in a network namespace (rtnetlink(7), nfnetlink), and which of it may be damage.

Owns: the two multicast sockets, a filter in the kernel that drops what never is damage, and the reading of the rest.
Refuses: to be the truth. An event says that something may have gone; the plugin looks at what is there. A lost event
(ENOBUFS) counts as one about everything.

An ADD and a DEL cause dozens of events. Those that ours cause are recognised, as far as they would look like damage: a
port that goes down and then goes away, and a transaction that one of our own sockets sent.
"""

import ctypes
import errno
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nodeplug_net.netlink.connection import attributes, text
from nodeplug_net.netlink.messages import IFF_UP
from nodeplug_net.nftables.sockets import NETLINK_NETFILTER, OWN_PORTS

_SOL_NETLINK: Final = 270
_ADD_MEMBERSHIP: Final = 1
_SO_ATTACH_FILTER: Final = 26
_SO_RCVBUFFORCE: Final = 33
ROOM: Final = 4 << 20
"""Bytes: hundreds of ADDs between two readings; without CAP_NET_ADMIN the default stays, and events are lost sooner."""
_ROUTE_GROUPS: Final = (1, 4, 5, 7, 9, 11, 24, 25)
"""RTNLGRP_LINK, TC, IPV4_IFADDR, IPV4_ROUTE, IPV6_IFADDR, IPV6_ROUTE, IPV4_NETCONF, IPV6_NETCONF (rtnetlink.h)."""
_NFTABLES_GROUP: Final = 7  # NFNLGRP_NFTABLES
_NEWLINK: Final = 16
_DELLINK: Final = 17
_DELADDR: Final = 21
_DELROUTE: Final = 25
_DELQDISC: Final = 37
_DELTFILTER: Final = 45
_NEWNETCONF: Final = 80
_TOLD: Final = (_NEWLINK, _DELLINK, _DELADDR, _DELROUTE, _DELQDISC, _DELTFILTER, _NEWNETCONF)
_HEADER: Final = struct.Struct("=IHHII")
_AF_BRIDGE: Final = 7
_LINK_BODY: Final = 32
_ROUTE_BODY: Final = 28
_NETCONF_BODY: Final = 20
_IFLA_IFNAME: Final = 3
_IFLA_MASTER: Final = 10
_IFLA_IFALIAS: Final = 20
_RTA_OIF: Final = 4
_NETCONF_IFINDEX: Final = 1
_NETCONF_FORWARDING: Final = 2
_ALL: Final = -1  # NETCONFA_IFINDEX_ALL
_DATAGRAM: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Interest:
    """What a plugin wants to know of.

    Attributes:
        interfaces: the indices of interfaces by name: their end, their going down, their addresses and routes.
        ports: what the aliases of ports begin with: their going down, and leaving a bridge.
        ends: the same of interfaces without a bridge: their going down.
        rules: texts of which one is in every message about the plugin's rules, such as the name of a table.
        forwarding: whether the host's forwarding matters.
        pairs: the aliases of interfaces that are not to end.
        shaping: whether the end of qdiscs and filters matters.
    """

    interfaces: tuple[tuple[str, int], ...] = ()
    ports: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    forwarding: bool = False
    pairs: frozenset[str] = frozenset()
    shaping: bool = False


@dataclass(frozen=True, slots=True)
class Events:
    """What came between two readings.

    Attributes:
        route: messages of rtnetlink.
        rules: datagrams of nf_tables, each of one transaction.
        lost: whether the kernel had to drop some.
    """

    route: Sequence[bytes] = ()
    rules: Sequence[bytes] = ()
    lost: bool = False

    def concern(self, interest: Interest) -> bool:
        """Whether a plugin should look."""
        return self.lost or self._rules_concern(interest) or any(_damages(self.route, interest))

    def _rules_concern(self, interest: Interest) -> bool:
        marks = [one.encode() + b"\0" for one in interest.rules]
        return bool(marks) and any(mark in data for data in self.rules for mark in marks)


def _damages(messages: Iterable[bytes], interest: Interest) -> Iterator[bool]:
    """Tell of each message whether it may be damage; those of ports come last, as their end may follow."""
    indices = {index for _, index in interest.interfaces}
    names = {name for name, _ in interest.interfaces}
    loose: set[int] = set()
    for message in messages:
        kind = _HEADER.unpack_from(message)[1]
        if kind == _DELADDR:
            yield struct.unpack_from("=i", message, 20)[0] in indices
        elif kind == _DELROUTE:
            yield bool(indices) and _way_of(message) in indices
        elif kind in {_DELQDISC, _DELTFILTER, _NEWNETCONF}:
            yield interest.forwarding and _stops_forwarding(message) if kind == _NEWNETCONF else interest.shaping
        elif message[16] != _AF_BRIDGE:  # which tells of ports what the others tell too
            index, flags = struct.unpack_from("=iI", message, 20)
            found = {one: (start, end) for one, start, end in attributes(message, _LINK_BODY)}
            gone = kind == _DELLINK
            if text(message, *found.get(_IFLA_IFNAME, (0, 0))) in names or index in indices:
                yield gone or not flags & IFF_UP
            if gone:
                loose.discard(index)
                # One that a DEL ends is among them no more.
                yield text(message, *found.get(_IFLA_IFALIAS, (0, 0))) in interest.pairs
            elif not (flags & IFF_UP and _IFLA_MASTER in found):
                alias = text(message, *found.get(_IFLA_IFALIAS, (0, 0)))
                if alias.startswith(interest.ports if flags & IFF_UP else interest.ports + interest.ends):
                    loose.add(index)
    yield bool(loose)


def _way_of(message: bytes) -> int:
    for kind, start, _ in attributes(message, _ROUTE_BODY):
        if kind == _RTA_OIF:
            return int(struct.unpack_from("=i", message, start)[0])
    return 0


def _stops_forwarding(message: bytes) -> bool:
    found = {kind: struct.unpack_from("=i", message, start)[0] for kind, start, _ in attributes(message, _NETCONF_BODY)}
    return found.get(_NETCONF_IFINDEX) == _ALL and found.get(_NETCONF_FORWARDING) == 0


class Sockets:
    """The two sockets, in the namespace of the thread that opens them.

    Raises:
        OSError: the kernel has none, or forbids to listen.
    """

    __slots__ = ("_opened", "route", "rules")

    def __init__(self) -> None:
        self._opened: list[socket.socket] = []
        try:
            self.route = self._listen(socket.NETLINK_ROUTE, _ROUTE_GROUPS, _TOLD)
            self.rules = self._listen(NETLINK_NETFILTER, (_NFTABLES_GROUP,))
        except OSError:
            self.close()
            raise

    def _listen(self, protocol: int, groups: Sequence[int], told: Sequence[int] = ()) -> socket.socket:
        opened = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol
        )
        self._opened.append(opened)
        with suppress(PermissionError):
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, ROOM)
        if told:
            _attach(opened, told)
        # Unbound, a socket has the kernel's address 0, and no message goes back to its sender (af_netlink.c).
        opened.bind((0, 0))
        for group in groups:
            opened.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        return opened

    def read(self) -> Events:
        """Return what has come; nothing if nothing has."""
        route, lost = _drain(self.route)
        rules, more_lost = _drain(self.rules)
        foreign = [one for one in rules if _HEADER.unpack_from(one)[4] not in OWN_PORTS]
        return Events(list(_messages(route)), foreign, lost or more_lost)

    def close(self) -> None:
        """Close both."""
        for one in self._opened:
            one.close()


def _drain(opened: socket.socket) -> tuple[list[bytes], bool]:
    found: list[bytes] = []
    lost = False
    while True:
        try:
            data = opened.recv(_DATAGRAM)
        except BlockingIOError:
            return found, lost
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            lost = True  # what is still in the buffer is read all the same, or the next one would be lost too
        else:
            if len(data) >= _HEADER.size:
                found.append(data)


def _messages(datagrams: Iterable[bytes]) -> Iterator[bytes]:
    for data in datagrams:
        position = 0
        while position + _HEADER.size <= len(data):
            length = _HEADER.unpack_from(data, position)[0]
            if length < _HEADER.size:
                break
            yield data[position : position + length]
            position += (length + 3) & ~3


def _attach(opened: socket.socket, kinds: Sequence[int]) -> None:
    """Let the kernel drop messages of all other kinds, before the thread is woken (socket(7), SO_ATTACH_FILTER).

    The filter sees the message's type in host order, as if it were in network order.
    """
    program = [(0x28, 0, 0, 4)]  # ldh [4]: nlmsg_type
    program += [(0x15, len(kinds) - number, 0, socket.htons(kind)) for number, kind in enumerate(kinds)]  # jeq
    program += [(0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)]  # ret: drop, keep
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))
