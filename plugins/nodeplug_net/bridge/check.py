"""CHECK and STATUS of the bridge: is everything as ADD left it, and would the next ADD succeed?

Owns: the comparison of a result with the kernel, with a text for every difference.
Refuses: repair, and complaints about what a later plugin of the list may add: extra routes and addresses are fine.
"""

from collections.abc import Iterator

from nodeplug import CniCheck, CniStatus, NotReady
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge.config import BridgeConfig, parse_bridge
from nodeplug_net.bridge.host import gateway_addresses
from nodeplug_net.bridge.mend import mend
from nodeplug_net.bridge.vlan import missing_vlans, vlans_of
from nodeplug_net.comparison import elements_of, inside_differences, mac_inside, masquerade_differences, refuse
from nodeplug_net.dataplane import Dataplane
from nodeplug_net.forwarding import unconnected
from nodeplug_net.inner_attachment import differences
from nodeplug_net.level.host_ends import HostEnd
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links, links_in
from nodeplug_net.nftables.spoof_check import SpoofCheck


def check(request: CniCheck, plane: Dataplane) -> None:
    """Serve CHECK.

    Raises:
        PluginError: with every difference.
        OSError: the kernel refuses.
    """
    config = parse_bridge(request)
    with Netlink() as netlink:
        links = Links(netlink)
        with links_in(request.netns) as inner:
            found = list(_differences(request, config, links, inner, plane))
    refuse(request, found)
    plane.addressing.check(request, config.ipam)


def host_end(request: CniCheck) -> HostEnd:
    """Return what an attachment needs on its host; the result has the MAC that ADD found.

    Raises:
        InvalidRequest: the configuration is wrong.
    """
    config = parse_bridge(request)
    return HostEnd(
        Attachment.of(request),
        elements_of(request, config.masquerading),
        mac_inside(request) if config.mac_spoof_check else "",
        (config.hairpin, config.isolated),
    )


def inside(request: CniCheck) -> list[str]:
    """Compare the container's side with the result.

    Raises:
        PluginError: the configuration is wrong, or the namespace is gone.
        OSError: the kernel refuses.
    """
    config = parse_bridge(request)
    with links_in(request.netns) as inner:
        return list(differences(request, inner, inner.get(request.ifname), may_be_down=config.interface_stays_down))


def _differences(
    request: CniCheck, config: BridgeConfig, links: Links, inner: Links, plane: Dataplane
) -> Iterator[str]:
    result = request.prev_result
    inside = inner.get(request.ifname)
    bridge, outside = links.find(config.bridge, _host_end(request, config))
    if bridge is None or bridge.kind != "bridge":
        yield f"bridge {config.bridge} does not exist"
        return
    if not bridge.is_up:
        yield f"bridge {config.bridge} is down"
    if inside is None:
        yield f"interface {request.ifname} does not exist in {request.netns.path}"
        return
    expected = next((one for one in result.interfaces if one.sandbox and one.name == request.ifname), None)
    if expected is None:
        yield f"the result has no interface {request.ifname} with a sandbox"
        return
    yield from inside_differences(request, inner, inside, expected, may_be_down=config.interface_stays_down)
    yield from _outside_differences(request, config, links, bridge, inside, outside)
    if config.is_gateway:
        gateway = links.get(config.gateway_interface) if config.vlan else bridge
        yield from _gateway_differences(request, config, links, gateway)
    if config.masquerading.versions:
        yield from masquerade_differences(request, plane, config.masquerading)
    if config.mac_spoof_check:
        with plane.nft.lent(request.host_netns) as netlink:
            host = _host_end(request, config)
            yield from SpoofCheck(netlink).differences(Attachment.of(request), host, inside.mac)


def _gateway_differences(request: CniCheck, config: BridgeConfig, links: Links, link: Link | None) -> Iterator[str]:
    present = [] if link is None else links.addresses(link)
    wanted = gateway_addresses(request.prev_result.ips)
    for address in wanted:
        if address not in present:
            yield f"{'interface' if config.vlan else 'bridge'} {config.gateway_interface} lost its address {address}"
    for address in unconnected(links, link, [one for one in wanted if one in present]) if link is not None else ():
        yield f"the host has no route to {address.network} through {config.gateway_interface}"


def _outside_differences(
    request: CniCheck, config: BridgeConfig, links: Links, bridge: Link, inside: Link, outside: Link | None
) -> Iterator[str]:
    name = _host_end(request, config)
    if outside is None:
        yield f"host interface {name} does not exist"
        return
    if not outside.is_up:
        yield f"host interface {name} is down"
    if (outside.peer, inside.peer) != (inside.index, outside.index):
        yield f"host interface {name} is not the peer of {inside.name}"
    if outside.master != bridge.index:
        yield f"host interface {name} is not a port of bridge {bridge.name}"
    elif outside.hairpin != config.hairpin:
        yield f"hairpin mode of {name} is {'on' if outside.hairpin else 'off'}"
    elif outside.isolated != config.isolated:
        yield f"isolation of {name} is {'on' if outside.isolated else 'off'}"
    yield from missing_vlans(links, outside, vlans_of(config)) if config.filters_vlans else ()
    expected = next((one for one in request.prev_result.interfaces if one.name == name and not one.sandbox), None)
    if expected is not None and expected.mac and outside.mac != expected.mac.lower():
        yield f"host interface {name} has MAC {outside.mac}, not {expected.mac}"


def _host_end(request: CniCheck, config: BridgeConfig) -> str:
    """Return the name of the host end; one that the reference plugin made has a random name."""
    name = Attachment.of(request).host_veth
    names = [one.name for one in request.prev_result.interfaces if not one.sandbox and one.name != config.bridge]
    return names[0] if names and name not in names else name


def status(request: CniStatus, plane: Dataplane) -> None:
    """Serve STATUS; repair what an ADD would repair.

    Runtimes hold pods back while STATUS fails, so a failure that only the next ADD would repair would never end.

    Raises:
        LimitedConnectivity: containers are attached, and the bridge cannot be repaired.
        NotReady: containers are attached and something that they need is gone; or IPAM has no address.
        OSError: the kernel refuses.
    """
    config = parse_bridge(request)
    mend(request, plane)
    missing = plane.networks.missing(request, config)
    if missing:
        raise NotReady(f"network {request.network} is damaged: {'; '.join(missing)}")
    plane.addressing.status(request, config.ipam)
