"""DEL and GC of the bridge.

Owns: which links are those of a bridge's network.
Refuses: the order of the steps (see `teardown`), and the masquerading of those that stay (see `dataplane`).
"""

from nodeplug import CniDel, CniGc
from nodeplug_net.bridge.config import PortConf, parse_bridge
from nodeplug_net.dataplane import Dataplane, names_of_links
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.nftables.spoof_check import SpoofCheck
from nodeplug_net.teardown import collect as collect_attachments
from nodeplug_net.teardown import detach as detach_attachment
from nodeplug_net.undo import Errors


def detach(request: CniDel, plane: Dataplane) -> None:
    """Serve DEL: remove everything that can be removed, then report the first failure.

    Raises:
        PluginError: something is left; the runtime will repeat DEL.
        OSError: the kernel refuses.
    """

    def is_theirs(link: Link, links: Links) -> bool:
        bridge = links.get(request.parse(PortConf).bridge)
        return bridge is not None and link.master == bridge.index

    detach_attachment(request, plane, is_theirs)


def collect(request: CniGc, plane: Dataplane) -> None:
    """Serve GC: remove links, masquerading and addresses of this network that belong to no valid attachment.

    Masquerading that valid ones have lost is restored.

    Raises:
        PluginError: with every failure; the rest is done.
        OSError: the kernel refuses.
    """

    def ports(links: Links) -> list[Link]:
        bridge = links.get(request.parse(PortConf).bridge)
        return [] if bridge is None else links.ports(bridge)

    errors = Errors()
    with errors.kept():
        collect_attachments(request, plane, ports)
    with errors.kept(), plane.nft.lent(request.host_netns) as netlink:
        if request.valid is not None:
            SpoofCheck(netlink).sweep(names_of_links)
    with errors.kept():
        plane.tidy_masquerade(request, parse_bridge(request))
    errors.raise_all()
