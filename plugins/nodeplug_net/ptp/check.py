"""CHECK and STATUS of ptp: is everything as ADD left it, and would the next ADD succeed?

Owns: the comparison of a result with the kernel, with a text for every difference, and what STATUS restores.
Refuses: complaints about what a later plugin of the list may add: extra routes and addresses are fine.
"""

from collections.abc import Iterator
from ipaddress import ip_network

from nodeplug import CniCheck, CniIp, CniStatus, LimitedConnectivity, NotReady
from nodeplug_net.attachment import Attachment
from nodeplug_net.comparison import belongs, elements_of, inside_differences, masquerade_differences, refuse
from nodeplug_net.dataplane import Dataplane, ends_of
from nodeplug_net.forwarding import ensure_forwarding, not_forwarding
from nodeplug_net.inner_attachment import differences
from nodeplug_net.level.host_ends import HostEnd
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links, links_in
from nodeplug_net.netlink.routes import Route
from nodeplug_net.ptp.config import PtpConfig, parse_ptp
from nodeplug_net.ptp.host import host_addresses


def check(request: CniCheck, plane: Dataplane) -> None:
    """Serve CHECK.

    Raises:
        PluginError: with every difference.
        OSError: the kernel refuses.
    """
    config = parse_ptp(request)
    with Netlink() as netlink:
        links = Links(netlink)
        with links_in(request.netns) as inner:
            found = list(_differences(request, config, links, inner, plane))
    refuse(request, found)
    plane.addressing.check(request, config.ipam)


def host_end(request: CniCheck) -> HostEnd:
    """Return what an attachment needs on its host.

    Raises:
        InvalidRequest: the configuration is wrong.
    """
    config, own = parse_ptp(request), [ip for ip in request.prev_result.ips if belongs(request, ip.interface)]
    return HostEnd(Attachment.of(request), elements_of(request, config.masquerading), routed=own)


def inside(request: CniCheck) -> list[str]:
    """Compare the container's side with the result.

    Raises:
        PluginError: the namespace is gone.
        OSError: the kernel refuses.
    """
    own = [ip for ip in request.prev_result.ips if belongs(request, ip.interface)]
    with links_in(request.netns) as inner:
        link = inner.get(request.ifname)
        routes = inner.routes(link) if link is not None else []
        return [
            *differences(request, inner, link, "veth"),
            *(_route_differences(own, routes) if link is not None else ()),
        ]


def _differences(request: CniCheck, config: PtpConfig, links: Links, inner: Links, plane: Dataplane) -> Iterator[str]:
    result = request.prev_result
    inside = inner.get(request.ifname)
    if inside is None:
        yield f"interface {request.ifname} does not exist in {request.netns.path}"
        return
    if inside.kind != "veth":
        yield f"interface {request.ifname} is {inside.kind or 'a device'}, not veth"
        return
    expected = next((one for one in result.interfaces if one.name == request.ifname and one.sandbox), None)
    if expected is None:
        yield f"the result has no interface {request.ifname} with a sandbox"
        return
    own = [ip for ip in result.ips if belongs(request, ip.interface)]
    yield from inside_differences(request, inner, inside, expected)
    yield from _route_differences(own, inner.routes(inside))
    yield from _outside_differences(request, own, links, inside)
    if config.masquerading.versions:
        yield from masquerade_differences(request, plane, config.masquerading)


def _route_differences(own: list[CniIp], routes: list[Route]) -> Iterator[str]:
    for ip in own:
        if not any(one.dst == ip_network(str(ip.gateway)) and one.gw is None for one in routes):
            yield f"the gateway {ip.gateway} has no route"
        if not any((one.dst, one.gw) == (ip.address.network, ip.gateway) for one in routes):
            yield f"route {ip.address.network} via {ip.gateway} is missing"


def _outside_differences(request: CniCheck, own: list[CniIp], links: Links, inside: Link) -> Iterator[str]:
    name = Attachment.of(request).host_veth
    ends = {one.name: one for one in request.prev_result.interfaces if not one.sandbox}
    if ends and name not in ends:
        name = next(iter(ends))  # made by the reference plugin, under a random name
    outside = links.get(name)
    if outside is None:
        yield f"host interface {name} does not exist"
        return
    if not outside.is_up:
        yield f"host interface {name} is down"
    if (outside.peer, inside.peer) != (inside.index, outside.index):
        yield f"host interface {name} is not the peer of {inside.name}"
    if name in ends and ends[name].mac and outside.mac != ends[name].mac.lower():
        yield f"host interface {name} has MAC {outside.mac}, not {ends[name].mac}"
    present = links.addresses(outside)
    for address in host_addresses(own):
        if address not in present:
            yield f"host interface {name} lost its address {address}"
    ways = {route.dst for route in links.routes(outside)}
    for ip in own:
        if ip_network(ip.address.ip) not in ways:
            yield f"the host has no route to {ip.address.ip} through {name}"


def status(request: CniStatus, plane: Dataplane) -> None:
    """Serve STATUS; repair what an ADD would repair.

    Raises:
        LimitedConnectivity: containers are attached, and what they need cannot be restored.
        NotReady: containers are attached and something that they need is gone; or IPAM has no address.
        OSError: the kernel refuses.
    """
    config = parse_ptp(request)
    mend(request, plane)
    missing = plane.networks.missing(request, config)
    if missing:
        raise NotReady(f"network {request.network} is damaged: {'; '.join(missing)}")
    plane.addressing.status(request, config.ipam)


def mend(request: CniStatus, plane: Dataplane) -> None:
    """Give back what an ADD would.

    Raises:
        LimitedConnectivity: it cannot be done.
        OSError: the kernel cannot be asked.
    """
    config = parse_ptp(request)
    with Netlink() as netlink:
        links = Links(netlink)
        attached = ends_of(request.network, links)
        try:
            for link in attached:
                if not link.is_up:
                    plane.log.warning("interface %s was down; it is set up again", link.name)
                    links.set_up(link)
            if attached:
                _mend_forwarding(request, config, plane, links)
                plane.mend_masquerade(request, config, links)
                plane.networks.restore(request, config)
        except OSError as error:
            raise LimitedConnectivity(f"network {request.network} cannot be repaired: {error}") from error


def _mend_forwarding(request: CniStatus, config: PtpConfig, plane: Dataplane, links: Links) -> None:
    versions = {address.version for _, address in plane.leased(request, config.ipam, links)}
    off = not_forwarding(versions)
    if off:
        plane.log.warning("net/%s was not 1 with containers attached; the host forwards again", ", net/".join(off))
        ensure_forwarding(versions)
