"""Policy routing: rules, and routes that are carried from one table to another as they are.

Owns: RTM_NEWRULE and its like (linux/fib_rules.h), and RTM_NEWROUTE messages that the kernel sent, of which only the
table is changed: whatever else a route has, such as metrics, several hops or who made it, stays.
Refuses: which routes and rules there should be.
"""

import errno
import ipaddress
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import EEXIST, ENOENT, Netlink, Request, attributes
from nodeplug_net.netlink.link_messages import attribute

MAIN: Final = 254
RESERVED: Final = frozenset({253, MAIN, 255})
"""RT_TABLE_DEFAULT, RT_TABLE_MAIN, RT_TABLE_LOCAL."""
_NEWROUTE: Final = 24
_DELROUTE: Final = 25
_NEWRULE: Final = 32
_DELRULE: Final = 33
_GETRULE: Final = 34
_ASK: Final = 0x5  # NLM_F_REQUEST | NLM_F_ACK
_DUMP: Final = 0x301
_CREATE: Final = 0x605  # and NLM_F_CREATE | NLM_F_EXCL
_REPLACE: Final = 0x505  # and NLM_F_CREATE | NLM_F_REPLACE
_AF: Final = {4: 2, 6: 10}
_VERSION: Final = {2: 4, 10: 6}
_RTMSG: Final = struct.Struct("=BBBBBBBBI")
"""struct rtmsg; struct fib_rule_hdr has the same layout."""
_BODY: Final = 16 + _RTMSG.size
_RTPROT_KERNEL: Final = 2
_RTPROT_BOOT: Final = 3
_TO_TABLE: Final = 1  # FR_ACT_TO_TBL
_FRA_SRC: Final = 2
_FRA_TABLE: Final = 15
_RTA_DST: Final = 1
_RTA_OIF: Final = 4
_RTA_GATEWAY: Final = 5
_RTA_PREFSRC: Final = 7
_RTA_TABLE: Final = 15
_NOT_SENT: Final = frozenset({12, _RTA_TABLE, 23})
"""RTA_CACHEINFO, RTA_TABLE and RTA_EXPIRES: what the kernel tells and does not take, or what is written anew."""
_CLONED: Final = 0x200  # RTM_F_CLONED
_GONE: Final = frozenset({errno.ESRCH, errno.ENOENT})

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class SourceRule:
    """A rule `from <address> lookup <table>`."""

    address: Address
    table: int

    def __str__(self) -> str:
        return f"from {self.address} lookup {self.table}"


@dataclass(frozen=True, slots=True)
class KernelRoute:
    """A route as the kernel told of it.

    Attributes:
        dst: the network in digits, for texts: `default`, or `10.0.0.0/8`.
        message: RTM_NEWROUTE, whole.
    """

    version: int
    table: int
    dst: str
    gateway: Address | None
    source: Address | None
    message: bytes

    @property
    def is_kernels(self) -> bool:
        """Whether the kernel made it for an address (RTPROT_KERNEL), and makes it again."""
        return self.message[21] == _RTPROT_KERNEL

    @property
    def is_link_local(self) -> bool:
        """Whether it leads to fe80::/10, which each link has for itself."""
        return self.dst.startswith("fe80:")

    def __str__(self) -> str:
        via = f" via {self.gateway}" if self.gateway is not None else ""
        return f"{self.dst}{via} of table {self.table}"


def name_of(network: IPv4Network | IPv6Network) -> str:
    """Return a destination as `KernelRoute.dst` has it."""
    return str(network) if network.prefixlen else "default"


def rules(netlink: Netlink) -> tuple[list[SourceRule], set[int]]:
    """List the rules by source address alone, and all tables that any rule names."""
    found, tables = [], set()
    for version in (4, 6):
        header = struct.pack("=IHHII", _BODY, _GETRULE, _DUMP, 0, 0) + _RTMSG.pack(_AF[version], *[0] * 8)
        for message in netlink.ask(Request(bytearray(header), "list the routing rules"))[0].messages:
            family, _, length, _, table, *_ = _RTMSG.unpack_from(message, 16)
            attrs = {kind: message[start:end] for kind, start, end in attributes(message, _BODY)}
            if _FRA_TABLE in attrs:
                table = struct.unpack("=I", attrs[_FRA_TABLE])[0]
            tables.add(table)
            if family in _VERSION and _FRA_SRC in attrs and length == 8 * len(attrs[_FRA_SRC]):
                found.append(SourceRule(ipaddress.ip_address(attrs[_FRA_SRC]), table))
    return found, tables


