"""The interface in the container: its addresses, routes and settings.

Owns: the order in which a namespace takes them, for every plugin that makes an interface.
Refuses: making the interface, and choosing addresses.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import ip_address

from nodeplug import CniAdd, CniResult, CniRoute, PluginError
from nodeplug_net.netlink.connection import Netlink, Request
from nodeplug_net.netlink.dad import settle
from nodeplug_net.netlink.links import Link, Links, address_request, route_request, up_request
from nodeplug_net.sysctl import set_sysctl

Afterwards = Callable[[Link], Sequence[Request]]


def _nothing(_link: Link) -> Sequence[Request]:
    return ()


def configure(
    request: CniAdd,
    plan: CniResult,
    *,
    prepare: Callable[[], None] = lambda: None,
    mac: str = "",
    before_up: Callable[[Link], None] = lambda _: None,
    afterwards: Afterwards = _nothing,
    dad: bool = False,
    waits: bool = True,
    stays_down: bool = False,
) -> Link:
    """Give the container's interface its addresses, bring it up, and add routes.

    Args:
        request: names the namespace and the interface, which exists.
        plan: addresses, all of this interface, and routes.
        prepare: what is set before, in the namespace.
        mac: the hardware address that it must have, or empty.
        before_up: called with the interface before it has addresses and is up, outside of the namespace.
        afterwards: returns what is sent after the routes.
        dad: whether the kernel asks on the wire who has the IPv6 addresses.
        waits: whether to wait then until no neighbour has them.
        stays_down: whether it gets nothing of all that and is left down.

    Raises:
        PluginError: there is no such interface, or a neighbour has one of the addresses.
        OSError: the kernel refuses.
    """
    ifname = request.ifname
    with request.netns.entered():
        prepare()
        netlink = Netlink()
    with netlink:
        links = Links(netlink)
        link = links.get(ifname)
        if link is None:
            raise PluginError(f"interface {ifname} vanished from {request.netns.path} during ADD")
        if mac and link.mac != mac:
            links.set_mac(link, mac)
            link.mac = mac
        before_up(link)
        if stays_down:
            return link
        early = [address_request(link.index, ifname, ip.address) for ip in plan.ips if ip.address.version == 4]
        late = [address_request(link.index, ifname, ip.address, dad=dad) for ip in plan.ips if ip.address.version == 6]
        # IPv4 addresses come first so that arp_notify announces them; IPv6 addresses need an interface that is up.
        requests = [*early, up_request(link.index, ifname), *late]
        if dad and waits and late:
            netlink.ask(*requests)
            settle(links, link)
            requests = []
        routes = [route_request(link.index, ifname, route) for route in routed(plan)]
        if requests := [*requests, *routes, *afterwards(link)]:
            netlink.ask(*requests)
    return link


def routed(plan: CniResult) -> list[CniRoute]:
    """Return the routes with a gateway each: a route without one goes to the first gateway of its family."""
    gateways = {ip.gateway.version: ip_address(ip.gateway) for ip in reversed(plan.ips) if ip.gateway is not None}
    return [
        route if route.gw is not None else replace(route, gw=gateways.get(route.dst.version)) for route in plan.routes
    ]


def enable_ipv6(ifname: str) -> None:
    """Let an interface have IPv6 addresses and keep them when it goes down, as it keeps IPv4 addresses.

    The calling thread is in the container's namespace.
    """
    set_sysctl("ipv6/conf/lo/disable_ipv6", "0")
    set_sysctl(f"ipv6/conf/{ifname}/disable_ipv6", "0")
    set_sysctl(f"ipv6/conf/{ifname}/keep_addr_on_down", "1")
