"""What nodeplug masquerades becomes what the reference's plugins masquerade, so that they can end it.

Owns: whose our entries are, writing the reference's rules for them before ours go, and taking our label from the
interfaces, so that whoever ends a container looks for the reference's rules.
Refuses: everything else: interfaces, addresses and their files are the same for both.

It may be ended and repeated at any moment: an address with both kinds of rules is masqueraded all the same.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface

from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links
from nodeplug_net.netlink.routes import Interface
from nodeplug_net.nftables.masquerade import Element, Masquerade
from nodeplug_net.reference.recorded import Node
from nodeplug_net.reference.traces import Reference

Write = Callable[[Iterable[tuple[Attachment, Interface]]], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One address that nodeplug masquerades.

    Attributes:
        attachment: whose it is; None if its label was shortened and no file of an address names it.
        ended: whether its container has no interface any more: somebody who does not know nodeplug's rules ended it.
    """

    element: Element
    attachment: Attachment | None
    ended: bool = False

    @property
    def address(self) -> Interface:
        """The address with the prefix of its subnet."""
        plain = self.element.address
        with_prefix = f"{plain}/{self.element.network.prefixlen}"
        return IPv4Interface(with_prefix) if plain.version == 4 else IPv6Interface(with_prefix)


def entries(masquerade: Masquerade, node: Node) -> list[Entry]:
    """List what nodeplug masquerades in the namespace that the calling thread is in.

    Raises:
        OSError: the kernel refuses.
    """
    found = masquerade.entries(node.prefix)
    found.sort(key=lambda one: (one.label, one.network.version, one.key))
    known = [(one, node.whose(one.label)) for one in found]
    return [Entry(one, whose, whose is not None and whose.host_veth not in node.links) for one, whose in known]


def apply(planned: Iterable[Entry], netlink: Netlink, write: Write, log: logging.LoggerAdapter[logging.Logger]) -> None:
    """Take our labels from the interfaces, write the reference's rules, and remove our rules.

    Without a label a running daemon does not take what goes for damage, and its DEL looks for the reference's rules.

    Args:
        planned: entries whose attachment is known.
        netlink: a socket of nf_tables in the namespace that the calling thread is in.
        write: writes rules as the reference does.
        log: for what cannot be seen of the reference's.

    Raises:
        OSError: the kernel refuses.
        PluginError: iptables(8) fails.
    """
    known = [(one.attachment, one) for one in planned if one.attachment is not None]
    reference = Reference(netlink, log)
    alive = [(whose, one) for whose, one in known if not one.ended]
    attachments = dict.fromkeys(whose for whose, _ in alive)
    with Netlink() as route:
        links = Links(route)
        for whose in attachments:
            link = links.get(whose.host_veth)
            if link is not None and link.alias == whose.label:
                links.clear_alias(link)
        write([(whose, one.address) for whose, one in alive if not reference.covers(whose, one.element.address)])
        for whose in attachments:
            if links.get(whose.host_veth) is None:  # it ended meanwhile, and who ended it knew nothing of these rules
                reference.end(whose, list)
    elements = {one.element for _, one in known}
    masquerade = Masquerade(netlink)
    masquerade.discard(lambda present: [one for one in present if one in elements])
    masquerade.prune()
