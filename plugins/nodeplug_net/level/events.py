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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
_ELSEWHERE_GROUPS: Final = (1, 5, 7, 8, 9, 11, 19)
"""RTNLGRP_LINK, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE."""
_LISTEN_ALL_NSID: Final = 8
_NFTABLES_GROUP: Final = 7  # NFNLGRP_NFTABLES
_NEWLINK: Final = 16
_DELLINK: Final = 17
_DELADDR: Final = 21
_NEWROUTE: Final = 24
_DELROUTE: Final = 25
_DELRULE: Final = 33
_DELQDISC: Final = 37
_DELTFILTER: Final = 45
_NEWNETCONF: Final = 80
_TOLD: Final = (_NEWLINK, _DELLINK, _DELADDR, _DELROUTE, _DELQDISC, _DELTFILTER, _NEWNETCONF)
_LOST_ELSEWHERE: Final = (_DELLINK, _DELADDR, _DELROUTE, _DELRULE)
_REPLACE: Final = 0x100  # NLM_F_REPLACE
_HEADER: Final = struct.Struct("=IHHII")
_AF_BRIDGE: Final = 7
_LINK_BODY: Final = 32
_ROUTE_BODY: Final = 28
_NETCONF_BODY: Final = 20
_IFLA_IFNAME: Final = 3
_IFLA_MASTER: Final = 10
_IFLA_PROTINFO: Final = 12
_IFLA_LINKINFO: Final = 18
_INFO_SLAVE_DATA: Final = 5
_BRPORT_MODE: Final = 4
_BRPORT_ISOLATED: Final = 33
_IFLA_IFALIAS: Final = 20
_RTA_OIF: Final = 4
_NETCONF_IFINDEX: Final = 1
_NETCONF_FORWARDING: Final = 2
_ALL: Final = -1  # NETCONFA_IFINDEX_ALL
_DATAGRAM: Final = 1 << 17
_BEGINNING: Final = 1024
"""Bytes of a message in which the interface is."""
_NUMBER: Final = struct.Struct("=i")
_BESIDE: Final = (_SOL_NETLINK, _LISTEN_ALL_NSID)
Program = Sequence[tuple[int, int, int, int]]
"""A filter of a socket (struct sock_filter)."""


Place = tuple[int, int]
"""The kernel's number of another namespace, and the index of an interface there; 0 may be any of them."""
ANYWHERE: Final[Place] = (-1, 0)
"""The kernel had to drop what it would have told."""


@dataclass(frozen=True, slots=True)
class Interest:
    """What a plugin wants to know of.

    Attributes:
        interfaces: the indices of interfaces by name: their end, their going down, their addresses and routes.
        ports: what the aliases of ports begin with: their going down, and leaving a bridge.
        ends: the same of interfaces without a bridge: their going down.
        rules: texts of which one is in every message about the plugin's rules, such as the name of a table; one that
            ends with a hyphen begins a name.
        forwarding: whether the host's forwarding matters.
        pairs: the aliases of interfaces that are not to end.
        ended: the aliases of interfaces that a DEL has ended, or does: they may go down and leave a bridge.
        shaping: whether the end of qdiscs and filters matters.
        ports_by_index: hairpin mode and isolation that ports of bridges are to have.
        indices: of interfaces without a bridge: their addresses and routes.
        containers: says whether one of the plugin's has any of these interfaces.
        changed: says whether something has changed of what the kernel does not tell; asked every second. None if there
            is nothing to ask about.
    """

    interfaces: tuple[tuple[str, int], ...] = ()
    ports: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    forwarding: bool = False
    pairs: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    shaping: bool = False
    ports_by_index: Mapping[int, tuple[bool, bool]] = field(default_factory=dict)
    indices: frozenset[int] = frozenset()
    containers: Callable[[Collection[Place]], bool] = lambda _: False
    changed: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """What came between two readings.

    Attributes:
        route: messages of rtnetlink.
        rules: datagrams of nf_tables, each of one transaction.
        lost: whether the kernel had to drop some.
        elsewhere: where in other namespaces something may have gone.
    """

    route: Sequence[bytes] = ()
    rules: Sequence[bytes] = ()
    lost: bool = False
    elsewhere: Collection[Place] = frozenset()

    def concern(self, interest: Interest) -> bool:
        """Whether a plugin should look."""
        inside = bool(self.elsewhere) and interest.containers(self.elsewhere)  # asked first: it takes note of them
        if inside or self.lost or self._rules_concern(interest) or any(_damages(self.route, interest)):
            return True
        return bool(interest.ports_by_index) and _changes_flags(self.route, interest.ports_by_index)

    def _rules_concern(self, interest: Interest) -> bool:
        marks = [one.encode() + (b"" if one.endswith("-") else b"\0") for one in interest.rules]
        return bool(marks) and any(mark in data for data in self.rules for mark in marks)


