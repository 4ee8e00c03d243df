"""What the reference's plugins left in the kernel for containers that they attached: found and removed.

Owns: one view of all the places where they write rules.
Refuses: links, which look the same whoever made them, and addresses, whose files are shared.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address

from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.reference.iptables import LegacyRules
from nodeplug_net.reference.nft import ReferenceNft
from nodeplug_net.reference.programs import NoProgram
from nodeplug_net.reference.rules import Rule, chain_of, instance_of, network_of, to_remove


class Reference:
    """The rules of the reference's plugins in the namespace that the calling thread is in.

    Args:
        netlink: a socket of nf_tables in that namespace.
        log: where it is said that rules cannot be seen; an attachment ends all the same.
    """

    def __init__(self, netlink: Netlink, log: logging.LoggerAdapter[logging.Logger]) -> None:
        self._nft, self._legacy, self._log = ReferenceNft(netlink), LegacyRules(), log

    def covers(self, attachment: Attachment, address: IPv4Address | IPv6Address) -> bool:
        """Whether an attachment's address is masqueraded by them."""
        return any(rule.is_of(attachment) and address in rule.source for rule in self._of(attachment))

    def end(self, attachment: Attachment, others: Callable[[], Iterable[IPv4Address | IPv6Address]]) -> None:
        """Remove what belongs to an attachment.

        Args:
            attachment: the one that ends.
            others: returns the addresses of the container's other attachments to this network; asked if that matters.

        Raises:
            OSError: the kernel refuses.
            TryAgain: iptables-legacy(8) fails.
        """
        self._remove(to_remove(self._of(attachment), attachment, others))

    def collect(self, network: str, valid: Sequence[Attachment]) -> None:
        """Remove what belongs to attachments of a network that are not valid.

        Raises:
            OSError: the kernel refuses.
            TryAgain: iptables-legacy(8) fails.
        """
        found = [rule for rule in self._found(b"CNI-", network_of(network).encode()) if rule.is_in(network)]
        self._remove([rule for rule in found if not any(rule.is_of(one) for one in valid)])

    def _of(self, attachment: Attachment) -> list[Rule]:
        return self._found(chain_of(attachment).encode(), instance_of(attachment).encode())

    def _found(self, *needles: bytes) -> list[Rule]:
        try:
            older = self._legacy.rules()
        except NoProgram as error:
            self._log.warning("%s", error)
            older = []
        return [*self._nft.rules(needles), *older]

    def _remove(self, rules: list[Rule]) -> None:
        self._nft.remove([rule for rule in rules if rule.handle])
        self._legacy.remove([rule for rule in rules if not rule.handle])
