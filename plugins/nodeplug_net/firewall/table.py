"""Table `filter` of a host, in nf_tables, without executing anything.

Owns: writing, comparing and removing the rules of attachments in one network namespace, for both versions of IP in one
transaction.
Refuses: memory: the kernel is asked each time, so what an administrator flushed is noticed, and restored from what the
caller knows. Every rule of an attachment carries its label; DEL removes only what carries its own.
"""

import errno
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

from nodeplug import PluginError
from nodeplug_net.firewall.config import OWN, STAGE_1, STAGE_2, Address
from nodeplug_net.firewall.messages import FAMILY, TABLE, Rule, accept, parse_rule, structure
from nodeplug_net.firewall.rules import CHAINS, Entry, bridge_of, chains_of, missing
from nodeplug_net.netlink.connection import Netlink, failure
from nodeplug_net.nftables.transactions import commit, dump, generation_of
from nodeplug_net.reference.messages import delete_rule, dump_rules

_ATTEMPTS: Final = 50
_CHANGED: Final = frozenset({errno.ERESTART, errno.ENOENT, errno.EBUSY})
"""What a transaction is refused with if another program changed the rules in between."""


class FilterTable:
    """Table `filter` of one namespace.

    Args:
        netlink: a socket of nf_tables in that namespace.
    """

    __slots__ = ("_netlink",)

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink

    def add(self, entry: Entry) -> None:
        """Accept the packets of an attachment, in one transaction; what it had before is replaced.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """

        def composed() -> list[bytearray]:
            wanted = {(rule.version, rule.parts) for version in FAMILY for rule in entry.rules(version)}
            own = [rule for rule in self.owned(entry.label) if (rule.version, rule.parts) not in wanted]
            return [*map(_deletion, own), *self._additions([entry])]

        self._change(composed, f"accept packets of {entry.label!r}")

    def mend(self, entries: Callable[[], Sequence[Entry]]) -> None:
        """Add what attachments lack, in one transaction.

        Args:
            entries: returns who should have rules; asked anew whenever others change the table meanwhile.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """
        self._change(lambda: self._additions(entries()), "restore the rules of containers")

    def remove(self, *labels: str) -> None:
        """Remove the rules of attachments; succeed for those that have none.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """
        self._change(
            lambda: [_deletion(rule) for label in labels for rule in self.owned(label)],
            "remove the rules of containers",
        )

    def remove_unlabelled(self, addresses: Iterable[Address]) -> None:
        """Remove what the reference wrote for addresses.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """
        theirs = [rule for address in addresses for rule in accept(address, OWN, "")]
        self._change(
            lambda: [_deletion(rule) for version in FAMILY for rule in self._rules(version, OWN) if rule in theirs],
            "remove the rules of the reference's firewall",
        )

    def sweep(self, kept: Collection[str]) -> None:
        """Remove the isolation of bridges, those excepted that are named.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """

        def composed() -> list[bytearray]:
            rules = (rule for version in FAMILY for chain in (STAGE_1, STAGE_2) for rule in self._rules(version, chain))
            return [_deletion(rule) for rule in rules if bridge_of(rule) not in {"", *kept}]

        self._change(composed, "remove the isolation of bridges that are gone")

    def owned(self, label: str) -> list[Rule]:
        """List the rules of one attachment."""
        return [rule for version in FAMILY for rule in self._rules(version, OWN, label) if rule.comment == label]

    def is_doubled(self, label: str) -> bool:
        """Whether there is a rule that says the same for nobody in particular, the reference's, for each of one's."""
        rules = [rule for version in FAMILY for rule in self._rules(version, OWN)]
        theirs = {(rule.version, rule.parts) for rule in rules if not rule.comment}
        return all((rule.version, rule.parts) in theirs for rule in rules if rule.comment == label)

    def labels(self, prefix: str) -> set[str]:
        """List the attachments whose label starts with the prefix."""
        rules = (rule for version in FAMILY for rule in self._rules(version, OWN, prefix))
        return {rule.comment for rule in rules if rule.comment.startswith(prefix)}

    def missing(self, entries: Sequence[Entry], *, unlabelled: bool = False) -> list[Rule]:
        """List the rules that attachments lack.

        Args:
            entries: of the attachments.
            unlabelled: whether rules count that say the same for nobody in particular: the reference's.

        Raises:
            OSError: the kernel refuses.
        """
        found: list[Rule] = []
        for version in _versions(entries):
            present = self._present(version)
            theirs = {rule.parts for rule in present[OWN] if not rule.comment} if unlabelled else set()
            lost = (change.rule for change in missing(version, entries, present))
            found += [rule for rule in lost if rule.parts not in theirs]
        return found

    def _additions(self, entries: Sequence[Entry]) -> list[bytearray]:
        messages: list[bytearray] = []
        for version in _versions(entries):
            changes = list(missing(version, entries, self._present(version)))
            if changes:
                of_version = [entry for entry in entries if version in entry.wanted.versions]
                messages += structure(version, chains_of(of_version))
                messages += [change.message() for change in changes]
        return messages

    def _present(self, version: int) -> dict[str, list[Rule]]:
        return {chain: self._rules(version, chain) for chain in CHAINS}

    def _rules(self, version: int, chain: str, needle: str = "") -> list[Rule]:
        """List the rules of a chain that contain some text; searching is quicker than reading them all."""
        request = partial(dump_rules, FAMILY[version], TABLE, chain)
        messages = dump(self._netlink, request, f"list the rules of chain {chain} of table {TABLE}")
        wanted = needle.encode()
        return [parse_rule(version, chain, message) for message in messages if wanted in message]

    def _change(self, compose: Callable[[], list[bytearray]], what: str) -> None:
        """Commit what is composed if nothing has changed since."""
        for _ in range(_ATTEMPTS):
            generation = generation_of(self._netlink)
            messages = compose()
            refusal = commit(self._netlink, messages, generation) if messages else None
            if refusal is None:
                return
            if refusal.error not in _CHANGED:
                raise failure(f"{what} in table {TABLE}", refusal)
        raise PluginError(f"table {TABLE} keeps changing; is another program writing to it?")


def is_there(netlink: Netlink, family: int, table: str, chain: str) -> bool:
    """Whether a chain has rules.

    Raises:
        OSError: the kernel refuses.
    """
    return bool(dump(netlink, partial(dump_rules, family, table, chain), f"look for table {table}"))


def _versions(entries: Iterable[Entry]) -> list[int]:
    return sorted({version for entry in entries for version in entry.wanted.versions})


def _deletion(rule: Rule) -> bytearray:
    return delete_rule(FAMILY[rule.version], TABLE, rule.chain, rule.handle)