def _damages(messages: Iterable[bytes], interest: Interest) -> Iterator[bool]:
    """Tell of each message whether it may be damage; those of ports come last, as their end may follow."""
    bridges = {index for _, index in interest.interfaces}
    indices = bridges | interest.indices
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
            if text(message, *found.get(_IFLA_IFNAME, (0, 0))) in names or index in bridges:
                yield gone or not flags & IFF_UP
            if gone:
                loose.discard(index)
                # One that a DEL ends is among them no more.
                yield text(message, *found.get(_IFLA_IFALIAS, (0, 0))) in interest.pairs
            elif not (flags & IFF_UP and _IFLA_MASTER in found):
                alias = text(message, *found.get(_IFLA_IFALIAS, (0, 0)))
                kept = interest.ports if flags & IFF_UP else interest.ports + interest.ends
                if alias.startswith(kept) and alias not in interest.ended:
                    loose.add(index)
    yield bool(loose)


def _changes_flags(messages: Iterable[bytes], wanted: Mapping[int, tuple[bool, bool]]) -> bool:
    """Whether ports have other flags than they are to have, as the last message about each says."""
    last: dict[int, bytes] = {}
    for message in messages:
        if _HEADER.unpack_from(message)[1] == _NEWLINK:
            last[struct.unpack_from("=i", message, 20)[0]] = message
    return any(_flags_of(message) not in {None, wanted[index]} for index, message in last.items() if index in wanted)


def _flags_of(message: bytes) -> tuple[bool, bool] | None:
    """Read hairpin mode and isolation of a port; None if they are not told.

    What changed them decides where the kernel writes them (br_ifinfo_notify, rtnl_link_slave_info_fill).
    """
    for kind, start, end in attributes(message, _LINK_BODY):
        inside = [(start, end)] if kind == _IFLA_PROTINFO else []
        if kind == _IFLA_LINKINFO:
            inside = [(first, stop) for one, first, stop in attributes(message, start, end) if one == _INFO_SLAVE_DATA]
        for begin, stop in inside:
            found = {one: message[first] for one, first, _ in attributes(message, begin, stop)}
            if _BRPORT_MODE in found:
                return bool(found[_BRPORT_MODE]), bool(found.get(_BRPORT_ISOLATED))
    return None


def _way_of(message: bytes) -> int:
    for kind, start, _ in attributes(message, _ROUTE_BODY):
        if kind == _RTA_OIF:
            return int(struct.unpack_from("=i", message, start)[0])
    return 0


def _stops_forwarding(message: bytes) -> bool:
    found = {kind: struct.unpack_from("=i", message, start)[0] for kind, start, _ in attributes(message, _NETCONF_BODY)}
    return found.get(_NETCONF_IFINDEX) == _ALL and found.get(_NETCONF_FORWARDING) == 0


