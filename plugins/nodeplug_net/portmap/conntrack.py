"""Connections that the kernel goes on to send where they went: ended when a port of the host changes its owner.

Owns: finding and deleting entries of connection tracking over netlink (nfnetlink_conntrack.h), of one port each.
Refuses: what does not concern that port. A packet of a known connection never sees the rules of a new mapping: until
its entry ends, after 30 or 180 seconds without a packet, a client that keeps sending by UDP is heard by nobody.
"""

import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import ENOENT, Netlink, Request, attributes
from nodeplug_net.nftables.transactions import ABSENT
from nodeplug_net.portmap.config import Forward

_GET: Final = 1 << 8 | 1  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET
_DELETE: Final = 1 << 8 | 2
_STATS: Final = 1 << 8 | 5
_ENTRIES: Final = 1  # CTA_STATS_GLOBAL_ENTRIES
_BODY: Final = 20
_TUPLE_ORIG, _TUPLE_REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_NESTED: Final = 0x8000
_FILTER_FLAGS: Final = 1 << 3 | 1 << 5  # CTA_FILTER_FLAG(CTA_PROTO_NUM), CTA_FILTER_FLAG(CTA_PROTO_DST_PORT)
_UDP: Final = 17
_SOURCES: Final = {1: 4, 3: 16}  # CTA_IP_V4_SRC, CTA_IP_V6_SRC
_DESTINATIONS: Final = {2: 4, 4: 16}
Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Connection:
    """One entry.

    Attributes:
        destination: where the first packet was sent.
        answered_from: who answers: another address if the packet was sent on.
        handle: the attributes that name it to the kernel.
    """

    protocol: int
    destination: Address
    port: int
    answered_from: Address
    answering_port: int
    handle: bytes


def forget_before(netlink: Netlink, forwards: Sequence[Forward]) -> int:
    """Delete connections by UDP to the ports that lead elsewhere than they do now; return how many.

    Args:
        netlink: a socket of nfnetlink in the host's namespace.
        forwards: that have just been made.

    Raises:
        OSError: the kernel refuses.
    """
    local: set[Address] = set()

    def leads_elsewhere(one: Connection, forward: Forward) -> bool:
        if one.answered_from == forward.target or (forward.host_ip or one.destination) != one.destination:
            return False
        if not local:
            local.update(_local_addresses())
        return one.destination in local or one.destination.is_loopback

    return _forget(netlink, [one for one in forwards if one.protocol == _UDP], leads_elsewhere)


def forget_after(netlink: Netlink, forwards: Sequence[Forward]) -> int:
    """Delete the connections that ports have sent to a container that ends; return how many.

    Raises:
        OSError: the kernel refuses.
    """
    return _forget(
        netlink,
        forwards,
        lambda one, forward: (one.answered_from, one.answering_port) == (forward.target, forward.container_port),
    )


def _forget(netlink: Netlink, forwards: Sequence[Forward], chosen: Callable[[Connection, Forward], bool]) -> int:
    count = 0
    for forward in forwards if forwards and _are_any(netlink) else ():
        doomed = [one for one in _connections(netlink, forward) if chosen(one, forward)]
        for one in doomed:
            message = _message(_DELETE, 0x5, one.destination.version, one.handle)
            netlink.ask(Request(message, f"forget a connection to host port {forward.name}", ENOENT))
        count += len(doomed)
    return count


def _are_any(netlink: Netlink) -> bool:
    """Whether the namespace has any entry; looking for one walks through the buckets of all namespaces."""
    message = _message(_STATS, 0x5, 4, b"")
    for answer in netlink.ask(Request(message, "count the connections", ABSENT))[0].messages:
        for kind, start, end in attributes(answer, _BODY):
            if kind == _ENTRIES:
                return any(answer[start:end])
    return True


def _connections(netlink: Netlink, forward: Forward) -> list[Connection]:
    """List the connections to a port; a kernel before 5.8 lists all, and the others are left out here."""
    proto = _attribute(1, bytes([forward.protocol])) + _attribute(3, forward.host_port.to_bytes(2, "big"))
    wanted = _attribute(_TUPLE_ORIG | _NESTED, _attribute(2 | _NESTED, proto))  # CTA_TUPLE_PROTO
    wanted += _attribute(_FILTER | _NESTED, _attribute(1, struct.pack("=I", _FILTER_FLAGS)))  # CTA_FILTER_ORIG_FLAGS
    what = f"list the connections to host port {forward.name}"
    answer = netlink.ask(Request(_message(_GET, 0x301, forward.version, wanted), what, ABSENT))[0]
    found = [one for one in map(_parse, answer.messages) if one is not None]
    return [one for one in found if (one.protocol, one.port) == (forward.protocol, forward.host_port)]


def _message(kind: int, flags: int, version: int, body: bytes) -> bytearray:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    return bytearray(struct.pack("=IHHIIBBH", _BODY + len(body), kind, flags, 0, 0, family, 0, 0) + body)


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data.ljust((len(data) + 3) & ~3, b"\0")


def _parse(message: bytes) -> Connection | None:
    handle, tuples = b"", {}
    for kind, start, end in attributes(message, _BODY):
        if kind in {_TUPLE_ORIG, _ID, _ZONE}:
            handle += _attribute(kind | (_NESTED if kind == _TUPLE_ORIG else 0), message[start:end])
        if kind in {_TUPLE_ORIG, _TUPLE_REPLY}:
            tuples[kind] = _parse_tuple(message, start, end)
    if _TUPLE_ORIG not in tuples or _TUPLE_REPLY not in tuples:
        return None
    (_, destination, protocol, _, port), (source, _, _, source_port, _) = tuples[_TUPLE_ORIG], tuples[_TUPLE_REPLY]
    if destination is None or source is None:
        return None
    return Connection(protocol, destination, port, source, source_port, handle)


def _parse_tuple(message: bytes, start: int, end: int) -> tuple[Address | None, Address | None, int, int, int]:
    source = destination = None
    numbers = {1: 0, 2: 0, 3: 0}  # CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT
    for kind, first, last in attributes(message, start, end):
        for inner, begin, stop in attributes(message, first, last):
            data = message[begin:stop]
            if kind == 2 and inner in numbers:
                numbers[inner] = int.from_bytes(data, "big")
            elif kind == 1 and _SOURCES.get(inner) == len(data):
                source = ip_address(data)
            elif kind == 1 and _DESTINATIONS.get(inner) == len(data):
                destination = ip_address(data)
    return source, destination, numbers[1], numbers[2], numbers[3]


def _local_addresses() -> set[Address]:
    """List the addresses of the namespace that the calling thread is in."""
    with Netlink() as netlink:
        answer = netlink.ask(Request(messages.dump_addresses().fill(index=bytes(4)), "list the addresses of this host"))
    return {
        ip_address(message[first:last])
        for message in answer[0].messages
        for kind, first, last in attributes(message, 24)
        if kind in {1, 2}  # IFA_ADDRESS, IFA_LOCAL
    }
