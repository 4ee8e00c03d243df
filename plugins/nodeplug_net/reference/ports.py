"""Host ports that the reference's portmap made for a container: found, removed, and accepted by CHECK.

Owns: its names for them (portmap_iptables.go, portmap_nftables.go), in the tables of iptables-nft(8) and in its own.
Refuses: ports of containers that are ours, and rules that ip_tables has (`reference_ports_iptables`).

With iptables a container has a chain `CNI-DN-<hash of network and container>` in table `nat`, where rules of
`CNI-HOSTPORT-DNAT` jump. With nftables the tables `ip cni_hostport` and `ip6 cni_hostport` have a rule per port, whose
comment is the container's id alone: a container's rules for another network are told apart by the address.
"""

import errno
import hashlib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from nodeplug import PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink.connection import Netlink, failure
from nodeplug_net.nftables.encoding import NFPROTO_IPV4, NFPROTO_IPV6
from nodeplug_net.nftables.transactions import commit, dump, generation_of
from nodeplug_net.portmap.config import Forward
from nodeplug_net.reference import messages as reference
from nodeplug_net.reference.ports_iptables import LegacyPorts
from nodeplug_net.reference.programs import NoProgram

Address = IPv4Address | IPv6Address
_ATTEMPTS: Final = 50
_CHANGED: Final = frozenset({errno.ERESTART, errno.ENOENT, errno.EBUSY})
"""What a transaction is refused with if another program changed the rules in between."""
_FAMILIES: Final = {4: NFPROTO_IPV4, 6: NFPROTO_IPV6}
_TABLE: Final = "cni_hostport"
_CHAINS: Final = ("hostports", "hostip_hostports", "masquerading")
_PARENTS: Final = ("CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SNAT")
"""The second is that of old releases."""
_HASH_LENGTH: Final = 21
_COMMENT: Final = re.compile(r'dnat name: "(?P<network>.*)" id: "(?P<container>.*)"')


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the reference's, in nf_tables.

    Attributes:
        version: of IP, which has a table of its own.
        jump: the container's chain where it jumps; empty for a rule of the reference's own table.
        message: as the kernel lists it.
    """

    version: int
    table: str
    chain: str
    handle: int
    comment: str
    jump: str
    message: bytes

    def is_of(self, attachment: Attachment, addresses: Collection[Address]) -> bool:
        """Whether it was made for an attachment; without addresses, for any of its container's."""
        if self.jump:
            return self.jump in chains_of(attachment)
        own = self.comment == attachment.container_id
        return own and (not addresses or any(address.packed in self.message for address in addresses))


def chains_of(attachment: Attachment) -> tuple[str, str]:
    """Return the names of a container's chains (utils.FormatChainName with a prefix)."""
    text = (attachment.network + attachment.container_id).encode("utf-8", "surrogateescape")
    digest = hashlib.sha512(text).hexdigest()[:_HASH_LENGTH]
    return f"CNI-DN-{digest}", f"CNI-SN-{digest}"


def is_lost(comment: str, network: str, valid: Collection[str]) -> bool:
    """Whether the comment of a rule of iptables(8) names a container of a network that is not valid."""
    found = _COMMENT.fullmatch(comment)
    return found is not None and found["network"] == network and found["container"] not in valid