class Sockets:
    """The sockets, in the namespace of the thread that opens them.

    Attributes:
        route: of rtnetlink.
        rules: of nf_tables.
        elsewhere: of rtnetlink in all namespaces that this one has numbers for, containers' among them; None without
            CAP_NET_BROADCAST (NETLINK_LISTEN_ALL_NSID, netlink(7)).

    Raises:
        OSError: the kernel has none, or forbids to listen.
    """

    __slots__ = ("_opened", "elsewhere", "route", "rules")

    def __init__(self) -> None:
        self._opened: list[socket.socket] = []
        try:
            self.route = self._listen(socket.NETLINK_ROUTE, _ROUTE_GROUPS, _of_kinds(_TOLD))
            self.rules = self._listen(NETLINK_NETFILTER, (_NFTABLES_GROUP,))
            self.elsewhere = self._listen_elsewhere()
        except OSError:
            self.close()
            raise

    def _listen_elsewhere(self) -> socket.socket | None:
        try:
            opened = self._listen(socket.NETLINK_ROUTE, (), _losses())
            opened.setsockopt(_SOL_NETLINK, _LISTEN_ALL_NSID, 1)
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.ENOPROTOOPT}:
                raise
            return None
        for group in _ELSEWHERE_GROUPS:
            opened.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        return opened

    def _listen(self, protocol: int, groups: Sequence[int], told: Program = ()) -> socket.socket:
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
        elsewhere = _places(self.elsewhere) if self.elsewhere is not None else ()
        return Events(list(_messages(route)), foreign, lost or more_lost, elsewhere)

    def all(self) -> Sequence[socket.socket]:
        """Return those that are open."""
        return tuple(self._opened)

    def close(self) -> None:
        """Close them."""
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


def _places(opened: socket.socket) -> Collection[Place]:
    """Read where something was told of; what has no number beside it is of the socket's own namespace."""
    found: set[Place] = set()
    while True:
        try:
            data, beside, _, _ = opened.recvmsg(_BEGINNING, socket.CMSG_SPACE(4))
        except BlockingIOError:
            return found
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            found.add(ANYWHERE)
        else:
            for level, kind, number in beside:
                if (level, kind) == _BESIDE and len(data) >= _LINK_BODY - 8:
                    found.add((_NUMBER.unpack(number)[0], _index_in(data)))


def _index_in(message: bytes) -> int:
    """Return which interface a message is about; 0 if it may be any: of a rule, or of a route in place of another."""
    kind = _HEADER.unpack_from(message)[1]
    if kind in {_NEWLINK, _DELLINK, _DELADDR}:
        return int(struct.unpack_from("=i", message, 20)[0])
    return _way_of(message) if kind == _DELROUTE else 0


def _messages(datagrams: Iterable[bytes]) -> Iterator[bytes]:
    for data in datagrams:
        position = 0
        while position + _HEADER.size <= len(data):
            length = _HEADER.unpack_from(data, position)[0]
            if length < _HEADER.size:
                break
            yield data[position : position + length]
            position += (length + 3) & ~3


def _of_kinds(kinds: Sequence[int]) -> Program:
    """Let messages of these kinds pass.

    A filter sees the message's numbers in host order, as if they were in network order.
    """
    program = [(0x28, 0, 0, 4)]  # ldh [4]: nlmsg_type
    program += [(0x15, len(kinds) - number, 0, socket.htons(kind)) for number, kind in enumerate(kinds)]  # jeq
    return [*program, (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)]  # ret: drop, keep


def _losses() -> Program:
    """Let pass what ends, a link that is down, and a route in place of another."""
    count = len(_LOST_ELSEWHERE)
    return [
        (0x28, 0, 0, 4),  # ldh [4]: nlmsg_type
        *((0x15, count - number + 7, 0, socket.htons(kind)) for number, kind in enumerate(_LOST_ELSEWHERE)),
        (0x15, 2, 0, socket.htons(_NEWLINK)),
        (0x15, 3, 0, socket.htons(_NEWROUTE)),
        (0x06, 0, 0, 0),
        (0x20, 0, 0, 24),  # ld [24]: ifi_flags
        (0x45, 2, 3, socket.htonl(IFF_UP)),  # jset
        (0x28, 0, 0, 6),  # ldh [6]: nlmsg_flags
        (0x45, 1, 0, socket.htons(_REPLACE)),
        (0x06, 0, 0, 0),
        (0x06, 0, 0, 0xFFFFFFFF),
    ]


def _attach(opened: socket.socket, program: Program) -> None:
    """Let the kernel drop messages before the thread is woken (socket(7), SO_ATTACH_FILTER)."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))
