"""The bridge itself, and what the host needs to be a gateway.

Owns: finding or creating the bridge, its addresses and the conflicts between them.
Refuses: containers. Everything happens in the namespace that the calling thread is in.
"""

import errno
from collections.abc import Sequence
from ipaddress import IPv4Interface, IPv6Interface

from nodeplug import CniIp, InvalidRequest, PluginError
from nodeplug_net.bridge.config import BridgeConfig
from nodeplug_net.forwarding import ensure_forwarding, prepare_gateway_interface
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.netlink.routes import Interface, interface
from nodeplug_net.sysctl import set_sysctl


def ensure_bridge(links: Links, config: BridgeConfig) -> Link:
    """Find the bridge, or create it; it is up afterwards.

    Raises:
        InvalidRequest: another kind of interface has that name.
        OSError: the kernel refuses.
    """
    bridge = links.get(config.bridge)
    if bridge is None:
        _create(links, config)
        bridge = links.get(config.bridge)
        if bridge is None:
            raise PluginError(f"bridge {config.bridge} vanished right after its creation; try again")
        prepare_gateway_interface(config.bridge)
    if bridge.kind != "bridge":
        raise InvalidRequest(
            f'failed to create bridge "{config.bridge}": "{config.bridge}" already exists but is not a bridge',
            details=f"found: {bridge.kind or 'a device'}; remove it or choose another name in key 'bridge'",
        )
    if not bridge.is_up:
        links.set_up(bridge)
    if config.promiscuous and not bridge.is_promiscuous:
        links.set_promiscuous(bridge)
    return bridge


def _create(links: Links, config: BridgeConfig) -> None:
    try:
        links.create_bridge(config.bridge, config.mtu, filters_vlans=config.filters_vlans)
    except OSError as error:
        if not config.filters_vlans or error.errno != errno.EOPNOTSUPP:
            raise
        raise PluginError(
            f'failed to create bridge "{config.bridge}": could not add "{config.bridge}": operation not supported',
            details="this kernel's bridges do not filter VLANs (CONFIG_BRIDGE_VLAN_FILTERING)",
        ) from error


def gateway_addresses(ips: Sequence[CniIp]) -> list[Interface]:
    """Return the addresses of the bridge as a gateway: each gateway with its subnet's prefix."""
    return [interface(ip.gateway.packed, ip.address.network.prefixlen) for ip in ips if ip.gateway is not None]


def ensure_gateway(links: Links, bridge: Link, config: BridgeConfig, ips: Sequence[CniIp]) -> None:
    """Give the bridge its gateway addresses and let the host forward.

    Raises:
        InvalidRequest: there is a conflicting address and `forceAddress` is not set.
        OSError: the kernel refuses.
    """
    wanted = gateway_addresses(ips)
    present = links.addresses(bridge)
    for address in wanted:
        if address in present:
            continue
        for other in present:
            if other not in wanted and _conflict(address, other):
                _resolve(links, bridge, config, address, other)
        if all(other.is_link_local for other in present):
            links.set_mac(bridge, bridge.mac)  # pins it: otherwise it follows the lowest address of the ports
        if address.version == 6:
            set_sysctl(f"ipv6/conf/{bridge.name}/disable_ipv6", "0")
        links.add_address(bridge, address)
    ensure_forwarding(address.version for address in wanted)


def _conflict(address: Interface, other: Interface) -> bool:
    """Whether an address on the bridge excludes another: any of IPv4, overlapping subnets of IPv6."""
    if isinstance(address, IPv4Interface):
        return isinstance(other, IPv4Interface)
    return isinstance(other, IPv6Interface) and address.network.overlaps(other.network)


def _resolve(links: Links, bridge: Link, config: BridgeConfig, address: Interface, other: Interface) -> None:
    if not config.force_address:
        words = f'failed to set bridge addr: "{bridge.name}" already has an IP address different from {address}'
        raise InvalidRequest(
            words.replace("set bridge addr", "set vlan interface for bridge with addr", bool(config.vlan)),
            details=f"found {other}; remove it, choose another bridge, or set 'forceAddress'",
        )
    links.remove_address(bridge, other)