class ReferencePorts:
    """The reference's host ports in the namespace that the calling thread is in.

    Args:
        netlink: a socket of nf_tables in that namespace.
        log: where it is said that rules cannot be seen; an attachment ends all the same.
    """

    def __init__(self, netlink: Netlink, log: logging.LoggerAdapter[logging.Logger]) -> None:
        self._netlink, self._legacy, self._log = netlink, LegacyPorts(), log

    def end(self, attachment: Attachment, addresses: Collection[Address]) -> None:
        """Remove what belongs to an attachment.

        Args:
            attachment: the one that ends.
            addresses: of the attachment; empty if they are not known.

        Raises:
            OSError: the kernel refuses.
            TryAgain: iptables-legacy(8) fails.
        """
        self._remove(lambda rule: rule.is_of(attachment, addresses))
        names = chains_of(attachment)
        self._end_legacy(lambda chain, _: chain in names)

    def collect(self, network: str, valid: Collection[str]) -> None:
        """Remove what iptables has for containers of a network that are not valid; the other table names no network.

        Raises:
            OSError: the kernel refuses.
            TryAgain: iptables-legacy(8) fails.
        """
        self._remove(lambda rule: bool(rule.jump) and is_lost(rule.comment, network, valid))
        self._end_legacy(lambda _, comment: is_lost(comment, network, valid))

    def covers(self, attachment: Attachment, forward: Forward) -> bool:
        """Whether the reference forwards a port of an attachment.

        Raises:
            OSError: the kernel refuses.
            TryAgain: iptables-legacy(8) fails.
        """
        port = forward.host_port.to_bytes(2, "big")
        own = [one for one in self._rules() if one.version == forward.version and one.is_of(attachment, ())]
        target = forward.target.packed
        for rule in own:
            if not rule.jump and target in rule.message and port in rule.message:
                return True
            if rule.jump and any(target in one for one in self._listed(forward.version, reference.NAT, rule.jump)):
                return True
        try:
            return self._legacy.leads_to(chains_of(attachment)[0], forward)
        except NoProgram:
            return False

    def has(self, attachment: Attachment) -> bool:
        """Whether there is any rule of an attachment's container.

        Raises:
            OSError: the kernel refuses.
            TryAgain: iptables-legacy(8) fails.
        """
        try:
            older = self._legacy.has(chains_of(attachment))
        except NoProgram:
            older = False
        return older or any(rule.is_of(attachment, ()) for rule in self._rules())

    def _end_legacy(self, chosen: Callable[[str, str], bool]) -> None:
        try:
            self._legacy.remove(chosen)
        except NoProgram as error:
            self._log.warning("%s", error)

    def _listed(self, version: int, table: str, chain: str) -> list[bytes]:
        return dump(
            self._netlink,
            lambda: reference.dump_rules(_FAMILIES[version], table, chain),
            f"list the rules of chain {chain} of table {table}",
        )

    def _rules(self) -> list[Rule]:
        places = [(reference.NAT, chain) for chain in _PARENTS] + [(_TABLE, chain) for chain in _CHAINS]
        found = []
        for version in _FAMILIES:
            for table, chain in places:
                for message in self._listed(version, table, chain):
                    read = reference.parse_rule(message)
                    jump = read.jump if table == reference.NAT else ""
                    if table == _TABLE or jump.startswith(("CNI-DN-", "CNI-SN-")):
                        found.append(Rule(version, table, chain, read.handle, read.comment, jump, message))
        return found

    def _remove(self, chosen: Callable[[Rule], bool]) -> None:
        """Remove rules, and the chains where they jump; succeed for what is gone.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the rules.
        """
        for _ in range(_ATTEMPTS):
            generation = generation_of(self._netlink)
            messages = _deletions([rule for rule in self._rules() if chosen(rule)])
            refusal = commit(self._netlink, messages, generation) if messages else None
            if refusal is None:
                return
            if refusal.error not in _CHANGED:
                raise failure("remove host ports of the reference's plugins", refusal)
        raise PluginError("the rules of table nat keep changing; is another program writing to it?")


def _deletions(doomed: Sequence[Rule]) -> list[bytearray]:
    rules = [reference.delete_rule(_FAMILIES[one.version], one.table, one.chain, one.handle) for one in doomed]
    chains: Iterable[tuple[int, str]] = dict.fromkeys((one.version, one.jump) for one in doomed if one.jump)
    return [*rules, *(part for version, chain in chains for part in reference.delete_chain(_FAMILIES[version], chain))]
