"""Somebody beyond the host, at the other end of a cable, who knows no way to containers."""

from ipaddress import ip_interface

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links

OUTSIDE = {4: ("192.0.2.1/24", "192.0.2.2/24"), 6: ("2001:db8::1/64", "2001:db8::2/64")}
"""The host's address there, and the other's."""
HOST = {version: pair[0].partition("/")[0] for version, pair in OUTSIDE.items()}
NEIGHBOUR = {version: pair[1].partition("/")[0] for version, pair in OUTSIDE.items()}


def lay_cable(scratch: ScratchCni) -> Netns:
    """Connect the host's up0 with down0 of a new namespace."""
    netns = scratch.container()
    connect(scratch.host_netns, netns)
    return netns


def connect(host: Netns, other: Netns) -> None:
    """Connect the host's up0 with down0 of another namespace."""

    def lay() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only these tests build a second network

        with IPRoute() as route:
            route.link("add", ifname="up0", kind="veth", peer={"ifname": "down0", "net_ns_fd": other.fd})
        _configure("up0", *(own for own, _ in OUTSIDE.values()))
        _configure("lo")

    run_in(host, lay)
    run_in(other, lambda: _configure("down0", *(own for _, own in OUTSIDE.values())))


def _configure(name: str, *addresses: str) -> None:
    with Netlink() as netlink:
        links = Links(netlink)
        link = links.get(name)
        assert link is not None
        links.set_up(link)
        for address in addresses:
            links.add_address(link, ip_interface(address))
