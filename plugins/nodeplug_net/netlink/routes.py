"""Addresses and routes of interfaces, read from what rtnetlink says of them.

Owns: RTM_NEWADDR and RTM_NEWROUTE as values, and the values of addresses that come again and again.
Refuses: sockets and requests (`links`).
"""

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import Final

from nodeplug_net.netlink.connection import attributes

Interface = IPv4Interface | IPv6Interface
_IFA_ADDRESS: Final = 1
_IFA_LOCAL: Final = 2
_RTA_DST: Final = 1
_RTA_GATEWAY: Final = 5
_RTA_MULTIPATH: Final = 9
_RTA_TABLE: Final = 15
_U32: Final = struct.Struct("=I")
_HOP: Final = struct.Struct("=HBBi")
_READ: Final = 1024
"""Addresses and networks whose values are remembered."""


@lru_cache(_READ)
def interface(packed: bytes, prefix: int) -> Interface:
    """Return an address with its prefix: those of gateways are read and compared in every call of their network."""
    return ipaddress.ip_interface((packed, prefix))


@lru_cache(_READ)
def _network(packed: bytes, prefix: int) -> IPv4Network | IPv6Network:
    return ipaddress.ip_network((packed, prefix))


_address: Final = lru_cache(_READ)(ipaddress.ip_address)


def parse_address(message: bytes) -> Interface:
    """Read an RTM_NEWADDR message; IFA_LOCAL is the interface's own address, IFA_ADDRESS a peer's if both exist."""
    found = {kind: message[start:end] for kind, start, end in attributes(message, 24)}
    return interface(found.get(_IFA_LOCAL) or found[_IFA_ADDRESS], message[17])


@dataclass(frozen=True, slots=True)
class Route:
    """A route of one interface: what CHECK compares."""

    dst: IPv4Network | IPv6Network
    gw: ipaddress.IPv4Address | ipaddress.IPv6Address | None
    table: int


def parse_routes(message: bytes, index: int) -> Iterator[Route]:
    """Read an RTM_NEWROUTE message (struct rtmsg after the header, attributes from byte 28).

    Args:
        message: as the kernel sent it.
        index: of the interface whose hops count. Two interfaces with the same IPv6 route share one message: the kernel
            merges them into a route with several hops.
    """
    version = 4 if message[16] == 2 else 6
    found = {kind: message[start:end] for kind, start, end in attributes(message, 28)}
    dst = _network(found.get(_RTA_DST) or bytes(4 if version == 4 else 16), message[17])
    table = _U32.unpack(found[_RTA_TABLE])[0] if _RTA_TABLE in found else message[20]
    hops = [found] if _RTA_MULTIPATH not in found else _parse_hops(found[_RTA_MULTIPATH], index)
    for hop in hops:
        gateway = hop.get(_RTA_GATEWAY)
        yield Route(dst, _address(gateway) if gateway else None, table)


def _parse_hops(hops: bytes, index: int) -> Iterator[dict[int, bytes]]:
    """Walk the struct rtnexthop items of RTA_MULTIPATH: length, flags, weight, interface, attributes."""
    start = 0
    while start + _HOP.size <= len(hops):
        length, _, _, interface = _HOP.unpack_from(hops, start)
        if length < _HOP.size:
            return
        if interface == index:
            inner = attributes(hops, start + _HOP.size, start + length)
            yield {kind: hops[first:last] for kind, first, last in inner}
        start += (length + 3) & ~3
