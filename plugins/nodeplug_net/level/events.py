"""What the kernel tells of changes in a network namespace (rtnetlink(7), nfnetlink), and which of it may be damage.

Owns: the two multicast sockets, a filter in the kernel that drops what never is damage, and the reading of the rest.
Refuses: to be the truth. An event says that something may have gone; the plugin looks at what is there. A lost event
(ENOBUFS) counts as one about everything.

An ADD and a DEL cause dozens of events. Those that ours cause are recognised, as far as they would look like damage: a
port that goes down and then goes away, and a transaction that one of our own sockets sent.
"""

import errno
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodeplug_net.level.filters import (
    AF_BRIDGE,
    BRPORT_ISOLATED,
    BRPORT_MODE,
    DELADDR,
    DELLINK,
    DELQDISC,
    DELROUTE,
    DELTFILTER,
    IFLA_IFALIAS,
    IFLA_LINKINFO,
    IFLA_MASTER,
    IFLA_PROTINFO,
    INFO_SLAVE_DATA,
    LINK_BODY,
    NETCONF_BODY,
    NETCONF_IFINDEX,
    NEWLINK,
    NEWNETCONF,
    Program,
    attach,
    damage,
    losses,
)
from nodeplug_net.netlink.connection import attributes, text
from nodeplug_net.netlink.messages import IFF_UP
from nodeplug_net.nftables.sockets import NETLINK_NETFILTER, OWN_PORTS

_SOL_NETLINK: Final = 270
_ADD_MEMBERSHIP: Final = 1
_SO_RCVBUFFORCE: Final = 33
ROOM: Final = 4 << 20
"""Bytes: hundreds of ADDs between two readings; without CAP_NET_ADMIN the default stays, and events are lost sooner."""
_ROUTE_GROUPS: Final = (1, 4, 5, 7, 9, 11, 24, 25)
"""RTNLGRP_LINK, TC, IPV4_IFADDR, IPV4_ROUTE, IPV6_IFADDR, IPV6_ROUTE, IPV4_NETCONF, IPV6_NETCONF (rtnetlink.h)."""
_ELSEWHERE_GROUPS: Final = (1, 5, 7, 8, 9, 11, 19)
"""RTNLGRP_LINK, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE."""
_LISTEN_ALL_NSID: Final = 8
_NFTABLES_GROUP: Final = 7  # NFNLGRP_NFTABLES
_HEADER: Final = struct.Struct("=IHHII")
_ROUTE_BODY: Final = 28
_IFLA_IFNAME: Final = 3
_RTA_OIF: Final = 4
_NETCONF_FORWARDING: Final = 2
_ALL: Final = -1  # NETCONFA_IFINDEX_ALL
_DATAGRAM: Final = 1 << 17
_BEGINNING: Final = 1024
"""Bytes of a message in which the interface is."""
_NUMBER: Final = struct.Struct("=i")
_INDEX_AND_FLAGS: Final = struct.Struct("=iI")
_BESIDE: Final = (_SOL_NETLINK, _LISTEN_ALL_NSID)
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
class Told:
    """One message of rtnetlink, as far as it matters.

    Attributes:
        kind: its number.
        index: of the interface.
        is_up: whether the link is.
        name: of the link.
        alias: of the link.
        has_master: whether the link is a port, or in a VRF.
        flags: hairpin mode and isolation of a port; None if they are not told.
        of_bridge: whether a bridge tells of its port, which tells nothing new but flags.
        stops_forwarding: whether the host does not forward any more.
    """

    kind: int
    index: int = 0
    is_up: bool = False
    name: str = ""
    alias: str = ""
    has_master: bool = False
    flags: tuple[bool, bool] | None = None
    of_bridge: bool = False
    stops_forwarding: bool = False


@dataclass(frozen=True, slots=True)
class Events:
    """What came between two readings.

    Attributes:
        route: what messages of rtnetlink tell.
        rules: datagrams of nf_tables, each of one transaction.
        lost: whether the kernel had to drop some.
        elsewhere: where in other namespaces something may have gone.
    """

    route: Sequence[Told] = ()
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


def _read(message: bytes) -> Told:
    kind = _HEADER.unpack_from(message)[1]
    if kind in {NEWLINK, DELLINK}:
        return _read_link(kind, message)
    if kind == DELADDR:
        return Told(kind, _NUMBER.unpack_from(message, 20)[0])
    if kind == NEWNETCONF:
        found = {one: _NUMBER.unpack_from(message, start)[0] for one, start, _ in attributes(message, NETCONF_BODY)}
        stops = found.get(NETCONF_IFINDEX) == _ALL and found.get(_NETCONF_FORWARDING) == 0
        return Told(kind, stops_forwarding=stops)
    return Told(kind, _way_of(message) if kind == DELROUTE else 0)


def _read_link(kind: int, message: bytes) -> Told:
    index, flags = _INDEX_AND_FLAGS.unpack_from(message, 20)
    found = {one: (start, end) for one, start, end in attributes(message, LINK_BODY)}
    nowhere = (0, 0)
    return Told(
        kind,
        index,
        bool(flags & IFF_UP),
        text(message, *found.get(_IFLA_IFNAME, nowhere)),
        text(message, *found.get(IFLA_IFALIAS, nowhere)),
        IFLA_MASTER in found,
        _flags_in(message, found),
        message[16] == AF_BRIDGE,
    )


