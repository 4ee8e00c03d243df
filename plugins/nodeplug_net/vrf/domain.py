"""A VRF of a container: made, found, and what an interface has when it comes in and goes out.

Owns: the link of kind vrf and its table; that addresses and routes survive when the kernel moves an interface.
Refuses: configuration and results (see `verbs`). The calling thread is in the container's namespace.

When a link becomes a port of a VRF, or none, the kernel takes it down and up again: IPv6 addresses go unless
`keep_addr_on_down` is set, and all routes but those of addresses (Documentation/networking/vrf.rst).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nodeplug import InvalidRequest, PluginError
from nodeplug_net.lower_link import creating
from nodeplug_net.netlink import policy
from nodeplug_net.netlink.connection import EEXIST, Netlink, Request
from nodeplug_net.netlink.link_messages import attribute, change_link, create_link
from nodeplug_net.netlink.links import Link, Links, address_request, up_request
from nodeplug_net.netlink.messages import u32
from nodeplug_net.netlink.policy import KernelRoute
from nodeplug_net.netlink.routes import Interface

KIND: Final = "vrf"
_IFLA_VRF_TABLE: Final = 1
_IFLA_MASTER: Final = 10
_MOST: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Kept:
    """What an interface has and would lose.

    Attributes:
        addresses: of global scope.
        routes: of its table, but those that the kernel makes for addresses.
    """

    addresses: Sequence[Interface]
    routes: Sequence[KernelRoute]


def table_of(link: Link) -> int:
    """Return the routing table of a VRF."""
    return int(struct.unpack_from("=I", link.kind_data.get(_IFLA_VRF_TABLE, bytes(4)))[0])


def find_vrf(links: Links, name: str) -> Link | None:
    """Find a VRF by name.

    Raises:
        InvalidRequest: the name is another link's.
    """
    link = links.get(name)
    if link is not None and link.kind != KIND:
        raise InvalidRequest(f"Netlink {name} is not a VRF", details=f"it is a {link.kind or 'device'}")
    return link


def create_vrf(links: Links, name: str, table: int) -> Link:
    """Make a VRF that is up; one that came meanwhile is taken.

    Args:
        links: of the container.
        name: of the VRF.
        table: 0 for the first that no VRF has.

    Raises:
        PluginError: the kernel refuses.
    """
    if not table:
        taken = {table_of(one) for one in links.all() if one.kind == KIND} | policy.RESERVED
        table = next(one for one in range(1, _MOST) if one not in taken)
    data = attribute(_IFLA_VRF_TABLE, u32(table))
    with creating(f"could not add VRF {name}: {{}}"):
        links.netlink.ask(Request(create_link(KIND, name, data=data), f"create the VRF {name}", EEXIST))
    made = find_vrf(links, name)
    if made is None:
        raise PluginError(f"could not add VRF {name}: it is gone again")
    with creating(f"could not set link up for VRF {name}: {{}}"):
        links.netlink.ask(up_request(made.index, name))
    return made


def ports(links: Links, vrf: Link) -> list[Link]:
    """List the interfaces in a VRF."""
    return [one for one in links.all() if one.master == vrf.index]


def keep(links: Links, link: Link, table: int) -> Kept:
    """Read what an interface would lose.

    Args:
        links: of the container.
        link: the interface.
        table: where its routes are.
    """
    addresses = [one for one in links.addresses(link) if not one.is_link_local]
    found = policy.routes(links.netlink, link.index)
    lasting = [one for one in found if one.table == table and not one.is_kernels and not one.is_link_local]
    return Kept(addresses, lasting)


def move(links: Links, link: Link, vrf: Link | None, kept: Kept) -> None:
    """Put an interface into a VRF, or take it out, with all that it has.

    Raises:
        PluginError: the kernel refuses.
    """
    master, name = (0, "none") if vrf is None else (vrf.index, vrf.name)
    with creating(f"could not set vrf {name} as master of {link.name}: {{}}"):
        data = change_link(link.index, attribute(_IFLA_MASTER, u32(master)))
        links.netlink.ask(Request(data, f"put interface {link.name} into VRF {name}"))
    give(links.netlink, link, policy.MAIN if vrf is None else table_of(vrf), kept)


def give(netlink: Netlink, link: Link, table: int, kept: Kept) -> None:
    """Give an interface what it had; what is there stays.

    Raises:
        PluginError: the kernel refuses.
    """
    with creating(f"could not restore the addresses of {link.name}: {{}}"):
        netlink.ask(*(address_request(link.index, link.name, one) for one in kept.addresses))
    # Those without a gateway first: they lead to the gateways of the others.
    ordered = sorted(kept.routes, key=lambda one: one.gateway is not None)
    with creating("could not add route: {}"):
        netlink.ask(*(policy.copy_route(one, table) for one in ordered))
