"""Who else on a host refuses packets where table `filter` of nf_tables does not help.

Owns: finding the two that the reference's firewall serves and this one does not: firewalld, and ip_tables with rules.
Refuses: other tables of nf_tables: what they drop, the reference's firewall does not accept either.
"""

from collections.abc import Iterable
from typing import Final

from nodeplug import PluginError
from nodeplug_net.firewall.config import FIREWALLD
from nodeplug_net.firewall.table import is_there
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.nftables.encoding import NFPROTO_INET
from nodeplug_net.reference.iptables import list_legacy, versions_in_use

_FORWARDED: Final = "filter_FORWARD"
_HARMLESS: Final = ["-P FORWARD ACCEPT"]


def refuse_obstacles(netlink: Netlink, backend: str, versions: Iterable[int]) -> None:
    """Refuse a host whose rules would drop what is accepted.

    Args:
        netlink: a socket of nf_tables in the namespace that the calling thread is in.
        backend: as configured; with `iptables` firewalld is the administrator's affair, as with the reference.
        versions: of IP.

    Raises:
        PluginError: there is one; the message says what to do.
        TryAgain: iptables(8) fails, as while another program holds its lock.
        OSError: the kernel refuses.
    """
    if backend != "iptables" and is_there(netlink, NFPROTO_INET, FIREWALLD, _FORWARDED):
        raise PluginError(
            "firewalld has rules here (table inet firewalld), and nodeplug cannot tell it what to accept; set "
            '"backend": "iptables" if its zones accept the containers, or go on with the reference\'s firewall'
        )
    for version in sorted({*versions} & {*versions_in_use("filter")}):
        rules = list_legacy(version, "filter", "FORWARD")
        if rules != _HARMLESS:
            raise PluginError(
                f"ip_tables has {len(rules)} rules in chain FORWARD of table filter (IPv{version}), which nodeplug "
                "does not write; let iptables be iptables-nft on this node, or go on with the reference's firewall"
            )
