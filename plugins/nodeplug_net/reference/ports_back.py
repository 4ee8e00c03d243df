"""Host ports that nodeplug forwards become those of the reference's portmap, so that it can end them.

Owns: the order: the reference's rules are there before ours go, and the record goes between them, since the daemon
restores what it knows of.
Refuses: the shape of the reference's rules (`ports_writing`).

It may be ended and repeated at any moment: a port with both kinds of rules leads to the same container.
"""

import logging
from collections.abc import Iterator, Sequence

from nodeplug_net.ipam.ranges import Address
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.portmap.config import Wanted
from nodeplug_net.portmap.host_ports import RECORDS
from nodeplug_net.portmap.table import PortTable
from nodeplug_net.reference import ports_writing
from nodeplug_net.reference.ports import ReferencePorts
from nodeplug_net.reference.recorded import Node, Recorded

Entry = Recorded[Wanted]
Log = logging.LoggerAdapter[logging.Logger]


def entries(node: Node) -> list[Entry]:
    """List the attachments that have host ports.

    Raises:
        PluginError: some namespace cannot be seen.
        OSError: the kernel refuses.
    """
    return list(node.recorded(RECORDS, Wanted.decode, _addresses))


def apply(planned: Sequence[Entry], netlink: Netlink, backend: str, log: Log) -> None:
    """Write the reference's rules for containers that are there, and remove ours.

    Args:
        planned: those whose attachment is known count.
        netlink: a socket of nf_tables in the namespace that the calling thread is in.
        backend: `iptables` or `nftables`.
        log: for what cannot be seen of the reference's.

    Raises:
        InvalidRequest: an attachment has conditions in the words of the other backend.
        OSError: the kernel refuses.
        PluginError: iptables(8) or nft(8) fails.
    """
    reference, table = ReferencePorts(netlink, log), PortTable(netlink)
    alive = [(one.attachment, one.record.wanted) for one in planned if one.attachment is not None and not one.ended]
    writing = ports_writing.writer(backend, alive)
    for attachment, wanted in alive:
        reference.end(attachment, [target.ip for target in wanted.targets])  # of a call that was interrupted
    writing()
    for one in planned:
        if one.attachment is not None:
            one.forget()
            table.remove(one.record.label)
    table.prune()


def strays(netlink: Netlink, node: Node, planned: Sequence[Entry], log: Log) -> list[str]:
    """List the attachments with ports of ours that nobody recorded; remove what a call left that was interrupted.

    Raises:
        OSError: the kernel refuses.
        PluginError: iptables(8) fails.
    """
    table, reference = PortTable(netlink), ReferencePorts(netlink, log)
    found = sorted(table.labels(node.prefix) - {one.record.label for one in planned})
    known = [(label, node.whose(label)) for label in found]
    done = {label for label, whose in known if whose is not None and reference.has(whose)}
    if table.remove(*done):
        table.prune()
    return [label for label in found if label not in done]


def _addresses(wanted: Wanted) -> Iterator[Address]:
    return (target.ip for target in wanted.targets)
