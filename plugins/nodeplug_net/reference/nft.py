"""The rules of the reference's plugins in nf_tables: those of iptables-nft(8), and those of its own nftables backend.

Owns: listing and removing them over one socket, whatever wrote them, and writing them for a container that is ours.
Refuses: whose they are (`rules`), and rules that ip_tables has (`iptables`).
"""

import errno
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from nodeplug import PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink.connection import Netlink, failure
from nodeplug_net.netlink.routes import Interface
from nodeplug_net.nftables.encoding import NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6
from nodeplug_net.nftables.transactions import commit, dump, generation_of
from nodeplug_net.reference import messages as reference
from nodeplug_net.reference.rules import Rule, comment_of

_ATTEMPTS: Final = 50
_OTHERS: Final = frozenset({errno.ERESTART, errno.ENOENT, errno.EBUSY})
"""What a transaction is refused with if another program changed the rules in between."""
_FAMILIES: Final = {4: NFPROTO_IPV4, 6: NFPROTO_IPV6, 0: NFPROTO_INET}
_PLACES: Final = {
    4: (reference.NAT, reference.POSTROUTING),
    6: (reference.NAT, reference.POSTROUTING),
    0: (reference.TABLE, reference.CHECKS),
}
"""Table and chain, by the version of a rule."""


class ReferenceNft:
    """The reference's rules of one namespace.

    Args:
        netlink: a socket of nf_tables in that namespace.
    """

    __slots__ = ("_netlink",)

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink

    def rules(self, needles: Sequence[bytes] = (b"",)) -> list[Rule]:
        """List the rules of containers; none without the tables.

        Args:
            needles: bytes of which a rule contains one; searching is ten times faster than reading them all.

        Raises:
            OSError: the kernel refuses.
        """
        return [rule for version in _PLACES for rule in self._listed(version, needles)]

    def _listed(self, version: int, needles: Sequence[bytes]) -> Iterator[Rule]:
        table, chain = _PLACES[version]
        messages = dump(
            self._netlink,
            lambda: reference.dump_rules(_FAMILIES[version], table, chain),
            f"list the rules of chain {chain} of table {table}",
        )
        wanted = (message for message in messages if any(needle in message for needle in needles))
        for read in map(reference.parse_rule, wanted):
            if read.source is not None and (not version or read.jump.startswith("CNI-")):
                yield Rule(read.source, read.comment, read.jump if version else "", version, read.handle)

    def remove(self, rules: Sequence[Rule]) -> None:
        """Remove rules, and the chains to which no other rule jumps afterwards; succeed for what is gone.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the rules.
        """
        for _ in range(_ATTEMPTS if rules else 0):
            generation = generation_of(self._netlink)
            present = self.rules()
            doomed = [rule for rule in present if rule in rules]
            kept = {(rule.version, rule.chain) for rule in present if rule not in rules}
            chains = dict.fromkeys((rule.version, rule.chain) for rule in doomed if rule.chain)
            messages = [
                reference.delete_rule(_FAMILIES[one.version], *_PLACES[one.version], one.handle) for one in doomed
            ]
            for version, chain in chains:
                if (version, chain) not in kept:
                    messages += reference.delete_chain(_FAMILIES[version], chain)
            refusal = commit(self._netlink, messages, generation) if messages else None
            if refusal is None:
                return
            if refusal.error not in _OTHERS:
                raise failure(f"remove {len(doomed)} rules of the reference's plugins", refusal)
        if rules:
            raise PluginError("the rules of table nat keep changing; is another program writing to it?")


def write(netlink: Netlink, entries: Iterable[tuple[Attachment, Interface]]) -> None:
    """Masquerade addresses as the reference does with nftables (ipmasq_nftables_linux.go), in one transaction.

    Raises:
        OSError: the kernel refuses.
    """
    added = [reference.masquerade(address, comment_of(attachment)) for attachment, address in entries]
    refusal = commit(netlink, [*reference.table(), *added]) if added else None
    if refusal is not None:
        raise failure(f"write {len(added)} rules to table {reference.TABLE}", refusal)
