"""What nodeplug's firewall accepts becomes what the reference's accepts, so that it can end it.

Owns: the reference's rules for a container's addresses (firewall/iptables.go), written by iptables(8) as it does, and
the order: its rules are there before ours go, and the record goes between them, as the daemon restores what it knows.
Refuses: the isolation of bridges, whose rules are the same for both.

It may be ended and repeated at any moment: packets that two rules accept are accepted.
"""

from collections.abc import Iterator, Sequence

from nodeplug_net.firewall.config import FORWARD, OWN, Wanted
from nodeplug_net.firewall.containers import RECORDS
from nodeplug_net.firewall.messages import TABLE
from nodeplug_net.firewall.table import FilterTable
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.reference.firewall_iptables import accept
from nodeplug_net.reference.iptables import list_chosen, restore_chosen
from nodeplug_net.reference.recorded import Node, Recorded

Entry = Recorded[Wanted]


def entries(node: Node) -> list[Entry]:
    """List the attachments whose packets are accepted.

    Raises:
        PluginError: some namespace cannot be seen.
        OSError: the kernel refuses.
    """
    return list(node.recorded(RECORDS, Wanted.decode, lambda wanted: iter(wanted.addresses)))


def apply(planned: Sequence[Entry], netlink: Netlink) -> None:
    """Write the reference's rules for containers that are there, and remove ours.

    Args:
        planned: those whose attachment is known count.
        netlink: a socket of nf_tables in the namespace that the calling thread is in.

    Raises:
        OSError: the kernel refuses.
        PluginError: iptables(8) fails.
    """
    known = [one for one in planned if one.attachment is not None]
    alive = [one.record.wanted for one in known if not one.ended]
    for version in (4, 6):
        mine = [wanted for wanted in alive if version in wanted.versions]
        lines = list(_lines(version, mine, list_chosen(version, TABLE))) if mine else []
        if lines:
            restore_chosen(version, TABLE, list(dict.fromkeys(lines)))
    for one in known:
        one.forget()
    FilterTable(netlink).remove(*(one.record.label for one in known))


def strays(netlink: Netlink, node: Node, planned: Sequence[Entry]) -> list[str]:
    """List the attachments with rules of ours that nobody recorded; remove what a call left that was interrupted.

    Raises:
        OSError: the kernel refuses.
        PluginError: others keep changing the table.
    """
    table = FilterTable(netlink)
    found = sorted(table.labels(node.prefix) - {one.record.label for one in planned})
    done = [label for label in found if table.is_doubled(label)]
    table.remove(*done)
    return [label for label in found if label not in done]


def _lines(version: int, wanted: Sequence[Wanted], present: Sequence[str]) -> Iterator[str]:
    """Compose what is missing among the lines of `iptables -S` (setupChains, addRules)."""
    chains = dict.fromkeys([OWN, *(one.admin for one in wanted)])
    yield from (f":{chain} - [0:0]" for chain in chains if f"-N {chain}" not in present)
    jumps = [(FORWARD, OWN, "rules"), *((OWN, one.admin, "admin overrides") for one in wanted)]
    for chain, goal, what in jumps:
        if not any(line.startswith(f"-A {chain} ") and line.endswith(f" -j {goal}") for line in present):
            yield f'-I {chain} 1 -m comment --comment "CNI firewall plugin {what}" -j {goal}'
    for address in (address for one in wanted for address in one.addresses if address.version == version):
        yield from (rule for rule in accept(address) if rule not in present)
