"""What a network on a bridge lost while containers are attached, given back: for STATUS, and when the kernel tells.

Owns: the order: the bridge, its ports, its addresses and the way to its subnets, forwarding, masquerading, and at last
what each attachment needs besides (`level.host_ends`).
Refuses: to look for what is missing besides (`needs`), and the containers' namespaces.

A bridge that somebody deleted is made anew with the hardware address that containers have in their ARP caches, and the
host ends that stayed become its ports again: their containers go on as if nothing had been.
"""

from dataclasses import replace
from ipaddress import ip_interface

from nodeplug import CniIp, CniStatus, InvalidRequest, LimitedConnectivity
from nodeplug_net.bridge import vlan
from nodeplug_net.bridge.config import BridgeConfig, parse_bridge
from nodeplug_net.bridge.host import ensure_bridge, ensure_gateway
from nodeplug_net.dataplane import Dataplane, ends_of
from nodeplug_net.forwarding import connect, ensure_forwarding, not_forwarding, unconnected
from nodeplug_net.needs import Needs
from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import Netlink, Request
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.netlink.routes import Interface


def mend(request: CniStatus, plane: Dataplane) -> None:
    """Give back what an ADD would, and what the containers that are attached need besides.

    Args:
        request: of the network; the calling thread is in its host namespace.
        plane: of the plugin.

    Raises:
        LimitedConnectivity: it cannot be done.
        InvalidRequest: the configuration is wrong.
        OSError: the kernel cannot be asked.
    """
    config = parse_bridge(request)
    with Netlink() as netlink:
        links = Links(netlink)
        bridge = links.get(config.bridge)
        if bridge is not None and bridge.kind != "bridge":
            raise LimitedConnectivity(f"interface {bridge.name} is not a bridge; remove it or choose another name")
        attached = ends_of(request.network, links)
        known = plane.networks.recorded(request, config.bridge)
        if not attached or (bridge is None and (known is None or not known.config)):
            return  # the first ADD makes the bridge and gives it its addresses
        try:
            _mend(request, config, plane, links, attached, known)
        except (OSError, InvalidRequest) as error:
            raise LimitedConnectivity(f"bridge {config.bridge} cannot be repaired: {error}") from error


def _mend(
    request: CniStatus, config: BridgeConfig, plane: Dataplane, links: Links, attached: list[Link], known: Needs | None
) -> None:
    bridge = _bridge(config, plane, links, known)
    _mend_ports(config, plane, links, bridge, attached)
    if config.is_gateway:
        _mend_gateways(request, config, plane, links, bridge)
    plane.mend_masquerade(request, config, links)
    plane.networks.restore(request, config)


def _bridge(config: BridgeConfig, plane: Dataplane, links: Links, known: Needs | None) -> Link:
    found = links.get(config.bridge)
    if found is None:
        plane.log.warning("bridge %s was deleted with containers attached; it is made anew", config.bridge)
        found = ensure_bridge(links, config)
        if known is not None and known.mac:
            links.set_mac(found, known.mac)
            found = replace(found, mac=known.mac)
    elif not found.is_up:
        plane.log.warning("bridge %s was down with containers attached; it is set up again", found.name)
        links.set_up(found)
    return found


def _mend_ports(config: BridgeConfig, plane: Dataplane, links: Links, bridge: Link, attached: list[Link]) -> None:
    """Make host ends ports again, and set them up. One with an address is no port: it was made by another plugin."""
    for link in attached:
        loose = not link.master and all(one.is_link_local for one in links.addresses(link))
        if loose:
            plane.log.warning("interface %s left bridge %s; it is its port again", link.name, bridge.name)
            links.set_master(link, bridge)
            mark = messages.mark_port(hairpin=config.hairpin, isolated=config.isolated)
            data = mark.fill(name=link.name.encode(), label=link.alias.encode())
            links.netlink.ask(Request(data, f"mark interface {link.name}"))
            if vlans := vlan.vlans_of(config):
                keep = config.preserve_default_vlan
                vlan.put_into_vlans(links, bridge, link.name, vlans, preserve_default=keep)
        if not link.is_up and (loose or link.master == bridge.index):
            plane.log.warning("interface %s of bridge %s was down; it is set up again", link.name, bridge.name)
            links.set_up(link)


def _mend_gateways(request: CniStatus, config: BridgeConfig, plane: Dataplane, links: Links, bridge: Link) -> None:
    link = links.get(config.gateway_interface) if config.vlan else bridge
    if link is None:
        link = vlan.ensure_gateway_interface(links, bridge, config, request.host_netns)
    addresses = links.addresses(link)
    present = {address.ip for address in addresses}
    sets = [list(one) for one in plane.addressing.gateways(request, config.ipam)]
    sets += [[one] for one in _recorded_gateways(request, config, plane)]
    lost = {gateways[0]: None for gateways in sets if not present.intersection(one.ip for one in gateways)}
    if lost:
        text = ", ".join(str(one.ip) for one in lost)
        plane.log.warning("interface %s lost %s, the gateway of its containers; it is restored", link.name, text)
        # Those of other ranges, which do not conflict.
        beside = [one for gateways in sets for one in gateways if one in addresses]
        ensure_gateway(links, link, config, [CniIp(one, gateway=one.ip) for one in [*beside, *lost]])
    for one in (
        []
        if config.vlan
        else unconnected(links, link, {one for gateways in sets for one in gateways if one in addresses})
    ):
        plane.log.warning("the host lost its route to %s through bridge %s; it is restored", one.network, link.name)
        connect(links, link, one)
    versions = {gateways[0].version for gateways in sets}
    off = not_forwarding(versions)
    if off:
        plane.log.warning("net/%s was not 1 with containers attached; the host forwards again", ", net/".join(off))
        ensure_forwarding(versions)


def _recorded_gateways(request: CniStatus, config: BridgeConfig, plane: Dataplane) -> list[Interface]:
    known = plane.networks.recorded(request, config.bridge)
    return [] if known is None or config.vlan else sorted(map(ip_interface, known.addresses), key=str)
