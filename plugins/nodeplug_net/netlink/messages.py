"""rtnetlink messages: encoded once by pyroute2, patched for each request.

Owns: the shape of every rtnetlink message that is sent, and where its variable parts lie. pyroute2 needs about 100
microseconds to encode a veth pair; copying a template and writing into it needs three.
Refuses: sockets and replies. pyroute2 is imported by the first template, as `nodeplug check-config` sends nothing.
"""

import struct
from collections.abc import Mapping
from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from nodeplug_net.attachment import LABEL_LIMIT
from nodeplug_net.netlink.encoder import message_class

RTM_NEWLINK: Final = 16
RTM_DELLINK: Final = 17
RTM_GETLINK: Final = 18
RTM_NEWADDR: Final = 20
RTM_DELADDR: Final = 21
RTM_GETADDR: Final = 22
RTM_NEWROUTE: Final = 24
RTM_DELROUTE: Final = 25
RTM_GETROUTE: Final = 26

_ASK: Final = 0x5  # NLM_F_REQUEST | NLM_F_ACK
_GET: Final = 0x1  # NLM_F_REQUEST: what is asked for is the answer, or an error
_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_CREATE: Final = 0x605  # NLM_F_CREATE | NLM_F_EXCL
_REPLACE: Final = 0x505  # NLM_F_CREATE | NLM_F_REPLACE
_APPEND: Final = 0xC05  # NLM_F_CREATE | NLM_F_APPEND
_ONE_QUEUE: Final = (("IFLA_NUM_TX_QUEUES", 1), ("IFLA_NUM_RX_QUEUES", 1))
"""Unasked, veth makes one per processor and takes all but one away, with every link locked for two grace periods."""
_SKIP_STATISTICS: Final = 8  # RTEXT_FILTER_SKIP_STATS
IFF_UP: Final = 0x1
IFF_PROMISC: Final = 0x100
_IFA_F_NODAD: Final = 0x02
_AF_INET: Final = 2
_AF_INET6: Final = 10
IFNAME_WIDTH: Final = 15
_IFA_TARGET_NETNSID: Final = 10

# Sentinels: each occurs nowhere else in a message, which `Template` checks.
_NAME: Final = "nodeplug~name~1"
_PEER: Final = "nodeplug~name~2"
_LABEL: Final = "nodeplug~label~".ljust(LABEL_LIMIT, "~")
_INDEX: Final = 0x7A11B0C1
_MASTER: Final = 0x7A11B0C2
_NETNS: Final = 0x7A11B0C3
_MTU: Final = 0x7A11B0C4
_MAC: Final = "7a:11:b0:c5:d6:e7"
_PEER_MAC: Final = "7a:11:b0:c5:d6:e8"
_ADDRESS4: Final = "122.17.176.197"
_BROADCAST4: Final = "122.17.176.198"
_ADDRESS6: Final = "7a11:b0c5:d6e7:f809:1a2b:3c4d:5e6f:7081"


class Template:
    """An encoded message with named holes of fixed width."""

    __slots__ = ("_encoded", "_holes")

    def __init__(self, encoded: bytes, **sentinels: tuple[bytes, int]) -> None:
        """Find each sentinel (its bytes, and how often it must occur).

        Raises:
            AssertionError: a sentinel occurs more or less often: the encoder behaves unexpectedly.
        """
        self._encoded = encoded
        self._holes: dict[str, tuple[int, list[int]]] = {}
        for name, (sentinel, times) in sentinels.items():
            offsets = _find_all(encoded, sentinel)
            if len(offsets) != times:
                raise AssertionError(f"sentinel {name} occurs {len(offsets)} times in a message, not {times}")
            self._holes[name] = (len(sentinel), offsets)

    def fill(self, **values: bytes) -> bytearray:
        """Copy the message with every hole filled; shorter values are padded with NUL.

        Raises:
            ValueError: a value is too long for its hole.
        """
        message = bytearray(self._encoded)
        for name, (width, offsets) in self._holes.items():
            value = values[name]
            if len(value) > width:
                raise ValueError(f"{value!r} does not fit into the {width} bytes of {name}")
            padded = value.ljust(width, b"\0")
            for offset in offsets:
                message[offset : offset + width] = padded
        return message


