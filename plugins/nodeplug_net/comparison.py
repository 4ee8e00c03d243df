"""What CHECK compares, whatever kind of interface an attachment has.

Owns: a text for every difference between a result and the container's namespace, and the masquerading of its addresses.
Refuses: repair, and complaints about what a later plugin of the list may add: extra routes and addresses are fine.
"""

from collections.abc import Collection, Iterator
from typing import Final

from nodeplug import CniAdd, CniCheck, CniInterface, PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.container_interface import routed
from nodeplug_net.dataplane import Dataplane
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.nftables.masquerade import Element, Masquerading

_AGAIN: Final = "the next ADD, STATUS or GC of the network restores it"


def inside_differences(
    request: CniCheck, inner: Links, inside: Link, expected: CniInterface, *, may_be_down: bool = False
) -> Iterator[str]:
    """Compare the container's interface with the result: state, sandbox, hardware address, addresses, routes."""
    if not inside.is_up and not may_be_down:
        yield f"interface {inside.name} is down"
    if expected.sandbox != request.netns.path:
        yield f"interface {inside.name} of the result is in sandbox {expected.sandbox}, not {request.netns.path}"
    if expected.mac and inside.mac != expected.mac.lower():
        yield f"interface {inside.name} has MAC {inside.mac}, not {expected.mac}"
    addresses = inner.addresses(inside)
    own = [ip for ip in request.prev_result.ips if belongs(request, ip.interface)]
    for ip in own:
        if ip.address not in addresses:
            yield f"interface {inside.name} lost its address {ip.address}"
    expected_routes = routed(request.prev_result)
    routes = inner.routes(inside, {route.dst.version for route in expected_routes})
    for route in expected_routes:
        # What the result does not name a table of, a later plugin (sbr, vrf) may have carried to one.
        if not any(
            one.dst == route.dst and route.table in {None, one.table} and route.gw in {None, one.gw} for one in routes
        ):
            yield f"route {route.dst} via {route.gw} is missing"


def elements_of(request: CniCheck, asked: Masquerading) -> list[Element]:
    """Return the addresses of the attachment as they are masqueraded, of those that are to be."""
    own = [ip.address for ip in request.prev_result.ips if belongs(request, ip.interface)]
    return asked.elements(own, Attachment.of(request).label)


def mac_inside(request: CniCheck) -> str:
    """Return the MAC of the container's interface as the result has it."""
    interfaces = request.prev_result.interfaces
    return next((one.mac for one in interfaces if one.sandbox and one.name == request.ifname), "")


def refuse(request: CniCheck, found: Collection[str]) -> None:
    """Raise PluginError with every difference, if there is any."""
    if found:
        raise PluginError(
            f"attachment {request.ifname} of container {request.container_id} differs from its result: "
            f"{'; '.join(found)}; DEL and ADD it"
        )


def belongs(request: CniAdd | CniCheck, interface: int | None) -> bool:
    """Whether an address of the result is on this attachment's interface: a chain may have added others."""
    interfaces = () if request.prev_result is None else request.prev_result.interfaces
    if interface is None or not 0 <= interface < len(interfaces):
        return True
    return interfaces[interface].name == request.ifname


def masquerade_differences(request: CniCheck, plane: Dataplane, asked: Masquerading) -> Iterator[str]:
    """Find addresses of the attachment, of those that are to be, that neither we nor the reference masquerade."""
    attachment, own = Attachment.of(request), elements_of(request, asked)
    if not own:
        return
    with plane.masquerade(request) as masquerade:
        present = masquerade.owned(attachment.label)
        networks = [one.network for one in own]
        without_rule = set(masquerade.lacking(networks))
        without_drop = set(masquerade.lacking((), asked.strict_in(networks))) - without_rule
    lost = [one for one in own if one not in present]
    if lost:
        with plane.reference(request) as reference:
            theirs = [one for one in lost if reference.covers(attachment, one.address)]
        without_rule -= {one.network for one in theirs}
        lost = [one for one in lost if one not in theirs]
    for one in lost:
        yield f"address {one.address} is not masqueraded"
    for network in without_rule:
        yield f"subnet {network} has no rule that masquerades it; {_AGAIN}"
    for network in without_drop:
        yield f"subnet {network} has no rule that drops what belongs to no connection; {_AGAIN}"
