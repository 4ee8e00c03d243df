"""What the verbs of one plugin with veth pairs share.

Owns: the plugin's IPAM, reaper, nf_tables sockets, log, and what its networks need, created once.
Refuses: state of containers: that is in the kernel and in the address folders.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from nodeplug import CniGc, CniRequest, PluginError
from nodeplug_net.attachment import Attachment, network_label, of_label
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.needs import Networks
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.netlink.routes import Interface
from nodeplug_net.nftables.masquerade import Element, Masquerade, Masquerading
from nodeplug_net.nftables.sockets import NftSockets, open_nft
from nodeplug_net.nftables.spoof_check import SpoofCheck
from nodeplug_net.reference.traces import Reference


class MasqueradedConfig(Protocol):
    """What is read of the configuration of a network to know whom to masquerade."""

    @property
    def ipam(self) -> str:
        """The IPAM plugin, or empty."""

    @property
    def masquerading(self) -> Masquerading:
        """What is masqueraded, if anything is."""


@dataclass(frozen=True, slots=True)
class Dataplane:
    """The shared parts. Any thread may use them."""

    addressing: Addressing
    reaper: Reaper
    nft: NftSockets
    log: logging.LoggerAdapter[logging.Logger]
    networks: Networks

    def leased(self, request: CniRequest, ipam: str, links: Links) -> list[tuple[str, Interface]]:
        """List the addresses of a network's attachments whose host end exists, by label.

        Args:
            request: any of that network.
            ipam: its IPAM plugin, or empty.
            links: of the host namespace.
        """
        labels = {link.alias for link in ends_of(request.network, links)} if ipam else ()
        return [one for one in self.addressing.leases(request, ipam) if one[0] in labels] if labels else []

    def masqueraded(self, request: CniRequest, config: MasqueradedConfig, links: Links) -> list[Element]:
        """List the addresses of those attachments that should be masqueraded."""
        asked = config.masquerading
        leases = self.leased(request, config.ipam, links) if asked.versions else []
        return [element for label, address in leases for element in asked.elements([address], label)]

    def mend_masquerade(self, request: CniRequest, config: MasqueradedConfig, links: Links) -> None:
        """Restore the rules of a network's subnets, with all of its addresses, if any is missing.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the rules.
        """
        expected = self.masqueraded(request, config, links)
        if not expected:
            return
        with self.masquerade(request) as masquerade:
            networks = {one.network for one in expected}
            strict = config.masquerading.strict_in(networks)
            lost = masquerade.lacking(networks, strict)
            if lost:
                what = "masquerades its containers, or drops what belongs to no connection"
                text = ", ".join(map(str, lost))
                self.log.warning("subnet %s lost the rule that %s; the rule is restored", text, what)
                masquerade.mend(expected, strict=strict)

    def tidy_masquerade(self, request: CniGc, config: MasqueradedConfig) -> None:
        """Restore what others removed of a network's rules and addresses, and remove unused subnets.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the rules.
        """
        with Netlink() as netlink:
            expected = self.masqueraded(request, config, Links(netlink))
        with self.masquerade(request) as masquerade:
            if expected:
                masquerade.mend(expected, strict=config.masquerading.strict_in({one.network for one in expected}))
            masquerade.prune()

    @contextmanager
    def masquerade(self, request: CniRequest) -> Iterator[Masquerade]:
        """Open the masqueraded addresses of the request's host namespace, which the calling thread is in."""
        with self.nft.lent(request.host_netns) as netlink:
            yield Masquerade(netlink)

    @contextmanager
    def reference(self, request: CniRequest) -> Iterator[Reference]:
        """Open what the reference's plugins wrote into the request's host namespace, where the calling thread is."""
        with self.nft.lent(request.host_netns) as netlink:
            yield Reference(netlink, self.log)

    def end_rules(self, request: CniRequest, attachment: Attachment) -> None:
        """End masquerading and the check of the MAC of an attachment, in one transaction.

        Do so while the attachment has its address: later the next holder could come between check and removal.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the rules.
        """
        with self.nft.lent(request.host_netns) as netlink:
            masquerade, spoof = Masquerade(netlink), SpoofCheck(netlink)
            if not masquerade.remove(masquerade.owned(attachment.label), spoof.removal(attachment)):
                spoof.remove(attachment)

    def tidy(self) -> None:
        """Remove rules of this thread's namespace that nobody needs; what stays does no harm.

        An address whose interface is gone was ended by somebody who does not know our table: the reference's plugins.
        """
        try:
            with open_nft() as nft:
                masquerade = Masquerade(nft)
                masquerade.discard(_ended)
                masquerade.prune()
                SpoofCheck(nft).sweep(names_of_links)
        except (OSError, PluginError) as error:
            self.log.warning("unused rules stay: %s", error)


def ends_of(network: str, links: Links) -> list[Link]:
    """List the host ends of a network's attachments, by their label."""
    label = network_label(network)
    return [link for link in links.all() if link.alias.startswith(label)]


def names_of_links() -> frozenset[str]:
    """List the names of the interfaces in the calling thread's namespace."""
    with Netlink() as netlink:
        return frozenset(link.name for link in Links(netlink).all())


def _ended(entries: list[Element]) -> list[Element]:
    """Return those whose interface is gone; each is masqueraded later than it is made, and ended later."""
    with Netlink() as netlink:
        present = Links(netlink).all()
    names, labels = {link.name for link in present}, {link.alias for link in present}
    known = [(one, of_label(one.label)) for one in entries if one.label not in labels]
    return [one for one, whose in known if whose is not None and whose.host_veth not in names]
