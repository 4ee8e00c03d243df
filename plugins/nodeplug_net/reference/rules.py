"""What the reference's plugins (containernetworking/plugins) write into the kernel for a container: their names for it.

Owns: those names: hashes and comments of ipmasq_iptables_linux.go and ipmasq_nftables_linux.go; whose a rule is.
Refuses: reading and removing: `nft` and `iptables` do that, for the two ways in which
iptables(8) keeps rules.

With iptables, a container has a chain `CNI-<hash of network and container>` in table `nat`, and per address a rule in
POSTROUTING that jumps there; the interface's name is in neither. With nftables, table `inet cni_plugins_masquerade` has
a rule per address, whose comment begins with `<hash of the network>-<hash of interface and container>`.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from nodeplug_net.attachment import Attachment
from nodeplug_net.nftables.encoding import Network

_CHAIN_LENGTH: Final = 28
_COMMENT: Final = re.compile(r'name: "(?P<network>.*)" id: "(?P<container>.*)"')
_INSTANCE: Final = re.compile(r"(?P<network>[0-9a-f]{16})-[0-9a-f]{16}(?=,|$)")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule that masquerades for a container.

    Attributes:
        source: whose packets it is about: one address, or with Debian's plugins of old the container's subnet.
        comment: as the reference wrote it.
        chain: the container's chain, where the rule jumps; empty for a rule of the table for nftables.
        version: of IP, in which iptables(8) keeps two tables; 0 for the table for nftables, which has both.
        handle: the kernel's number of it; 0 for a rule of ip_tables, which has none.
    """

    source: Network
    comment: str
    chain: str
    version: int
    handle: int = 0

    def is_of(self, attachment: Attachment) -> bool:
        """Whether it was written for an attachment; one with a chain may be for another interface of the container."""
        if self.chain:
            return self.chain == chain_of(attachment)
        return self.comment.startswith(instance_of(attachment))

    def is_in(self, network: str) -> bool:
        """Whether it was written for a container of a network."""
        if self.chain:
            found = _COMMENT.fullmatch(self.comment)
            return found is not None and found["network"] == network
        instance = _INSTANCE.match(self.comment)
        return instance is not None and instance["network"] == network_of(network)


def network_of(network: str) -> str:
    """Return what the comments of a network's rules begin with (hashForNetwork)."""
    return _digest(network, 16)


def chain_of(attachment: Attachment) -> str:
    """Return the name of a container's chain (utils.FormatChainName)."""
    return f"CNI-{_digest(attachment.network + attachment.container_id, _CHAIN_LENGTH)}"[:_CHAIN_LENGTH]


def instance_of(attachment: Attachment) -> str:
    """Return what the comments of an attachment's rules begin with (hashForInstance)."""
    return f"{network_of(attachment.network)}-{_digest(f'{attachment.ifname}:{attachment.container_id}', 16)}"


def comment_of(attachment: Attachment) -> str:
    """Return the comment of an attachment's rules for nftables (commentForInstance)."""
    text = (
        f"{instance_of(attachment)}, net: {attachment.network}, if: {attachment.ifname}, id: {attachment.container_id}"
    )
    return text.replace('"', "")[:127]  # 128 there; with the final NUL nft(8) prints no more than this


def iptables_comment_of(attachment: Attachment) -> str:
    """Return the comment of a container's rules for iptables (utils.FormatComment)."""
    return f'name: "{attachment.network}" id: "{attachment.container_id}"'


def to_remove(
    found: Sequence[Rule], attachment: Attachment, others: Callable[[], Iterable[IPv4Address | IPv6Address]]
) -> list[Rule]:
    """Return which rules go with an attachment: all of it, but for those of other interfaces of the same container.

    Args:
        found: rules of the namespace.
        attachment: the one that ends.
        others: returns the addresses of the container's other attachments to this network; asked if that matters.
    """
    own = [rule for rule in found if rule.is_of(attachment)]
    if not any(rule.chain for rule in own):
        return own
    kept = list(others())
    return [rule for rule in own if not rule.chain or not any(address in rule.source for address in kept)]


def _digest(text: str, length: int) -> str:
    return hashlib.sha512(text.encode("utf-8", "surrogateescape")).hexdigest()[:length]
