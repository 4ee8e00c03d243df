"""What nodeplug masquerades becomes what the reference's plugins masquerade, so that they can end it.

Owns: whose our entries are, writing the reference's rules for them before ours go, and taking our label from the
interfaces, so that whoever ends a container looks for the reference's rules.
Refuses: everything else: interfaces, addresses and their files are the same for both.

It may be ended and repeated at any moment: an address with both kinds of rules is masqueraded all the same.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path

from nodeplug_net.attachment import OURS, Attachment, network_label, of_label
from nodeplug_net.ipam.store import parse_address, parse_owner
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Interface, Links
from nodeplug_net.nftables.masquerade import Element, Masquerade
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


def entries(masquerade: Masquerade, addresses: Path, network: str = "") -> list[Entry]:
    """List what nodeplug masquerades in a namespace.

    Args:
        masquerade: of that namespace.
        addresses: where host-local keeps its files; names that labels shorten are found there.
        network: the name of one; all by default.

    Raises:
        OSError: the kernel refuses.
    """
    found = masquerade.entries(network_label(network) if network else OURS)
    found.sort(key=lambda one: (one.label, one.network.version, one.key))
    named = _named(addresses) if any(of_label(one.label) is None for one in found) else {}
    known = [(one, of_label(one.label) or named.get(one.label)) for one in found]
    present = _names()
    return [Entry(one, whose, whose is not None and whose.host_veth not in present) for one, whose in known]


def apply(planned: Iterable[Entry], netlink: Netlink, write: Write, log: logging.LoggerAdapter[logging.Logger]) -> None:
    """Write the reference's rules, remove ours, and take our labels from the interfaces.

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
    write([(whose, one.address) for whose, one in alive if not reference.covers(whose, one.element.address)])
    elements = {one.element for _, one in known}
    masquerade = Masquerade(netlink)
    masquerade.discard(lambda present: [one for one in present if one in elements])
    masquerade.prune()
    with Netlink() as route:
        links = Links(route)
        for whose in dict.fromkeys(whose for whose, _ in alive):
            link = links.get(whose.host_veth)
            if link is None:  # it ended meanwhile, and who ended it knew nothing of these rules
                reference.end(whose, list)
            elif link.alias == whose.label:
                links.clear_alias(link)


def _names() -> set[str]:
    with Netlink() as netlink:
        return {link.name for link in Links(netlink).all()}


def _named(addresses: Path) -> Mapping[str, Attachment]:
    return {one.label: one for one in _owners(addresses)}


def _owners(addresses: Path) -> Iterator[Attachment]:
    for file in addresses.glob("*/*"):
        if parse_address(file.name) is not None:
            with suppress(OSError):  # released meanwhile, or a folder
                yield Attachment(file.parent.name, *parse_owner(file.read_text(errors="replace")))