def _find_all(encoded: bytes, sentinel: bytes) -> list[int]:
    offsets = []
    offset = encoded.find(sentinel)
    while offset >= 0:
        offsets.append(offset)
        offset = encoded.find(sentinel, offset + len(sentinel))
    return offsets


def u32(number: int) -> bytes:
    """Encode a number in the machine's byte order."""
    return struct.pack("=I", number)


def mac_bytes(mac: str) -> bytes:
    """Encode `aa:bb:cc:dd:ee:ff`."""
    return bytes.fromhex(mac.replace(":", ""))


_INDEX_HOLE: Final = (u32(_INDEX), 1)
_NAME_HOLE: Final = (_NAME.encode(), 1)


def _encode(kind: str, number: int, flags: int, attrs: list[tuple[str, Any]], fields: Mapping[str, Any]) -> bytes:
    """Encode one message with pyroute2's class of that name."""
    message = message_class(f"netlink.rtnl.{kind}", kind)()
    for name, value in fields.items():
        message[name] = value
    message["attrs"] = attrs
    message["header"]["type"] = number
    message["header"]["flags"] = flags
    message.encode()
    return bytes(message.data)


def _nest(*attrs: tuple[str, Any]) -> dict[str, list[tuple[str, Any]]]:
    return {"attrs": list(attrs)}


