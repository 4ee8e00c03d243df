"""DEL and GC of ptp.

Owns: which links are those of a ptp network, and the masquerading of those that stay.
Refuses: the order of the steps (see `teardown`).
"""

from nodeplug import CniDel, CniGc
from nodeplug_net.dataplane import Dataplane
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.ptp.config import parse_ptp
from nodeplug_net.ptp.host import links_of
from nodeplug_net.teardown import collect as collect_attachments
from nodeplug_net.teardown import detach as detach_attachment
from nodeplug_net.undo import Errors


def detach(request: CniDel, plane: Dataplane) -> None:
    """Serve DEL: remove everything that can be removed, then report the first failure.

    Raises:
        PluginError: something is left; the runtime will repeat DEL.
        OSError: the kernel refuses.
    """
    detach_attachment(request, plane, lambda link, _: not link.master)


def collect(request: CniGc, plane: Dataplane) -> None:
    """Serve GC: remove links, masquerading and addresses of this network that belong to no valid attachment.

    Masquerading that valid ones have lost is restored.

    Raises:
        PluginError: with every failure; the rest is done.
        OSError: the kernel refuses.
    """

    def ends(links: Links) -> list[Link]:
        """Ours, and all that the reference's plugin could have made."""
        theirs = [link for link in links.all() if link.kind == "veth" and not link.alias and not link.master]
        return links_of(request, links) + theirs

    errors = Errors()
    with errors.kept():
        collect_attachments(request, plane, ends)
    with errors.kept():
        _tidy_masquerade(request, plane)
    errors.raise_all()


def _tidy_masquerade(request: CniGc, plane: Dataplane) -> None:
    """Restore what others removed from the table, and remove unused subnets."""
    config = parse_ptp(request)
    with plane.masquerade(request) as masquerade:
        if config.ip_masq:
            with Netlink() as netlink:
                masquerade.mend(plane.leased(request, config.ipam, links_of(request, Links(netlink))))
        masquerade.prune()