def add_rule(rule: SourceRule) -> Request:
    """Build the request for a rule; one that is there is no error."""
    return Request(_rule(_NEWRULE, _CREATE, rule), f"add the rule {rule}", EEXIST)


def delete_rule(rule: SourceRule) -> Request:
    """Build the request that deletes a rule, if it is there."""
    return Request(_rule(_DELRULE, _ASK, rule), f"delete the rule {rule}", ENOENT)


def _rule(number: int, flags: int, rule: SourceRule) -> bytearray:
    packed = rule.address.packed
    attrs = attribute(_FRA_SRC, packed) + attribute(_FRA_TABLE, struct.pack("=I", rule.table))
    small = rule.table if rule.table < 256 else 0
    body = _RTMSG.pack(_AF[rule.address.version], 0, len(packed) * 8, 0, small, _RTPROT_BOOT, 0, _TO_TABLE, 0)
    return bytearray(struct.pack("=IHHII", _BODY + len(attrs), number, flags, 0, 0) + body + attrs)


def routes(netlink: Netlink, index: int | None = None) -> list[KernelRoute]:
    """List the routes of all tables, those that the kernel keeps for addresses of its own excepted.

    Args:
        netlink: a socket of the namespace.
        index: of the interface that they lead through; None for any.
    """
    found = []
    for version in (4, 6):
        template = messages.dump_all_routes(version)
        for message in netlink.ask(Request(template.fill(), "list the routes"))[0].messages:
            one = _parse(message, version)
            if one is not None and (index is None or _leads_through(message, index)):
                found.append(one)
    return found


def routes_by_link(netlink: Netlink) -> set[tuple[int, IPv4Network | IPv6Network]]:
    """List where the routes of all tables lead to, each with the index of the interface that it leads through."""
    found = set()
    for one in routes(netlink):
        for kind, start, _ in attributes(one.message, _BODY):
            if kind == _RTA_OIF:
                dst = one.dst if one.dst != "default" else "0.0.0.0/0" if one.version == 4 else "::/0"
                found.add((int(struct.unpack_from("=i", one.message, start)[0]), ipaddress.ip_network(dst)))
    return found


def _parse(message: bytes, version: int) -> KernelRoute | None:
    _, length, _, _, table, _, _, kind, flags = _RTMSG.unpack_from(message, 16)
    attrs = {number: message[start:end] for number, start, end in attributes(message, _BODY)}
    if _RTA_TABLE in attrs:
        table = struct.unpack("=I", attrs[_RTA_TABLE])[0]
    if kind != 1 or flags & _CLONED or table == 255:  # RTN_UNICAST; RT_TABLE_LOCAL
        return None
    dst = f"{ipaddress.ip_address(attrs[_RTA_DST])}/{length}" if _RTA_DST in attrs else "default"
    gateway, source = (
        ipaddress.ip_address(attrs[key]) if key in attrs else None for key in (_RTA_GATEWAY, _RTA_PREFSRC)
    )
    return KernelRoute(version, table, dst, gateway, source, message)


def _leads_through(message: bytes, index: int) -> bool:
    for kind, start, _ in attributes(message, _BODY):
        if kind == _RTA_OIF:
            return bool(struct.unpack_from("=i", message, start)[0] == index)
    return False


def copy_route(route: KernelRoute, table: int) -> Request:
    """Build the request for the same route in another table, in place of one to the same network there."""
    return Request(_route(route, _NEWROUTE, _REPLACE, table), f"copy the route {route} to table {table}")


def delete_route(route: KernelRoute) -> Request:
    """Build the request that deletes a route, if it is there."""
    return Request(_route(route, _DELROUTE, _ASK, route.table), f"delete the route {route}", _GONE)


def _route(route: KernelRoute, number: int, flags: int, table: int) -> bytearray:
    family, dst, src, tos, _, protocol, scope, kind, _ = _RTMSG.unpack_from(route.message, 16)
    attrs = b"".join(
        attribute(one, route.message[start:end])
        for one, start, end in attributes(route.message, _BODY)
        if one not in _NOT_SENT
    )
    attrs += attribute(_RTA_TABLE, struct.pack("=I", table))
    body = _RTMSG.pack(family, dst, src, tos, min(table, 252), protocol, scope, kind, 0)
    return bytearray(struct.pack("=IHHII", _BODY + len(attrs), number, flags, 0, 0) + body + attrs)
