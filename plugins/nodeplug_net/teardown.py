"""DEL and GC of attachments with an end on the host.

Owns: undoing what ADD made, in an order in which nobody else can get an address that is still in use: link, then
rules, then the address.
Refuses: to depend on anything. The host veth has a computed name; its alias, the masquerade entries and the addresses'
files name the attachment: namespace, result and journal may all be gone. Which links the reference's plugin made, under
random names, the caller says.
"""

from collections.abc import Callable, Sequence

from nodeplug import CniDel, CniGc
from nodeplug_net.attachment import HOST_VETH, Attachment, network_label
from nodeplug_net.dataplane import Dataplane
from nodeplug_net.interface_config import DelegationConf
from nodeplug_net.ipam.addressing import IN_PROCESS, Address
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links, links_in
from nodeplug_net.netlink.reaper import LIMIT
from nodeplug_net.undo import Errors

IsTheirs = Callable[[Link, Links], bool]
"""Whether an unlabelled veth of the host is one that the reference's plugin made for this network."""


def detach(request: CniDel, plane: Dataplane, is_theirs: IsTheirs) -> None:
    """Serve DEL: remove everything that can be removed, then report the first failure.

    Raises:
        PluginError: something is left; the runtime will repeat DEL.
        OSError: the kernel refuses.
    """
    attachment, plugin_type = Attachment.of(request), request.parse(DelegationConf).ipam.type
    plane.networks.pairs.forget(attachment.label)
    errors, gone = Errors(), False
    foreign = plugin_type not in IN_PROCESS
    if foreign:  # before the link, as a dhcp lease is returned through the interface
        with errors.kept():
            plane.end_rules(request, attachment)
        with errors.kept():
            _end_reference(request, attachment, plane)
        with errors.kept():
            plane.addressing.delete(request, plugin_type)
    with errors.kept(), Netlink() as netlink:
        links = Links(netlink)
        link = find_host_end(links, request, attachment, is_theirs)
        deletion = None if link is None else plane.reaper.delete(link)
        if not foreign:
            with errors.kept():  # while the kernel deletes the link
                plane.end_rules(request, attachment)
            if link is None or not link.alias:
                with errors.kept():
                    _end_reference(request, attachment, plane)
        if deletion is not None:
            deletion.wait(links)
        gone = True
    if not foreign and gone:
        with errors.kept():
            plane.addressing.delete(request, plugin_type)
    errors.raise_all()


def _end_reference(request: CniDel, attachment: Attachment, plane: Dataplane) -> None:
    """End what the reference plugin made if it attached the container: what is ours has a link with our label."""

    def others() -> list[Address]:
        owners = plane.addressing.owners(request, request.parse(DelegationConf).ipam.type)
        own, siblings = {attachment.label, attachment.container_label}, attachment.container_label
        return [address for label, address in owners if label.startswith(siblings) and label not in own]

    with plane.reference(request) as reference:
        reference.end(attachment, others)


def find_host_end(links: Links, request: CniDel, attachment: Attachment, is_theirs: IsTheirs) -> Link | None:
    """Find the host end of an attachment.

    It has a computed name. One that the reference plugin made has a random name: it is found through the container.
    """
    link = links.get(attachment.host_veth)
    if link is not None and link.alias in {"", attachment.label}:
        return link
    if request.netns is None:
        return None
    with links_in(request.netns) as inner:
        inside = inner.get(request.ifname)
    if inside is None or inside.kind != "veth":
        return None
    outside = links.at(inside.peer)
    if outside is None or outside.alias or outside.kind != "veth" or outside.peer != inside.index:
        return None
    return outside if is_theirs(outside, links) else None


def collect(request: CniGc, plane: Dataplane, find: Callable[[Links], Sequence[Link]]) -> None:
    """Serve GC: remove links, masquerading and addresses of this network that belong to no valid attachment.

    Args:
        request: with the attachments that are valid.
        plane: of the plugin.
        find: returns the links of this network on the host, ours and the reference's.

    Raises:
        PluginError: with every failure; the rest is done.
        OSError: the kernel refuses.
    """
    errors = Errors()
    linked = True
    if request.valid is not None:
        valid = [Attachment(request.network, one.container_id, one.ifname) for one in request.valid]
        labels = frozenset(one.label for one in valid)
        plane.networks.pairs.forget_others(request.network, labels)
        with errors.kept():
            linked = False
            _collect_links(request, labels, plane, find)
            linked = True
        with errors.kept(), plane.masquerade(request) as masquerade:
            entries = masquerade.entries(network_label(request.network))
            masquerade.remove([entry for entry in entries if entry.label not in labels])
        with errors.kept(), plane.reference(request) as reference:
            reference.collect(request.network, valid)
    if linked:  # else somebody may still use an address that others would get
        with errors.kept():
            plane.addressing.collect(request, request.parse(DelegationConf).ipam.type)
    errors.raise_all()


def _collect_links(
    request: CniGc, labels: frozenset[str], plane: Dataplane, find: Callable[[Links], Sequence[Link]]
) -> None:
    """Delete links of this network's attachments that are gone: ours by their label, others by their address."""
    with Netlink() as netlink:
        links = Links(netlink)
        present = find(links)
        lost = [
            link
            for link in present
            if HOST_VETH.fullmatch(link.name)
            and link.alias.startswith(network_label(request.network))
            and link.alias not in labels
        ]
        theirs = [link for link in present if not link.alias and link.kind == "veth"]
        lost += _lost_by_address(theirs, request, labels, links, plane) if theirs else []
        for start in range(0, len(lost), LIMIT):  # each deletion has a socket of its own
            for deletion in [plane.reaper.delete(link) for link in lost[start : start + LIMIT]]:
                deletion.wait(links)


def _lost_by_address(
    theirs: Sequence[Link], request: CniGc, labels: frozenset[str], links: Links, plane: Dataplane
) -> list[Link]:
    """Return which of the reference's links belong to no valid attachment: they have random names and no label.

    Their container's addresses say who they were given to. One that is somebody's who is valid keeps the link: a
    container may have an address beside its own.
    """
    owners = plane.addressing.owners(request, request.parse(DelegationConf).ipam.type)
    holders = {address: label for label, address in owners}
    lost = []
    for link in theirs:
        found = {holders.get(address.ip) for address in links.peer_addresses(link)} - {None}
        if found and not any(_is_valid(label, labels) for label in found if label is not None):
            lost.append(link)
    return lost


def _is_valid(label: str, labels: frozenset[str]) -> bool:
    """Whether a label is that of a valid attachment; one of an old file stands for each interface of its container."""
    return label in labels or (label.endswith(" ") and any(one.startswith(label) for one in labels))
