"""ADD of ptp: a veth pair between a container and the host, which is the container's only neighbour.

Owns: the order of the steps, and what makes the link point-to-point: in the container, the gateway alone is on the
link and everything else is behind it; on the host, each end has the gateway's address and a route to the container (see
`host`).
Refuses: a bridge, and every wait: both ends are up as soon as they exist.

A repeated ADD finds its host veth by its computed name and goes through the same steps, each of which is already done.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from nodeplug import CniAdd, CniInterface, CniIp, CniResult, InvalidRequest, PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.container_interface import configure, enable_ipv6
from nodeplug_net.dataplane import Dataplane
from nodeplug_net.forwarding import ensure_forwarding, prepare_gateway_interface
from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import EEXIST, ESRCH, Netlink, Request
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.netlink.messages import u32
from nodeplug_net.nftables.masquerade import Element
from nodeplug_net.ptp.config import PtpConfig, parse_ptp
from nodeplug_net.ptp.host import configure_host_end
from nodeplug_net.undo import Undo
from nodeplug_net.veth import VethPair

_CONTAINER_INTERFACE: Final = 1
"""The result's interfaces are the host veth and the container's."""


@dataclass(slots=True)
class Attaching:
    """One ADD in progress.

    Attributes:
        links: of the host namespace.
        undo: the steps back.
        outside: the host end, when there is one.
    """

    request: CniAdd
    config: PtpConfig
    attachment: Attachment
    links: Links
    plane: Dataplane
    undo: Undo
    outside: Link | None = None

    def run(self) -> CniResult:
        """Attach the container."""
        plan = self._plan(self.plane.addressing.add(self.request, self.config.ipam, self.undo))
        ensure_forwarding(ip.address.version for ip in plan.ips)
        outside = self.outside = self._ensure_veth()
        inside = configure(
            self.request,
            plan,
            prepare=lambda: self._prepare(plan),
            afterwards=lambda link: _point_to_point(link, plan),
        )
        configure_host_end(self.links, outside, plan.ips)
        asked = self.config.masquerading
        if asked.versions:  # last, and one transaction
            with self.plane.masquerade(self.request) as masquerade:
                masquerade.add([ip.address for ip in plan.ips], self.attachment.label, self._others, asked=asked)
        return replace(
            plan,
            interfaces=(
                CniInterface(outside.name, mac=outside.mac),
                CniInterface(inside.name, mac=inside.mac, sandbox=self.request.netns.path),
            ),
        )

    def _plan(self, found: CniResult) -> CniResult:
        """Complete IPAM's result: every address belongs to the container's end and has a gateway."""
        for ip in found.ips:
            if ip.gateway is None or ip.gateway.version != ip.address.version:
                raise InvalidRequest(
                    f"address {ip.address} has no gateway of its family",
                    details="the host's end of a ptp link has the gateway's address: give IPAM a gateway",
                )
        ips = tuple(CniIp(ip.address, gateway=ip.gateway, interface=_CONTAINER_INTERFACE) for ip in found.ips)
        return replace(found, ips=ips, dns=found.dns if self.config.dns is None else self.config.dns)

    def _others(self) -> list[Element]:
        """The other masqueraded addresses of this network, for a table that an administrator has flushed."""
        entries = self.plane.masqueraded(self.request, self.config, self.links)
        return [entry for entry in entries if entry.label != self.attachment.label]

    def _ensure_veth(self) -> Link:
        """Create the veth pair, or find the one of an earlier ADD of this attachment; return its host end."""
        pair = VethPair(self.request, self.links, self.plane.reaper, self.undo, self.config.mtu)
        pair.ensure(self._undo_rules)
        # Marked by name in a second step: in one send the kernel would mark another's link after a refused creation.
        data = messages.mark_link().fill(name=pair.name.encode(), label=self.attachment.label.encode())
        self.links.netlink.ask(Request(data, f"mark interface {pair.name}"))
        prepare_gateway_interface(pair.name)
        outside = self.links.get(pair.name)
        if outside is None:
            raise PluginError(f"interface {pair.name} vanished during ADD; is another program deleting it?")
        return outside

    def _undo_rules(self) -> None:
        """Undo, after the interface, a transaction whose answer was lost."""
        if self.config.masquerading.versions:
            what = f"remove the rules of {self.attachment.host_veth}"
            self.undo.push(what, lambda: self.plane.end_rules(self.request, self.attachment))

    def _prepare(self, plan: CniResult) -> None:
        if any(ip.address.version == 6 for ip in plan.ips):
            enable_ipv6(self.request.ifname)


def attach(request: CniAdd, plane: Dataplane) -> CniResult:
    """Serve ADD; a failure leaves nothing behind.

    Raises:
        PluginError: the configuration is wrong, IPAM has no address, or the container's interface name is taken.
        OSError: the kernel refuses.
    """
    config = parse_ptp(request)
    with Netlink() as netlink, Undo(plane.log) as undo:
        attaching = Attaching(request, config, Attachment.of(request), Links(netlink), plane, undo)
        result = attaching.run()
    if attaching.outside is not None:
        plane.networks.note(request, config, result, outside=attaching.outside)
    return result


def _point_to_point(link: Link, plan: CniResult) -> Sequence[Request]:
    """Return what sends all traffic through the gateway, which alone is on the link.

    The kernel's own route says that the subnet is on the link. It goes after the routes of the result, whose next hops
    it makes reachable.
    """
    requests = []
    for ip in plan.ips:
        index, own, subnet, gateway = u32(link.index), str(ip.address.ip), str(ip.address.network), str(ip.gateway)
        on_link = messages.delete_kernel_route(subnet).fill(index=index)
        requests.append(Request(on_link, f"remove route {subnet} of interface {link.name}", ESRCH))
        neighbour = messages.source_route(gateway, None, own).fill(index=index)
        requests.append(Request(neighbour, f"add route {gateway} through interface {link.name}", EEXIST))
        behind = messages.source_route(subnet, gateway, own).fill(index=index)
        requests.append(Request(behind, f"add route {subnet} via {gateway}", EEXIST))
    return requests
