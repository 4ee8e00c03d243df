"""DEL and GC of ptp.

Owns: which links are those of a ptp network.
Refuses: the order of the steps (see `teardown`), and the masquerading of those that stay (see `dataplane`).
"""

from nodeplug import CniDel, CniGc
from nodeplug_net.dataplane import Dataplane, ends_of
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.ptp.config import parse_ptp
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
        return ends_of(request.network, links) + theirs

    errors = Errors()
    with errors.kept():
        collect_attachments(request, plane, ends)
    with errors.kept():
        plane.tidy_masquerade(request, parse_ptp(request))
    errors.raise_all()
