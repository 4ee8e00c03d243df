"""ADD of the bridge: a veth pair between a container and a bridge, with addresses, routes and masquerading.

Owns: the order of the steps, and the undo of each.
Refuses: dumps of links, moving a link between namespaces, waiting in fixed steps: each costs more than the whole ADD.

The host end is created up and as a port of the bridge, the other end in the container's namespace. A repeated ADD finds
its host veth by its computed name and goes through the same steps, each of which is already done.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Final

from nodeplug import CniAdd, CniInterface, CniIp, CniResult, CniRoute, PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge import vlan
from nodeplug_net.bridge.config import BridgeConfig, parse_bridge
from nodeplug_net.bridge.host import ensure_bridge, ensure_gateway
from nodeplug_net.container_interface import configure, enable_ipv6
from nodeplug_net.dataplane import Dataplane
from nodeplug_net.ipam.addressing import BEFORE_INTERFACES, gateway_of
from nodeplug_net.netlink import messages
from nodeplug_net.netlink.changes import LINKS, Changes
from nodeplug_net.netlink.connection import Netlink, Request
from nodeplug_net.netlink.links import OPER_UP, Link, Links
from nodeplug_net.nftables.masquerade import Element, Masquerade
from nodeplug_net.nftables.spoof_check import SpoofCheck
from nodeplug_net.sysctl import set_sysctl
from nodeplug_net.undo import Undo
from nodeplug_net.veth import VethPair

_CONTAINER_INTERFACE: Final = 2
"""The result's interfaces are the bridge, the host veth, the container's."""
_PORT_PATIENCE: Final = 2.5


@dataclass(slots=True)
class Attaching:
    """One ADD in progress.

    Attributes:
        links: of the host namespace.
        undo: the steps back.
        outside: the host end, when the container is attached.
    """

    request: CniAdd
    config: BridgeConfig
    attachment: Attachment
    links: Links
    plane: Dataplane
    undo: Undo
    outside: Link | None = None

    def run(self) -> CniResult:
        """Attach the container."""
        config = self.config
        bridge = ensure_bridge(self.links, config)
        # An exhausted range fails before anything is made; a foreign IPAM plugin (dhcp) needs the interface first.
        early = config.ipam in BEFORE_INTERFACES
        addresses = self.plane.addressing.add(self.request, config.ipam, self.undo) if early else CniResult()
        self._ensure_veth(bridge)
        if config.ipam and not early:
            addresses = self.plane.addressing.add(self.request, config.ipam, self.undo)
        plan = plan_addresses(config, addresses)
        inside = self._configure_container(plan)
        gateway = self._ensure_gateway(bridge, plan) if config.is_gateway and plan.ips else bridge
        outside, bridge = self._wait_for_port(bridge)
        self.outside = outside
        if not config.mac_spoof_check:  # last, and one transaction
            self._write_rules(plan, "")
        return replace(
            plan,
            interfaces=(
                CniInterface(bridge.name, mac=bridge.mac, mtu=bridge.mtu),
                CniInterface(outside.name, mac=outside.mac, mtu=outside.mtu),
                CniInterface(inside.name, mac=inside.mac, sandbox=self.request.netns.path, mtu=inside.mtu),
                *([CniInterface(gateway.name, mac=gateway.mac)] if gateway.name != bridge.name else ()),
            ),
        )

    def _ensure_gateway(self, bridge: Link, plan: CniResult) -> Link:
        """Return the interface that is the gateway: the bridge, or one of its own in a VLAN."""
        link = bridge
        if self.config.vlan:
            link = vlan.ensure_gateway_interface(self.links, bridge, self.config, self.request.host_netns)
        ensure_gateway(self.links, link, self.config, plan.ips)
        return link

    def _write_rules(self, plan: CniResult, checked_mac: str) -> None:
        """Masquerade, and let no other MAC pass if there is one to check, in one transaction."""
        if not self.config.masquerading.versions and not checked_mac:
            return
        attachment = self.attachment
        with self.plane.nft.lent(self.request.host_netns) as netlink:
            spoof = SpoofCheck(netlink)

            def check_of_macs(again: bool) -> Sequence[bytearray]:
                return spoof.composed(attachment, attachment.host_veth, checked_mac, again=again) if checked_mac else ()

            addresses, asked = [ip.address for ip in plan.ips], self.config.masquerading
            Masquerade(netlink).add(addresses, attachment.label, self._others, check_of_macs, asked)

    def _others(self) -> list[Element]:
        """The other masqueraded addresses of this network, for a table that an administrator has flushed."""
        entries = self.plane.masqueraded(self.request, self.config, self.links)
        return [entry for entry in entries if entry.label != self.attachment.label]

    def _ensure_veth(self, bridge: Link) -> None:
        """Create the veth pair, or find the one of an earlier ADD of this attachment."""
        config = self.config
        pair = VethPair(self.request, self.links, self.plane.reaper, self.undo, config.mtu, config.mac, bridge)
        pair.ensure(self._undo_rules)
        # Marked by name in a second step: in one send the kernel would mark another's link after a refused creation.
        mark = messages.mark_port(hairpin=config.hairpin, isolated=config.isolated)
        data = mark.fill(name=pair.name.encode(), label=self.attachment.label.encode())
        self.links.netlink.ask(Request(data, f"mark interface {pair.name}"))
        set_sysctl(f"ipv6/conf/{pair.name}/accept_ra", "0")
        vlans = vlan.vlans_of(config)
        if vlans:
            keep = config.preserve_default_vlan
            vlan.put_into_vlans(self.links, bridge, pair.name, vlans, preserve_default=keep)

    def _undo_rules(self) -> None:
        """Undo rules after the interface: those against other MACs, or a transaction whose answer was lost."""
        if self.config.mac_spoof_check or self.config.masquerading.versions:
            what = f"remove the rules of {self.attachment.host_veth}"
            self.undo.push(what, lambda: self.plane.end_rules(self.request, self.attachment))

    def _configure_container(self, plan: CniResult) -> Link:
        """Give the container's end its addresses, bring it up, and add routes."""
        config = self.config

        def prepare() -> None:
            if config.ipam:  # without addresses, the interface is the container's own matter
                ipv6 = any(ip.address.version == 6 for ip in plan.ips)
                set_container_sysctls(self.request.ifname, ipv6=ipv6, dad=config.dad)

        def check_mac(link: Link) -> None:
            if config.mac_spoof_check:  # before the first frame, which the kernel sends itself
                self._write_rules(plan, link.mac)

        return configure(
            self.request,
            plan,
            prepare=prepare,
            mac=config.mac,
            before_up=check_mac,
            dad=config.dad,
            stays_down=config.interface_stays_down,
        )

    def _wait_for_port(self, bridge: Link) -> tuple[Link, Link]:
        """Wait until packets pass, unless the other end stays down; return the host end, and the bridge as it is then.

        An unpinned MAC of the bridge follows its ports.

        Raises:
            PluginError: they do not pass.
        """
        found = self._passing(bridge)
        if found is not None:
            return found
        until = time.monotonic() + _PORT_PATIENCE
        with Changes(LINKS) as changes:
            while (found := self._passing(bridge, last=time.monotonic() > until)) is None:
                changes.wait(until - time.monotonic())
        return found

    def _passing(self, bridge: Link, *, last: bool = False) -> tuple[Link, Link] | None:
        """Return the host end and the bridge if packets pass; None if they do not yet.

        Raises:
            PluginError: it is gone, or this was the last look.
        """
        name = self.attachment.host_veth
        link, now = self.links.find(name, bridge.name)
        if link is not None and (link.state == OPER_UP or self.config.interface_stays_down):
            return link, now or bridge
        if link is None or last:
            found = "it is gone" if link is None else f"operational state {link.state}"
            raise PluginError(f"bridge port in error state: {name} ({found}); is bridge {self.config.bridge} up?")
        return None


