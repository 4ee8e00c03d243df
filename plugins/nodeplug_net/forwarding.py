"""What the kernel is told where the host is a gateway: to forward packets, and by which interface, to containers.

Owns: these settings and routes, in the namespace that the calling thread is in.
Refuses: to switch forwarding off: others may need it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import EEXIST, Request
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.netlink.messages import u32
from nodeplug_net.netlink.routes import Interface
from nodeplug_net.sysctl import get_sysctl, set_sysctl

_FORWARDING: Final[Mapping[int, str]] = {4: "ipv4/ip_forward", 6: "ipv6/conf/all/forwarding"}


def not_forwarding(versions: Iterable[int]) -> list[str]:
    """Return the settings, below /proc/sys/net, that keep the host from forwarding these versions of IP."""
    return [_FORWARDING[version] for version in sorted(set(versions)) if get_sysctl(_FORWARDING[version]) != "1"]


def ensure_forwarding(versions: Iterable[int]) -> None:
    """Let the host forward these versions of IP.

    Raises:
        OSError: the kernel refuses.
    """
    for setting in not_forwarding(versions):
        set_sysctl(setting, "1")


def unconnected(links: Links, link: Link, addresses: Iterable[Interface]) -> list[Interface]:
    """Return those of an interface's addresses whose subnet has no route through it: no packet gets to its containers.

    Raises:
        OSError: the kernel refuses.
    """
    addresses = list(addresses)
    ways = {route.dst for route in links.routes(link, {one.version for one in addresses})}
    return [one for one in addresses if one.network.prefixlen < one.max_prefixlen and one.network not in ways]


def connect(links: Links, link: Link, address: Interface) -> None:
    """Give the host its route to the subnet of an interface's address, as the kernel does when it gets the address.

    Raises:
        OSError: the kernel refuses.
    """
    data = messages.connected_route(str(address.network), str(address.ip)).fill(index=u32(link.index))
    links.netlink.ask(Request(data, f"add route {address.network} through interface {link.name}", EEXIST))


def prepare_gateway_interface(ifname: str) -> None:
    """Let a new interface of the host, which no container can have used yet, serve containers from its first packet on.

    The host uses no routers among its containers. Nor does it look for another owner of the interface's link-local
    address, who cannot exist: that takes the kernel 2 s, in which it asks for no neighbour whenever a packet comes from
    another interface's address, and drops the packet in the end (ndisc_solicit, net/ipv6/ndisc.c).

    Raises:
        OSError: the kernel refuses.
    """
    set_sysctl(f"ipv6/conf/{ifname}/accept_ra", "0")
    set_sysctl(f"ipv6/conf/{ifname}/accept_dad", "0")