@cache
def get_link_by_name() -> Template:
    """GETLINK with the hole `name`; statistics are skipped."""
    attrs = [("IFLA_IFNAME", _NAME), ("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    return Template(_encode("ifinfmsg", RTM_GETLINK, _GET, attrs, {}), name=_NAME_HOLE)


@cache
def get_link_by_index() -> Template:
    """GETLINK with the hole `index`."""
    encoded = _encode("ifinfmsg", RTM_GETLINK, _GET, [("IFLA_EXT_MASK", _SKIP_STATISTICS)], {"index": _INDEX})
    return Template(encoded, index=_INDEX_HOLE)


@cache
def dump_ports() -> Template:
    """GETLINK dump of the ports of one bridge, with the hole `master` (filtered by the kernel)."""
    attrs = [("IFLA_MASTER", _MASTER), ("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    return Template(_encode("ifinfmsg", RTM_GETLINK, _DUMP, attrs, {}), master=(u32(_MASTER), 1))


@cache
def dump_links() -> Template:
    """GETLINK dump of every link."""
    return Template(_encode("ifinfmsg", RTM_GETLINK, _DUMP, [("IFLA_EXT_MASK", _SKIP_STATISTICS)], {}))


@cache
def create_bridge(*, mtu: bool, filters_vlans: bool = False) -> Template:
    """NEWLINK of a bridge that is up, with the holes `name`, `mac` and, if asked, `mtu`."""
    data = [("IFLA_INFO_DATA", _nest(("IFLA_BR_VLAN_FILTERING", 1)))] if filters_vlans else []
    attrs: list[tuple[str, Any]] = [
        ("IFLA_IFNAME", _NAME),
        ("IFLA_ADDRESS", _MAC),
        ("IFLA_LINKINFO", _nest(("IFLA_INFO_KIND", "bridge"), *data)),
    ]
    holes = {"name": _NAME_HOLE, "mac": (mac_bytes(_MAC), 1)}
    if mtu:
        attrs.append(("IFLA_MTU", _MTU))
        holes["mtu"] = (u32(_MTU), 1)
    return Template(_encode("ifinfmsg", RTM_NEWLINK, _CREATE, attrs, {"flags": IFF_UP, "change": IFF_UP}), **holes)


@cache
def create_veth(*, mtu: bool, mac: bool, port: bool = True) -> Template:
    """NEWLINK of a veth pair, its host end up and maybe a bridge port, its peer created in the container's namespace.

    Holes: `name`, `peer`, `netns` (a descriptor); `mtu`, the peer's `mac` and `master` if asked. Moving an end between
    namespaces afterwards would wait for rcu_barrier, fifteen milliseconds and more.
    """
    sizes: list[tuple[str, Any]] = [*_ONE_QUEUE, *([("IFLA_MTU", _MTU)] if mtu else [])]
    address: list[tuple[str, Any]] = [("IFLA_ADDRESS", _PEER_MAC)] if mac else []
    peer = _nest(("IFLA_IFNAME", _PEER), *sizes, *address, ("IFLA_NET_NS_FD", _NETNS))
    attrs: list[tuple[str, Any]] = [
        ("IFLA_IFNAME", _NAME),
        *([("IFLA_MASTER", _MASTER)] if port else []),
        *sizes,
        ("IFLA_LINKINFO", _nest(("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", _nest(("VETH_INFO_PEER", peer))))),
    ]
    holes = {"name": _NAME_HOLE, "peer": (_PEER.encode(), 1)}
    holes["netns"] = (u32(_NETNS), 1)
    if port:
        holes["master"] = (u32(_MASTER), 1)
    if mtu:
        holes["mtu"] = (u32(_MTU), 2)
    if mac:
        holes["mac"] = (mac_bytes(_PEER_MAC), 1)
    return Template(_encode("ifinfmsg", RTM_NEWLINK, _CREATE, attrs, {"flags": IFF_UP, "change": IFF_UP}), **holes)


@cache
def mark_port(*, hairpin: bool, isolated: bool) -> Template:
    """NEWLINK that gives the link `name` its alias `label`, and sets hairpin mode and isolation of the bridge port."""
    modes = _nest(("IFLA_BRPORT_MODE", int(hairpin)), ("IFLA_BRPORT_ISOLATED", int(isolated)))
    port = _nest(("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", modes))
    attrs = [("IFLA_IFNAME", _NAME), ("IFLA_IFALIAS", _LABEL), ("IFLA_LINKINFO", port)]
    return Template(_encode("ifinfmsg", RTM_NEWLINK, _ASK, attrs, {}), name=_NAME_HOLE, label=(_LABEL.encode(), 1))


@cache
def mark_link() -> Template:
    """NEWLINK that gives the link `name` its alias `label`."""
    attrs = [("IFLA_IFNAME", _NAME), ("IFLA_IFALIAS", _LABEL)]
    return Template(_encode("ifinfmsg", RTM_NEWLINK, _ASK, attrs, {}), name=_NAME_HOLE, label=(_LABEL.encode(), 1))


@cache
def clear_alias() -> Template:
    """NEWLINK that takes the alias from link `index`."""
    encoded = _encode("ifinfmsg", RTM_NEWLINK, _ASK, [("IFLA_IFALIAS", "")], {"index": _INDEX})
    return Template(encoded, index=_INDEX_HOLE)


@cache
def set_master() -> Template:
    """NEWLINK that makes link `index` a port of `master`."""
    encoded = _encode("ifinfmsg", RTM_NEWLINK, _ASK, [("IFLA_MASTER", _MASTER)], {"index": _INDEX})
    return Template(encoded, index=_INDEX_HOLE, master=(u32(_MASTER), 1))


@cache
def set_flags(flags: int, change: int) -> Template:
    """NEWLINK that sets the interface flags `flags` of `change` on link `index`."""
    encoded = _encode("ifinfmsg", RTM_NEWLINK, _ASK, [], {"index": _INDEX, "flags": flags, "change": change})
    return Template(encoded, index=_INDEX_HOLE)


@cache
def set_mac() -> Template:
    """NEWLINK that sets the hardware address `mac` of link `index`."""
    encoded = _encode("ifinfmsg", RTM_NEWLINK, _ASK, [("IFLA_ADDRESS", _MAC)], {"index": _INDEX})
    return Template(encoded, index=_INDEX_HOLE, mac=(mac_bytes(_MAC), 1))


@cache
def delete_link() -> Template:
    """DELLINK of link `index`."""
    return Template(_encode("ifinfmsg", RTM_DELLINK, _ASK, [], {"index": _INDEX}), index=_INDEX_HOLE)


@cache
def address(number: int, version: int, prefix: int, *, dad: bool = False) -> Template:
    """NEWADDR or DELADDR with the holes `index`, `address` and, for IPv4, `broadcast`.

    IPv6 addresses skip duplicate address detection by default: an allocator chose them, and DAD costs a second.
    """
    fields = {"family": _AF_INET if version == 4 else _AF_INET6, "prefixlen": prefix, "index": _INDEX}
    flags = _CREATE if number == RTM_NEWADDR else _ASK
    if version == 4:
        attrs = [("IFA_LOCAL", _ADDRESS4), ("IFA_ADDRESS", _ADDRESS4)]
        holes = {"index": _INDEX_HOLE, "address": (IPv4Address(_ADDRESS4).packed, 2)}
        if prefix < 31:
            attrs.append(("IFA_BROADCAST", _BROADCAST4))
            holes["broadcast"] = (IPv4Address(_BROADCAST4).packed, 1)
        return Template(_encode("ifaddrmsg", number, flags, attrs, fields), **holes)
    attrs = [("IFA_LOCAL", _ADDRESS6), ("IFA_ADDRESS", _ADDRESS6)]
    encoded = _encode("ifaddrmsg", number, flags, attrs, {**fields, "flags": 0 if dad else _IFA_F_NODAD})
    return Template(encoded, index=_INDEX_HOLE, address=(IPv6Address(_ADDRESS6).packed, 2))


@cache
def dump_addresses() -> Template:
    """GETADDR dump of the link `index`, all families (filtered by the kernel)."""
    return Template(_encode("ifaddrmsg", RTM_GETADDR, _DUMP, [], {"index": _INDEX}), index=_INDEX_HOLE)


def dump_addresses_in(netns: int, index: int) -> bytearray:
    """GETADDR dump of the link `index` of another namespace, by the kernel's number of it (IFA_TARGET_NETNSID).

    pyroute2 has no name for that attribute; struct nlmsghdr, struct ifaddrmsg, one attribute.
    """
    attribute = struct.pack("=HHi", 8, _IFA_TARGET_NETNSID, netns)
    return bytearray(struct.pack("=IHHIIBBBBI", 32, RTM_GETADDR, _DUMP, 0, 0, 0, 0, 0, 0, index) + attribute)


def is_from(message: bytes, netns: int) -> bool:
    """Whether the kernel says that an address is of another namespace: older ones list their own instead."""
    return struct.pack("=HHi", 8, _IFA_TARGET_NETNSID, netns) in message[24:]


@lru_cache(maxsize=256)
def route(
    dst: str,
    gw: str | None,
    metrics: tuple[tuple[str, int], ...],
    priority: int | None,
    table: int | None,
    scope: int | None,
) -> Template:
    """NEWROUTE (append: a second interface may have the same route) with the hole `index`.

    Args:
        dst: a network such as `10.0.0.0/8`; a /0 is the default route.
        gw: the gateway's address, or None for a destination on the link.
        metrics: pairs of `mtu`, `advmss` and a number.
        priority: the metric of the route.
        table: a routing table, 254 by default.
        scope: as rtnetlink(7) numbers it; universe through a gateway and link without one by default.
    """
    network, _, prefix = dst.partition("/")
    family = _AF_INET6 if ":" in network else _AF_INET
    number = 254 if table is None else table
    attrs: list[tuple[str, Any]] = [("RTA_TABLE", number), ("RTA_OIF", _INDEX)]
    if int(prefix):
        attrs.append(("RTA_DST", network))
    if gw is not None:
        attrs.append(("RTA_GATEWAY", gw))
    if priority is not None:
        attrs.append(("RTA_PRIORITY", priority))
    if metrics:
        attrs.append(("RTA_METRICS", _nest(*((f"RTAX_{name.upper()}", value) for name, value in metrics))))
    fields = {
        "family": family,
        "dst_len": int(prefix),
        "table": min(number, 252),  # RT_TABLE_COMPAT; the attribute has the whole number
        "proto": 3,  # RTPROT_BOOT, as ip(8) and the reference plugins write
        "scope": (0 if gw is not None else 253) if scope is None else scope,
        "type": 1,  # RTN_UNICAST
    }
    return Template(_encode("rtmsg", RTM_NEWROUTE, _APPEND, attrs, fields), index=_INDEX_HOLE)


@lru_cache(maxsize=256)
def source_route(dst: str, gw: str | None, source: str) -> Template:
    """NEWROUTE of packets that have an address of the link's own as their source, with the hole `index`.

    Args:
        dst: an address or a network.
        gw: the gateway's address, or None for a destination on the link.
        source: that address.
    """
    attrs = [*([] if gw is None else [("RTA_GATEWAY", gw)]), ("RTA_PREFSRC", source)]
    return _plain_route(RTM_NEWROUTE, _CREATE, dst, attrs, {"proto": 3, "scope": 253 if gw is None else 0, "type": 1})


@lru_cache(maxsize=256)
def connected_route(dst: str, source: str) -> Template:
    """NEWROUTE as the kernel makes it for an address of link `index` (IP6_RT_PRIO_ADDRCONF)."""
    attrs: list[tuple[str, Any]] = [("RTA_PRIORITY", 256)] if ":" in dst else [("RTA_PREFSRC", source)]
    return _plain_route(RTM_NEWROUTE, _CREATE, dst, attrs, {"proto": 2, "scope": 0 if ":" in dst else 253, "type": 1})


@lru_cache(maxsize=256)
def replace_host_route(dst: str) -> Template:
    """NEWROUTE of one address that link `index` leads to; it takes the place of a route through another link."""
    return _plain_route(RTM_NEWROUTE, _REPLACE, dst, [], {"proto": 3, "scope": 254, "type": 1})


@lru_cache(maxsize=256)
def delete_kernel_route(dst: str) -> Template:
    """DELROUTE of the route to a network that the kernel made for an address of link `index` (RTPROT_KERNEL)."""
    return _plain_route(RTM_DELROUTE, _ASK, dst, [], {"proto": 2, "scope": 255})


def _plain_route(
    number: int, flags: int, dst: str, attrs: list[tuple[str, Any]], fields: Mapping[str, int]
) -> Template:
    """Encode a route of the main table."""
    network, _, prefix = dst.partition("/")
    family, bits = (_AF_INET6, 128) if ":" in network else (_AF_INET, 32)
    every = {"family": family, "dst_len": int(prefix or bits), "table": 254, **fields}
    return Template(
        _encode("rtmsg", number, flags, [("RTA_OIF", _INDEX), ("RTA_DST", network), *attrs], every), index=_INDEX_HOLE
    )


@cache
def route_to(version: int) -> Template:
    """GETROUTE: which way packets to `address` go."""
    address4, address6 = (_ADDRESS4, IPv4Address(_ADDRESS4)), (_ADDRESS6, IPv6Address(_ADDRESS6))
    text, parsed = address4 if version == 4 else address6
    fields = {"family": _AF_INET if version == 4 else _AF_INET6, "dst_len": parsed.max_prefixlen}
    return Template(_encode("rtmsg", RTM_GETROUTE, _GET, [("RTA_DST", text)], fields), address=(parsed.packed, 1))


@cache
def dump_routes(version: int) -> Template:
    """GETROUTE dump of the routes through link `index`, of one family (filtered by the kernel)."""
    fields = {"family": _AF_INET if version == 4 else _AF_INET6}
    return Template(_encode("rtmsg", RTM_GETROUTE, _DUMP, [("RTA_OIF", _INDEX)], fields), index=_INDEX_HOLE)


@cache
def dump_all_routes(version: int) -> Template:
    """GETROUTE dump of the routes of one family."""
    fields = {"family": _AF_INET if version == 4 else _AF_INET6}
    return Template(_encode("rtmsg", RTM_GETROUTE, _DUMP, [], fields))
