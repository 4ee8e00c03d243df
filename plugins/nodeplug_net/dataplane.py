"""What the verbs of one plugin with veth pairs share.

Owns: the plugin's IPAM, reaper, nf_tables sockets, log, and what its networks need, created once.
Refuses: state of containers: that is in the kernel and in the address folders.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from nodeplug import CniRequest, PluginError
from nodeplug_net.attachment import Attachment, of_label
from nodeplug_net.bridge.config import BridgeConfig
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.needs import Networks
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.nftables.masquerade import EVERYWHERE, Element, Masquerade
from nodeplug_net.nftables.sockets import NftSockets, open_nft
from nodeplug_net.nftables.spoof_check import SpoofCheck
from nodeplug_net.reference.traces import Reference


@dataclass(frozen=True, slots=True)
class Dataplane:
    """The shared parts. Any thread may use them."""

    addressing: Addressing
    reaper: Reaper
    nft: NftSockets
    log: logging.LoggerAdapter[logging.Logger]
    networks: Networks

    def attached(self, request: CniRequest, config: BridgeConfig, links: Links) -> list[Element]:
        """List the addresses of a network that should be masqueraded: those of attachments whose port exists.

        Args:
            request: any of that network.
            config: its configuration.
            links: of the host namespace.
        """
        bridge = links.get(config.bridge)
        if bridge is None or not config.ipam:
            return []
        found = self.leased(request, config.ipam, links.ports(bridge))
        found = [one for one in found if one.network.version in config.masqueraded]
        if not config.masq_same_subnet:
            return found
        return [replace(one, network=EVERYWHERE[one.network.version == 6]) for one in found]

    def leased(self, request: CniRequest, ipam: str, present: Iterable[Link]) -> list[Element]:
        """List the addresses of a network whose attachments have one of these links."""
        labels = {link.alias for link in present}
        leases = self.addressing.leases(request, ipam)
        return [Element(address.network, address.packed, label) for label, address in leases if label in labels]

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