def attach(request: CniAdd, plane: Dataplane) -> CniResult:
    """Serve ADD; a failure leaves nothing behind.

    Raises:
        PluginError: the configuration is wrong, IPAM has no address, or the container's interface name is taken.
        OSError: the kernel refuses.
    """
    config = parse_bridge(request)
    with Netlink() as netlink, Undo(plane.log) as undo:
        attaching = Attaching(request, config, Attachment.of(request), Links(netlink), plane, undo)
        result = attaching.run()
    # In a VLAN, another interface than the bridge has the gateway's addresses.
    noted = replace(config, is_gateway=config.is_gateway and not config.vlan)
    if attaching.outside is not None:
        plane.networks.note(request, noted, result, outside=attaching.outside)
    return result


def plan_addresses(config: BridgeConfig, found: CniResult) -> CniResult:
    """Complete IPAM's result: gateways, the default route, dns; every address belongs to the container's end."""
    ips = []
    for ip in found.ips:
        gateway = ip.gateway
        if gateway is None and config.is_gateway:
            gateway = gateway_of(ip)[0]
        ips.append(CniIp(ip.address, gateway=gateway, interface=_CONTAINER_INTERFACE))
    routes = list(found.routes)
    if config.is_default_gateway:
        for ip in ips:
            default = ip_network("0.0.0.0/0" if ip.address.version == 4 else "::/0")
            if not any(route.dst == default for route in routes):
                routes.append(CniRoute(default, gw=ip.gateway))
    return CniResult(ips=tuple(ips), routes=tuple(routes), dns=found.dns if config.dns is None else config.dns)


def set_container_sysctls(ifname: str, *, ipv6: bool, dad: bool) -> None:
    """Set what a container's interface needs; the calling thread is in the container's namespace.

    Addresses come from an allocator, so duplicate address detection is off unless asked for; arp_notify tells the
    neighbours of a reused address.
    """
    set_sysctl(f"ipv4/conf/{ifname}/arp_notify", "1")
    if dad:
        set_sysctl(f"ipv6/conf/{ifname}/enhanced_dad", "1")  # its own frames that come back are no duplicate
    set_sysctl(f"ipv6/conf/{ifname}/accept_dad", str(int(dad)))
    if ipv6:
        enable_ipv6(ifname)
