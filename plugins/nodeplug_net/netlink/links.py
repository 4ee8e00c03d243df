"""Links, addresses and routes of one network namespace, as values and verbs.

Owns: parsing rtnetlink replies and the few operations that the plugins need, over one `Netlink` socket.
Refuses: dumps where a single request is enough, and caches: the kernel is asked each time.
"""

import errno
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from nodeplug import CniRoute, Netns
from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import EEXIST, ENODEV, NESTED, Netlink, Request, attributes, text
from nodeplug_net.netlink.messages import IFF_PROMISC, IFF_UP, mac_bytes, u32
from nodeplug_net.netlink.routes import Interface, Route, parse_address, parse_routes

_NO_ROUTE: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL, errno.EACCES})
"""What the kernel says of an address without a way: unreachable, blackhole, prohibited."""
OPER_UP: Final = 6
"""IF_OPER_UP (RFC 2863)."""
_IFLA_ADDRESS: Final = 1
_IFLA_IFNAME: Final = 3
_IFLA_MTU: Final = 4
_IFLA_LINK: Final = 5
_IFLA_MASTER: Final = 10
_IFLA_OPERSTATE: Final = 16
_IFLA_LINKINFO: Final = 18
_IFLA_IFALIAS: Final = 20
_IFLA_LINK_NETNSID: Final = 37
_INFO_KIND: Final = 1
_INFO_DATA: Final = 2
_WITH_DATA: Final = frozenset({"ipvlan", "macvlan", "vlan", "vrf"})
_INFO_SLAVE_DATA: Final = 5
_BR_VLAN_FILTERING: Final = 7
_BR_VLAN_DEFAULT_PVID: Final = 39
_BRPORT_MODE: Final = 4
_BRPORT_ISOLATED: Final = 33
_RTA_OIF: Final = 4
_MAIN: Final = 254
_U32: Final = struct.Struct("=I")
_I32: Final = struct.Struct("=i")
_TEXTS: Final = {_IFLA_IFNAME: "name", _IFLA_IFALIAS: "alias"}
_IFINFO: Final = struct.Struct("=iI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NUMBERS: Final = {_IFLA_MTU: "mtu", _IFLA_LINK: "peer", _IFLA_MASTER: "master", _IFLA_LINK_NETNSID: "peer_netns"}


@dataclass(slots=True)
class Link:
    """A network interface as the kernel describes it.

    Attributes:
        index: in its namespace.
        flags: IFF_* of netdevice(7).
        mac: `aa:bb:cc:dd:ee:ff`.
        peer: the index of the other end of a veth pair, in *its* namespace.
        peer_netns: the kernel's number of that namespace; None if it is the same one,
            negative if it has none.
        master: the index of the bridge, or 0.
        state: the operational state, `OPER_UP` when packets pass.
        kind: "bridge", "veth", "macvlan", or empty.
        kind_data: attributes that only this kind has, by number.
        alias: free text, the label of the attachment for our veths.
        bridge_data: the attributes of a bridge, as they came.
        port_data: those of a bridge port.
    """

    index: int
    flags: int
    name: str = ""
    mac: str = ""
    mtu: int = 0
    peer: int = 0
    peer_netns: int | None = None
    master: int = 0
    state: int = 0
    kind: str = ""
    kind_data: Mapping[int, bytes] = field(default_factory=dict)
    alias: str = ""
    bridge_data: bytes = b""
    port_data: bytes = b""

    @property
    def hairpin(self) -> bool:
        """Whether a bridge port sends frames back where they came from."""
        return _flag(self.port_data, _BRPORT_MODE) or False

    @property
    def isolated(self) -> bool:
        """Whether a bridge port exchanges no frames with other isolated ones."""
        return _flag(self.port_data, _BRPORT_ISOLATED) or False

    @property
    def filters_vlans(self) -> bool | None:
        """Whether a bridge keeps VLANs apart; None if the kernel cannot say so, as it has no such bridges."""
        # A kernel without VLANs of bridges says that filtering is off, and nothing of a default VLAN.
        known = _flag(self.bridge_data, _BR_VLAN_DEFAULT_PVID) is not None
        return bool(_flag(self.bridge_data, _BR_VLAN_FILTERING)) if known else None

    @property
    def is_up(self) -> bool:
        """Whether the administrator wants it up."""
        return bool(self.flags & IFF_UP)

    @property
    def is_promiscuous(self) -> bool:
        """Whether it was set promiscuous (IFF_PROMISC)."""
        return bool(self.flags & IFF_PROMISC)


def _flag(data: bytes, number: int) -> bool | None:
    """Read the first byte of one of a bridge's or a port's attributes as yes or no; None if it is not there."""
    return next((bool(data[start]) for kind, start, _ in attributes(data, 0) if kind == number), None)


def parse_link(message: bytes) -> Link:
    """Read an RTM_NEWLINK message (struct ifinfomsg after the header, attributes from byte 32).

    Written out, as every call reads several: each has sixty attributes, a bridge as many within one.
    """
    index, flags = _IFINFO.unpack_from(message, 20)
    link = Link(index, flags)
    start, stop = 32, len(message)
    while start + 4 <= stop:
        length, kind = _ATTRIBUTE.unpack_from(message, start)
        if length < 4:
            break
        if kind in _NUMBERS:
            setattr(link, _NUMBERS[kind], _I32.unpack_from(message, start + 4)[0])
        elif kind in _TEXTS:
            setattr(link, _TEXTS[kind], text(message, start + 4, start + length))
        elif kind == _IFLA_ADDRESS:
            link.mac = message[start + 4 : start + length].hex(":")
        elif kind == _IFLA_OPERSTATE:
            link.state = message[start + 4]
        elif kind & NESTED == _IFLA_LINKINFO:
            _parse_kind(link, message, start + 4, start + length)
        start += (length + 3) & ~3
    return link


def _parse_kind(link: Link, message: bytes, start: int, end: int) -> None:
    for kind, first, last in attributes(message, start, end):
        if kind == _INFO_KIND:
            link.kind = text(message, first, last)
        elif kind == _INFO_DATA and link.kind == "bridge":
            link.bridge_data = message[first:last]
        elif kind == _INFO_DATA and link.kind in _WITH_DATA:
            link.kind_data = {one: message[begin:stop] for one, begin, stop in attributes(message, first, last)}
        elif kind == _INFO_SLAVE_DATA:
            link.port_data = message[first:last]


def get_request(name: str) -> Request:
    """Build the request for a link by name; its absence is not an error."""
    return Request(messages.get_link_by_name().fill(name=name.encode()), f"find interface {name}", ENODEV)


def up_request(index: int, name: str) -> Request:
    """Build the request that brings a link up."""
    return Request(messages.set_flags(IFF_UP, IFF_UP).fill(index=u32(index)), f"set interface {name} up")


def address_request(index: int, name: str, address: Interface, *, dad: bool = False) -> Request:
    """Build the request that adds an address, with detection of duplicates if asked; an existing one is no error."""
    values = {"index": u32(index), "address": address.packed}
    if address.version == 4 and address.network.prefixlen < 31:
        values["broadcast"] = address.network.broadcast_address.packed
    template = messages.address(messages.RTM_NEWADDR, address.version, address.network.prefixlen, dad=dad)
    return Request(template.fill(**values), lambda: f"add address {address} to interface {name}", EEXIST)


def route_request(index: int, name: str, route: CniRoute) -> Request:
    """Build the request that adds a route; an existing one is not an error."""
    metrics = tuple((key, value) for key, value in (("mtu", route.mtu), ("advmss", route.advmss)) if value is not None)
    gateway = None if route.gw is None else str(route.gw)
    template = messages.route(str(route.dst), gateway, metrics, route.priority, route.table, route.scope)

    def what() -> str:
        via = f" via {route.gw}" if route.gw is not None else ""
        return f"add route {route.dst}{via} through interface {name}"

    return Request(template.fill(index=u32(index)), what, EEXIST)


class Links:
    """The links of the namespace in which the socket was opened."""

    __slots__ = ("netlink",)

    def __init__(self, netlink: Netlink) -> None:
        self.netlink = netlink

    def get(self, name: str) -> Link | None:
        """Find a link by name."""
        return self.find(name)[0]

    def find(self, *names: str) -> list[Link | None]:
        """Find links by name, with one request for all."""
        answers = self.netlink.ask(*map(get_request, names))
        return [parse_link(answer.messages[0]) if answer.messages else None for answer in answers]

    def at(self, index: int) -> Link | None:
        """Find a link by index."""
        request = Request(messages.get_link_by_index().fill(index=u32(index)), f"find interface {index}", ENODEV)
        answer = self.netlink.ask(request)[0]
        return parse_link(answer.messages[0]) if answer.messages else None

    def ports(self, bridge: Link) -> list[Link]:
        """List the ports of a bridge."""
        data = messages.dump_ports().fill(master=u32(bridge.index))
        answer = self.netlink.ask(Request(data, f"list the ports of bridge {bridge.name}"))[0]
        return [link for link in map(parse_link, answer.messages) if link.master == bridge.index]

    def all(self) -> list[Link]:
        """List every link."""
        answer = self.netlink.ask(Request(messages.dump_links().fill(), "list the interfaces"))[0]
        return [parse_link(message) for message in answer.messages]

    def create_bridge(self, name: str, mtu: int, *, filters_vlans: bool = False) -> None:
        """Create a bridge that is up, unless the name is taken.

        Its hardware address is chosen here, which pins it: otherwise it follows the lowest address of its ports, and
        containers keep the old one in their ARP caches.
        """
        values = {"name": name.encode(), "mac": new_mac()}
        if mtu:
            values["mtu"] = u32(mtu)
        data = messages.create_bridge(mtu=bool(mtu), filters_vlans=filters_vlans).fill(**values)
        self.netlink.ask(Request(data, f"create bridge {name}", EEXIST))

    def set_mac(self, link: Link, mac: str) -> None:
        """Set the hardware address, which for a bridge pins it."""
        data = messages.set_mac().fill(index=u32(link.index), mac=mac_bytes(mac))
        self.netlink.ask(Request(data, f"set the MAC of interface {link.name} to {mac}"))

    def set_up(self, link: Link) -> None:
        """Bring a link up."""
        self.netlink.ask(up_request(link.index, link.name))

    def set_down(self, link: Link) -> None:
        """Bring a link down."""
        data = messages.set_flags(0, IFF_UP).fill(index=u32(link.index))
        self.netlink.ask(Request(data, f"set interface {link.name} down"))

    def set_promiscuous(self, link: Link) -> None:
        """Make a link promiscuous."""
        data = messages.set_flags(IFF_PROMISC, IFF_PROMISC).fill(index=u32(link.index))
        self.netlink.ask(Request(data, f"set interface {link.name} promiscuous"))

    def set_master(self, link: Link, master: Link) -> None:
        """Make a link a port of a bridge."""
        data = messages.set_master().fill(index=u32(link.index), master=u32(master.index))
        self.netlink.ask(Request(data, f"make interface {link.name} a port of bridge {master.name}"))

    def clear_alias(self, link: Link) -> None:
        """Take the alias from a link."""
        data = messages.clear_alias().fill(index=u32(link.index))
        self.netlink.ask(Request(data, f"take the alias from interface {link.name}"))

    def addresses(self, link: Link) -> list[Interface]:
        """List the addresses of a link; none if it is gone."""
        data = messages.dump_addresses().fill(index=u32(link.index))
        answer = self.netlink.ask(Request(data, f"list the addresses of interface {link.name}", ENODEV))[0]
        return [parse_address(message) for message in answer.messages if _index_of(message) == link.index]

    def peer_addresses(self, link: Link) -> list[Interface]:
        """List the addresses of the other end of a veth pair in another namespace; none if that is gone or unknown.

        A kernel before 5.0 does not look into other namespaces, and nothing is known.
        """
        if link.peer_netns is None or link.peer_netns < 0:
            return []
        data = messages.dump_addresses_in(link.peer_netns, link.peer)
        what = f"list the addresses of the peer of interface {link.name}"
        answer = self.netlink.ask(Request(data, what, frozenset({errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP})))[0]
        inside = (message for message in answer.messages if messages.is_from(message, link.peer_netns))
        return [parse_address(message) for message in inside if _index_of(message) == link.peer]

    def add_address(self, link: Link, address: Interface) -> None:
        """Add an address, unless it exists."""
        self.netlink.ask(address_request(link.index, link.name, address))

    def remove_address(self, link: Link, address: Interface) -> None:
        """Remove an address."""
        values = {"index": u32(link.index), "address": address.packed}
        if address.version == 4 and address.network.prefixlen < 31:
            values["broadcast"] = address.network.broadcast_address.packed
        template = messages.address(messages.RTM_DELADDR, address.version, address.network.prefixlen)
        self.netlink.ask(Request(template.fill(**values), f"remove address {address} from interface {link.name}"))

    def default_route(self) -> int | None:
        """Return the index of the interface that the first default route of the main table leads through."""
        for version in (4, 6):
            data = messages.dump_all_routes(version).fill()
            for message in self.netlink.ask(Request(data, "list the routes"))[0].messages:
                found = {kind: message[start:end] for kind, start, end in attributes(message, 28)}
                if message[17] == 0 and message[20] == _MAIN and _RTA_OIF in found:
                    return int(_U32.unpack(found[_RTA_OIF])[0])
        return None

    def routes(self, link: Link, versions: Collection[int] = (4, 6)) -> list[Route]:
        """List the routes of versions of IP through a link; none if it is gone."""
        what = f"list the routes of {link.name}"
        requests = [
            Request(messages.dump_routes(version).fill(index=u32(link.index)), what, ENODEV) for version in versions
        ]
        answers = [message for request in requests for message in self.netlink.ask(request)[0].messages]
        return [route for message in answers for route in parse_routes(message, link.index)]

    def towards(self, address: IPv4Address | IPv6Address) -> Link | None:
        """Return the link by which packets to an address leave; None if they have no way."""
        data = messages.route_to(address.version).fill(address=address.packed)
        answer = self.netlink.ask(Request(data, f"find the route to {address}", _NO_ROUTE))[0]
        for message in answer.messages:
            for kind, start, _ in attributes(message, 28):
                if kind == _RTA_OIF:
                    return self.at(_U32.unpack_from(message, start)[0])
        return None


@contextmanager
def links_in(netns: Netns) -> Iterator[Links]:
    """Open the links of a namespace; the calling thread stays in its own."""
    with netns.entered():
        netlink = Netlink()
    with netlink:
        yield Links(netlink)


def _index_of(message: bytes) -> int:
    """The interface of an RTM_NEWADDR message: kernels without strict checking dump every interface."""
    return int(_U32.unpack_from(message, 20)[0])


def new_mac() -> bytes:
    """Draw a unicast, locally administered hardware address."""
    drawn = bytearray(os.urandom(6))
    drawn[0] = drawn[0] & 0xFC | 0x02
    return bytes(drawn)
