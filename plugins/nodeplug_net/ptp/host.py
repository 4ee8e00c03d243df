"""The host's ends of ptp links: their addresses, and the routes to their containers.

Owns: what the host has for each attachment besides the link itself; the kernel removes it with the link.
Refuses: containers. Everything happens in the namespace that the calling thread is in.
"""

from collections.abc import Sequence

from nodeplug import CniIp
from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import Request
from nodeplug_net.netlink.links import Link, Links, address_request
from nodeplug_net.netlink.messages import u32
from nodeplug_net.netlink.routes import Interface
from nodeplug_net.sysctl import set_sysctl


def host_addresses(ips: Sequence[CniIp]) -> list[Interface]:
    """Return the addresses of a host's end: each gateway, alone."""
    return [type(ip.address)((ip.gateway, ip.address.max_prefixlen)) for ip in ips if ip.gateway is not None]


def configure_host_end(links: Links, outside: Link, ips: Sequence[CniIp]) -> None:
    """Give a host's end the gateway addresses, and the host a route to each address of the container.

    A route through another link is replaced: it is that of a container whose DEL has not come yet.

    Raises:
        OSError: the kernel refuses.
    """
    if any(ip.address.version == 6 for ip in ips):
        set_sysctl(f"ipv6/conf/{outside.name}/disable_ipv6", "0")
    requests = [address_request(outside.index, outside.name, address) for address in host_addresses(ips)]
    for ip in ips:
        data = messages.replace_host_route(str(ip.address.ip)).fill(index=u32(outside.index))
        requests.append(Request(data, f"add route {ip.address.ip} through interface {outside.name}"))
    links.netlink.ask(*requests)
