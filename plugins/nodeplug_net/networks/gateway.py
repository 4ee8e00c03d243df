"""The default route of a pod that asks for one through another network.

Owns: which default routes go, and the one that takes their place.
Refuses: other routes, and other tables than the main one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

from nodeplug import CniResult, CniRoute, Netns, NotFound
from nodeplug_net.netlink import policy
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links, route_request
from nodeplug_net.networks.plan import Planned, gateway_of

_MAIN: Final = 254
_EVERYWHERE: Final[Mapping[int, IPv4Network | IPv6Network]] = {4: IPv4Network("0.0.0.0/0"), 6: IPv6Network("::/0")}


def lead(netns: Netns, plans: Sequence[Planned], results: Sequence[CniResult]) -> list[CniResult]:
    """Set the default routes that a pod asks for; return the results with these, and without those that are gone.

    Raises:
        PluginError, OSError: the kernel refuses, as it does where the gateway is in no network of the interface.
    """
    chosen = {version: found for version in (4, 6) if (found := gateway_of(plans, version)) is not None}
    if not chosen:
        return list(results)
    with netns.entered(), Netlink() as netlink:
        links = Links(netlink)
        for one in plans:
            link = links.get(one.ifname)
            through = policy.routes(netlink, link.index) if link is not None else []
            gone = [route for route in through if route.dst == "default" and route.table == _MAIN]
            netlink.ask(*(policy.delete_route(route) for route in gone if route.version in chosen))
        for version, (planned, gateway) in chosen.items():
            link = links.get(planned.ifname)
            if link is None:
                raise NotFound(f"network {planned.network} made no interface {planned.ifname} for the default route")
            netlink.ask(route_request(link.index, link.name, _default(version, gateway)))
    own = [
        [_default(version, gateway) for version, (planned, gateway) in chosen.items() if planned is one]
        for one in plans
    ]
    return [_led(result, set(chosen), routes) for result, routes in zip(results, own, strict=True)]


def _default(version: int, gateway: str) -> CniRoute:
    return CniRoute(_EVERYWHERE[version], gw=ip_address(gateway))


def _led(result: CniResult, versions: set[int], own: Sequence[CniRoute]) -> CniResult:
    kept = (one for one in result.routes if one.dst.prefixlen or one.dst.version not in versions)
    return replace(result, routes=(*kept, *own))
