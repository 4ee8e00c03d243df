"""The check of source MACs (`macspoofchk`): a container sends frames from its own address alone.

Owns: writing, comparing and removing the rules of an attachment, and removing those of interfaces that are gone.
Refuses: memory: the kernel is asked each time. Rules are found by the names that the reference gives them, whoever
wrote them, and in whatever network: an interface of a container is in one.
"""

import errno
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Final

from nodeplug import PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink.connection import Netlink, Request, failure
from nodeplug_net.netlink.messages import mac_bytes
from nodeplug_net.nftables import spoof_messages as spoof
from nodeplug_net.nftables.encoding import DROP, RETURN
from nodeplug_net.nftables.transactions import ABSENT, commit, dump, generation_of

_ATTEMPTS: Final = 50
_OTHERS: Final = frozenset({errno.ERESTART, errno.ENOENT, errno.EBUSY, errno.EEXIST})
"""What a transaction is refused with if another program changed the rules in between."""


class SpoofCheck:
    """The rules of one namespace.

    Args:
        netlink: a socket of nf_tables in that namespace.
    """

    __slots__ = ("_netlink",)

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink

    def composed(self, attachment: Attachment, host: str, mac: str, *, again: bool) -> list[bytearray]:
        """Compose what sets the check up, for a transaction that is refused with EEXIST if the attachment has rules.

        Args:
            attachment: the one that is checked.
            host: the name of its port of the bridge.
            mac: the container's.
            again: whether it was refused; then what exists is replaced.

        Raises:
            OSError: the kernel refuses.
        """
        return [*(self.removal(attachment) if again else ()), *spoof.setup(attachment, host, mac)]

    def removal(self, attachment: Attachment) -> list[bytearray]:
        """Compose what removes the rules of an attachment; nothing if it has none, which costs two small queries.

        Raises:
            OSError: the kernel refuses.
        """
        names = spoof.chains_of(attachment)
        asked = [Request(spoof.get_chain(name), f"find chain {name} of table bridge nat", ABSENT) for name in names]
        present = [name for name, answer in zip(names, self._netlink.ask(*asked), strict=True) if not answer.error]
        if not present:
            return []
        jumps = [rule for rule in self._rules(spoof.HOOKED) if rule.jump == names[0]]
        chains = [message for name in present for message in spoof.delete_chain(name)]
        return [*(spoof.delete_rule(rule.handle) for rule in jumps), *chains]

    def remove(self, attachment: Attachment) -> None:
        """Remove the rules of an attachment; succeed if there are none.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """
        self._change(lambda: self.removal(attachment), f"end the check of {attachment.container_id}'s MAC")

    def sweep(self, present: Callable[[], Container[str]]) -> None:
        """Remove the rules of interfaces that are gone: another interface may get the name.

        Args:
            present: lists the names of interfaces; asked after the rules, as an interface is older than its rule.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """

        def doomed() -> list[bytearray]:
            rules = [rule for rule in self._rules(spoof.HOOKED) if rule.jump.startswith(spoof.CHAIN_PREFIX)]
            there = present() if rules else ()
            lost = [rule for rule in rules if spoof.interface_of(rule) not in there]
            kept = {rule.jump for rule in rules} - {rule.jump for rule in lost}
            chains = [name for name in dict.fromkeys(rule.jump for rule in lost) if name not in kept]
            onward = [rule.jump for name in chains for rule in self._rules(name) if rule.jump.startswith(name)]
            messages = [spoof.delete_rule(rule.handle) for rule in lost]
            return [*messages, *(message for name in [*chains, *onward] for message in spoof.delete_chain(name))]

        self._change(doomed, "remove the checks of MACs of interfaces that are gone")

    def interfaces(self) -> list[str]:
        """List the interfaces whose frames are checked.

        Raises:
            OSError: the kernel refuses.
        """
        rules = [rule for rule in self._rules(spoof.HOOKED) if rule.jump.startswith(spoof.CHAIN_PREFIX)]
        return sorted({spoof.interface_of(rule) for rule in rules})

    def hooked(self) -> list[spoof.Check]:
        """List the rules that lead to those of attachments.

        Raises:
            OSError: the kernel refuses.
        """
        return self._rules(spoof.HOOKED)

    def restore(self, attachment: Attachment, host: str, mac: str) -> None:
        """Write the rules of an attachment in place of what exists of them.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """
        what = f"check the MAC of {attachment.container_id}"
        self._change(lambda: self.composed(attachment, host, mac, again=True), what)

    def differences(
        self, attachment: Attachment, host: str, mac: str, hooked: Sequence[spoof.Check] | None = None
    ) -> Iterator[str]:
        """Tell what the check of an attachment lacks.

        Args:
            attachment: the one that is checked.
            host: the name of its port of the bridge.
            mac: the container's.
            hooked: what `hooked` returned, for several attachments.

        Raises:
            OSError: the kernel refuses.
        """
        own, of_mac = spoof.chains_of(attachment)
        wanted = spoof.interface(host)
        leading = self.hooked() if hooked is None else hooked
        if not any(rule.jump == own and rule.compared == wanted for rule in leading):
            yield f"frames from {host} are not checked: table bridge nat has no rule that jumps to {own}"
        elif not any(rule.jump == of_mac for rule in self._rules(own)):
            yield f"frames from {host} are not checked: chain {own} of table bridge nat does not jump to {of_mac}"
        else:
            rules = [(rule.compared, rule.verdict) for rule in self._rules(of_mac)]
            if rules != [(mac_bytes(mac), RETURN), (b"", DROP)]:
                yield f"chain {of_mac} of table bridge nat does not let {mac} alone pass"

    def _rules(self, chain: str) -> list[spoof.Check]:
        what = f"list the rules of chain {chain} of table bridge nat"
        return [spoof.parse_rule(message) for message in dump(self._netlink, lambda: spoof.dump_rules(chain), what)]

    def _change(self, compose: Callable[[], list[bytearray]], what: str) -> None:
        """Commit what is composed if nothing has changed since."""
        for _ in range(_ATTEMPTS):
            generation = generation_of(self._netlink)
            messages = compose()
            refusal = commit(self._netlink, messages, generation) if messages else None
            if refusal is None:
                return
            if refusal.error not in _OTHERS:
                raise failure(what, refusal)
        raise PluginError("table bridge nat keeps changing; is another program writing to it?")
