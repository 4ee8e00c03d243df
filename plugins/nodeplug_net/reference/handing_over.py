"""What nodeplug's plugins keep for running containers becomes the reference's: all kinds of it.

Owns: what there is to hand over, the order of it, and what is told about each part.
Refuses: the rules of each kind: `way_back` (masquerading), `ports_back` and `firewall_back`. Links, addresses, shaping,
sysctls and their files need nothing: they are the same for both.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from nodeplug import PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.firewall.containers import RECORDS as ACCEPTED
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.nftables.masquerade import Masquerade
from nodeplug_net.portmap.host_ports import RECORDS as PORTS
from nodeplug_net.reference import firewall_back, iptables, nft, ports_back, way_back
from nodeplug_net.reference.recorded import Node, Recorded

MASQUERADING: Final = "masquerading"
PORT: Final = "host port"
FIREWALL: Final = "firewall"


@dataclass(frozen=True, slots=True)
class Part:
    """One address that is masqueraded or accepted, or one port of the host.

    Attributes:
        kind: `MASQUERADING`, `PORT` or `FIREWALL`.
        label: of the attachment.
        attachment: whose it is; None if nobody knows.
        address: of the container.
        port: of the host; empty for the other kinds.
        ended: whether the container is gone.
    """

    kind: str
    label: str
    attachment: Attachment | None
    address: str
    port: str
    ended: bool

    def told(self, *, applied: bool) -> dict[str, Any]:
        """Return it for programs."""
        whose = self.attachment
        return {
            "kind": self.kind,
            "network": whose.network if whose else "",
            "container_id": whose.container_id if whose else "",
            "ifname": whose.ifname if whose else "",
            "address": self.address,
            "port": self.port,
            "ended": self.ended,
            "handed_over": applied and whose is not None and not self.ended,
        }


class HandingOver:
    """What is to be handed over in the namespace that the calling thread is in.

    Args:
        netlink: a socket of nf_tables in that namespace.
        node: where to look.

    Raises:
        PluginError: some namespace cannot be seen.
        OSError: the kernel refuses.
    """

    def __init__(self, netlink: Netlink, node: Node) -> None:
        self._netlink, self._node = netlink, node
        self._masqueraded = way_back.entries(Masquerade(netlink), node)
        self._ports = ports_back.entries(node)
        self._accepted = firewall_back.entries(node)

    def parts(self) -> list[Part]:
        """List all of it."""
        masqueraded = (
            Part(MASQUERADING, one.element.label, one.attachment, str(one.address), "", one.ended)
            for one in self._masqueraded
        )
        return [*masqueraded, *_of_ports(self._ports), *_of_firewall(self._accepted)]

    def apply(self, backend: str, log: logging.LoggerAdapter[logging.Logger]) -> list[str]:
        """Do it: the reference's rules come before ours go. May be ended and repeated at any moment.

        Until it is through, whoever ends an attachment is to end both.

        Args:
            backend: `iptables` or `nftables`, for masquerading and host ports.
            log: for what cannot be seen of the reference's.

        Returns:
            the labels of attachments whose ports or rules nobody recorded, and which stay with nodeplug.

        Raises:
            PluginError: iptables(8) or nft(8) fails; what was done before stays.
            OSError: the kernel refuses.
        """
        write: way_back.Write = partial(nft.write, self._netlink) if backend == "nftables" else iptables.write
        with self._node.leaving(PORTS, ACCEPTED):
            ports_back.apply(self._ports, self._netlink, backend, log)
            firewall_back.apply(self._accepted, self._netlink)
            way_back.apply(self._masqueraded, self._netlink, write, log)
            found = ports_back.strays(self._netlink, self._node, self._ports, log)
            return [*found, *firewall_back.strays(self._netlink, self._node, self._accepted)]


def refuse_unknown(parts: Iterable[Part], strays: Sequence[str], node: Node) -> None:
    """Raise PluginError if nobody knows whose something is, or what is to become of it: it stays with nodeplug."""
    if strays:
        raise PluginError(
            f"{len(strays)} attachments stay with nodeplug, such as {strays[0]!r}: nothing below {node.run} says what "
            "they asked for; name the daemon's folder with --run-dir, or end those containers"
        )
    unknown = [one for one in parts if one.attachment is None]
    if unknown:
        raise PluginError(
            f"{len(unknown)} addresses stay with nodeplug, such as {unknown[0].address} of {unknown[0].label!r}: no "
            f"file below {node.addresses} says whose they are; name the folder with --data-dir, or end those containers"
        )


def _of_ports(found: Iterable[ports_back.Entry]) -> Iterator[Part]:
    for one in found:
        for forward in one.record.wanted.mappings().forwards:
            yield _part(PORT, one, str(forward.target), forward.name)


def _of_firewall(found: Iterable[firewall_back.Entry]) -> Iterator[Part]:
    return (_part(FIREWALL, one, str(address)) for one in found for address in one.record.wanted.addresses)


def _part(kind: str, one: Recorded[Any], address: str, port: str = "") -> Part:
    return Part(kind, one.record.label, one.attachment, address, port, one.ended)