def _flags_in(message: bytes, found: Mapping[int, tuple[int, int]]) -> tuple[bool, bool] | None:
    """Read hairpin mode and isolation of a port; None if they are not told.

    What changed them decides where the kernel writes them (br_ifinfo_notify, rtnl_link_slave_info_fill).
    """
    inside = [found[IFLA_PROTINFO]] if IFLA_PROTINFO in found else []
    if IFLA_LINKINFO in found:
        kinds = attributes(message, *found[IFLA_LINKINFO])
        inside += [(first, stop) for one, first, stop in kinds if one == INFO_SLAVE_DATA]
    for begin, stop in inside:
        flags = {one: message[first] for one, first, _ in attributes(message, begin, stop)}
        if BRPORT_MODE in flags:
            return bool(flags[BRPORT_MODE]), bool(flags.get(BRPORT_ISOLATED))
    return None


def _damages(told: Iterable[Told], interest: Interest) -> Iterator[bool]:
    """Say of each message whether it may be damage; those of ports come last, as their end may follow."""
    bridges = {index for _, index in interest.interfaces}
    indices = bridges | interest.indices
    names = {name for name, _ in interest.interfaces}
    loose: set[int] = set()
    for one in told:
        if one.kind in {DELADDR, DELROUTE}:
            yield one.index in indices
        elif one.kind in {DELQDISC, DELTFILTER}:
            yield interest.shaping
        elif one.kind == NEWNETCONF:
            yield interest.forwarding and one.stops_forwarding
        elif not one.of_bridge:
            gone = one.kind == DELLINK
            if one.name in names or one.index in bridges:
                yield gone or not one.is_up
            if gone:
                loose.discard(one.index)
                yield one.alias in interest.pairs  # one that a DEL ends is among them no more
            elif not (one.is_up and one.has_master):
                kept = interest.ports if one.is_up else interest.ports + interest.ends
                if one.alias.startswith(kept) and one.alias not in interest.ended:
                    loose.add(one.index)
    yield bool(loose)


def _changes_flags(told: Iterable[Told], wanted: Mapping[int, tuple[bool, bool]]) -> bool:
    """Whether ports have other flags than they are to have, as the last message about each says."""
    last = {one.index: one.flags for one in told if one.kind == NEWLINK}
    return any(flags not in {None, wanted[index]} for index, flags in last.items() if index in wanted)


def _way_of(message: bytes) -> int:
    for kind, start, _ in attributes(message, _ROUTE_BODY):
        if kind == _RTA_OIF:
            return int(_NUMBER.unpack_from(message, start)[0])
    return 0


class Sockets:
    """The sockets, in the namespace of the thread that opens them. One thread reads; any may change what is heard.

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
            self.route = self._listen(socket.NETLINK_ROUTE, _ROUTE_GROUPS, damage(all_flags=False))
            self.rules = self._listen(NETLINK_NETFILTER, (_NFTABLES_GROUP,))
            self.elsewhere = self._listen_elsewhere()
        except OSError:
            self.close()
            raise

    def _listen_elsewhere(self) -> socket.socket | None:
        try:
            opened = self._listen(socket.NETLINK_ROUTE, (), losses())
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
            attach(opened, told)
        # Unbound, a socket has the kernel's address 0, and no message goes back to its sender (af_netlink.c).
        opened.bind((0, 0))
        for group in groups:
            opened.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        return opened

    def hear(self, *, all_flags: bool) -> None:
        """Say whether a port without flags may be damaged; at first it may not.

        Raises:
            OSError: the kernel refuses.
        """
        attach(self.route, damage(all_flags=all_flags))

    def read(self) -> Events:
        """Return what has come; nothing if nothing has."""
        route, lost = _drain(self.route)
        rules, more_lost = _drain(self.rules)
        foreign = [one for one in rules if _HEADER.unpack_from(one)[4] not in OWN_PORTS]
        elsewhere = _places(self.elsewhere) if self.elsewhere is not None else ()
        return Events(list(map(_read, _messages(route))), foreign, lost or more_lost, elsewhere)

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
                if (level, kind) == _BESIDE and len(data) >= LINK_BODY - 8:
                    found.add((_NUMBER.unpack(number)[0], _index_in(data)))


def _index_in(message: bytes) -> int:
    """Return which interface a message is about; 0 if it may be any: of a rule, or of a route in place of another."""
    kind = _HEADER.unpack_from(message)[1]
    if kind in {NEWLINK, DELLINK, DELADDR}:
        return int(_NUMBER.unpack_from(message, 20)[0])
    return _way_of(message) if kind == DELROUTE else 0


def _messages(datagrams: Iterable[bytes]) -> Iterator[bytes]:
    for data in datagrams:
        position = 0
        while position + _HEADER.size <= len(data):
            length = _HEADER.unpack_from(data, position)[0]
            if length < _HEADER.size:
                break
            yield data[position : position + length]
            position += (length + 3) & ~3
