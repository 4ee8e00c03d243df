"""Masquerading of container addresses through nf_tables, without executing anything.

Owns: the table `inet nodeplug_masquerade` of a network namespace: who is masqueraded, and on whose behalf.
Refuses: iptables, and memory: the kernel is asked each time, also for the rules, so the next ADD, STATUS or GC restores
what an administrator's `nft flush ruleset` or `flush table` removed. The table has a name of its own, because the
reference plugins own `cni_plugins_masquerade` and its rules.

Each element carries the label of its attachment. A new container can get an address before the old one's DEL
arrives: ADD takes the element over, and DEL removes only what still carries its own label.
"""

import errno
import ipaddress
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from nodeplug import PluginError
from nodeplug_net.netlink.connection import Netlink, Request, attributes, failure, text
from nodeplug_net.netlink.routes import Interface
from nodeplug_net.nftables import masquerade_messages as nft
from nodeplug_net.nftables.encoding import Network
from nodeplug_net.nftables.transactions import ABSENT, BODY, commit, dump, generation_of

_TOGETHER: Final = 100
"""Entries of one transaction: a socket has room for some three hundred acknowledgements."""
_ATTEMPTS: Final = 50
_SET_NAME: Final = 2  # NFTA_SET_NAME
_LIST_ELEMENTS: Final = 3  # NFTA_SET_ELEM_LIST_ELEMENTS
_ELEM_KEY: Final = 1  # NFTA_SET_ELEM_KEY
_ELEM_USERDATA: Final = 6  # NFTA_SET_ELEM_USERDATA


@dataclass(frozen=True, slots=True)
class Element:
    """One masqueraded address."""

    network: Network
    key: bytes
    label: str

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address itself."""
        return ipaddress.ip_address(self.key)


_EVERYWHERE: Final = (ipaddress.IPv4Network("0.0.0.0/32"), ipaddress.IPv6Network("::/128"))
"""The "subnets" of addresses that are masqueraded wherever they go: no packet has these destinations."""


@dataclass(frozen=True, slots=True)
class Masquerading:
    """What of a network is masqueraded, if anything is.

    Attributes:
        versions: of IP; none if nothing is.
        same_subnet: also what the host routes within the subnet.
        strict: nothing leaves the subnet that belongs to no connection.
    """

    versions: Collection[int] = (4, 6)
    same_subnet: bool = False
    strict: bool = False

    def elements(self, addresses: Iterable[Interface], label: str) -> list[Element]:
        """Return those of an attachment's addresses that are masqueraded, each with the subnet in which it is not."""
        return [
            Element(_EVERYWHERE[one.version == 6] if self.same_subnet else one.network, one.packed, label)
            for one in addresses
            if one.version in self.versions
        ]

    def strict_in(self, networks: Collection[Network]) -> Collection[Network]:
        """Return those of such subnets from which nothing leaves that belongs to no connection: all, or none."""
        return networks if self.strict else ()


EVERY: Final = Masquerading()
NOTHING: Final = Masquerading(())


class Masquerade:
    """The masqueraded addresses of one namespace.

    Args:
        netlink: a socket of nf_tables in that namespace.
    """

    __slots__ = ("_netlink",)

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink

    def add(
        self,
        addresses: Sequence[Interface],
        label: str,
        others: Callable[[], Sequence[Element]] = lambda: (),
        beside: Callable[[bool], Sequence[bytearray]] = lambda _: (),
        asked: Masquerading = EVERY,
    ) -> None:
        """Masquerade addresses for an attachment, in one transaction; take over elements of others.

        Args:
            addresses: with the prefix of their subnet; those that are not to be masqueraded are left out.
            label: of the attachment.
            others: returns who else should be masqueraded; called if the rules of a subnet are missing.
            beside: composes more for the same transaction, without it or (True) with what exists of it to be replaced.
            asked: what is to be masqueraded.

        Raises:
            OSError: the kernel refuses, with its errno.
            PluginError: others keep changing the table.
        """
        wanted = asked.elements(addresses, label)
        networks = [one.network for one in wanted]
        strict = asked.strict_in(networks)
        messages = [*(nft.new_element(one.network, one.key, label) for one in wanted), *beside(False)]
        for _ in range(_ATTEMPTS if messages else 0):
            if wanted and self.lacking(networks, strict):
                self.mend(others(), networks, strict)
            refusal = commit(self._netlink, messages)
            if refusal is None:
                return
            if refusal.error not in {errno.EEXIST, errno.ENOENT}:
                whom = ", ".join(str(one.address) for one in wanted)
                raise failure(f"masquerade {whom} in table {nft.TABLE}" if whom else "write rules", refusal)
            messages = [*self._replacement(wanted), *beside(True)]
        if messages:
            raise _restless()

    def _replacement(self, wanted: list[Element]) -> list[bytearray]:
        """Compose the transaction from the elements that exist now."""
        present = {(entry.network, entry.key) for entry in self.entries("")}
        messages = []
        for one in wanted:
            if (one.network, one.key) in present:
                messages.append(nft.delete_element(one.network, one.key))
            messages.append(nft.new_element(one.network, one.key, one.label))
        return messages

    def lacking(self, networks: Iterable[Network], strict: Iterable[Network] = ()) -> list[Network]:
        """Return the subnets without a rule; their addresses are not masqueraded, whatever their sets hold.

        Args:
            networks: those that are masqueraded.
            strict: those from which nothing leaves that belongs to no connection.
        """
        masquerading, dropping = self._rules()
        return [
            *(network for network in dict.fromkeys(networks) if nft.names_set(network) not in masquerading),
            *(network for network in dict.fromkeys(strict) if nft.names_set(network) not in dropping),
        ]

    def _rules(self) -> tuple[bytes, bytes]:
        """List the rules that masquerade, and those that drop."""
        answer = self._netlink.ask(Request(nft.dump_rules(), f"list the rules of table {nft.TABLE}", ABSENT))[0]
        dropping = [message for message in answer.messages if nft.drops(message)]
        if not dropping:
            return b"".join(answer.messages), b""
        return b"".join(one for one in answer.messages if not nft.drops(one)), b"".join(dropping)

    def mend(
        self, expected: Sequence[Element], networks: Iterable[Network] = (), strict: Iterable[Network] = ()
    ) -> None:
        """Restore what is missing of the table: the rules of subnets, their sets, and the expected entries.

        In one transaction: rules without their entries would look complete and never be repaired.

        Args:
            expected: what should be masqueraded; an address that another attachment has stays with it.
            networks: further subnets.
            strict: those from which nothing leaves that belongs to no connection.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """
        wanted, dropped = list(dict.fromkeys([*networks, *(one.network for one in expected)])), list(strict)
        entries = [nft.new_element(one.network, one.key, one.label, keep=True) for one in expected]
        for _ in range(_ATTEMPTS):
            generation = generation_of(self._netlink)
            rules = self._missing_rules(wanted, dropped)
            refusal = commit(self._netlink, [*rules, *entries], generation if rules else None)
            if refusal is None:
                return
            # Another program changed a table in between, or a set without entries was removed.
            if refusal.error != (errno.ERESTART if rules else errno.ENOENT):
                what = "make the rules of" if rules else f"masquerade {len(expected)} addresses in"
                raise failure(f"{what} table {nft.TABLE}", refusal)
        raise _restless()

    def _missing_rules(self, wanted: list[Network], strict: list[Network]) -> list[bytearray]:
        """Compose the rules of all subnets, if one of these has none."""
        if not self.lacking(wanted, strict):
            return []
        known = [network for network in map(nft.network_of, sorted(self._sets() or ())) if network]
        every = list(dict.fromkeys([*known, *wanted]))
        return nft.rebuild(every, dict.fromkeys([*self._strict(every), *strict]))

    def _strict(self, networks: Iterable[Network]) -> list[Network]:
        """Return those of the subnets from which nothing leaves that belongs to no connection."""
        dropping = self._rules()[1]
        return [network for network in networks if nft.names_set(network) in dropping] if dropping else []

    def prune(self) -> None:
        """Remove the set and the rule of each subnet without addresses, and the table if none is left.

        An ADD between check and removal is not lost: it makes a new generation, and this gives up.

        Raises:
            OSError: the kernel refuses.
        """
        generation = generation_of(self._netlink)
        names = self._sets()
        if generation is None or names is None:
            return
        known = [network for network in map(nft.network_of, sorted(names)) if network]
        empty = [network for network in known if not any(_parse_elements(one, b"") for one in self._dump_of(network))]
        kept = [network for network in known if network not in empty]
        if kept and not empty:
            return
        strict = self._strict(known)
        still = [network for network in strict if network in kept]
        gone = nft.delete_invalid() if strict and not still else []
        rules = [*gone, *nft.rebuild(kept, still)]
        messages = [*rules, *map(nft.delete_set, empty)] if kept else [nft.delete_table()]
        refusal = commit(self._netlink, messages, generation)
        if refusal is not None and refusal.error not in {errno.ERESTART, errno.ENOENT}:
            raise failure(f"remove what is unused of table {nft.TABLE}", refusal)

    def _dump_of(self, network: Network) -> list[bytes]:
        return self._dump(nft.set_name(network))

    def owned(self, label: str) -> list[Element]:
        """List what is masqueraded for one attachment."""
        return self._scan(label.encode() + b"\0")

    def entries(self, prefix: str) -> list[Element]:
        """List what is masqueraded for attachments whose label starts with the prefix."""
        return [entry for entry in self._scan(prefix.encode()) if entry.label.startswith(prefix)]

    def _scan(self, needle: bytes) -> list[Element]:
        """List the entries whose label contains the bytes.

        Raises:
            OSError: the kernel refuses.
        """
        found = []
        for name in self._sets() or ():
            network = nft.network_of(name)
            if network is None:
                continue
            for message in self._dump(name):
                found += [Element(network, key, label) for key, label in _parse_elements(message, needle)]
        return found

    def _dump(self, name: str) -> list[bytes]:
        """List the elements of a set."""
        return dump(self._netlink, lambda: nft.dump_elements(name), f"list set {name} of table {nft.TABLE}")

    def remove(self, entries: Sequence[Element], beside: Sequence[bytearray] = ()) -> bool:
        """Remove entries; succeed for those that are gone.

        Args:
            entries: what ends.
            beside: more for the same transaction, if the entries are few.

        Returns:
            Whether what is beside was done; not if something was gone.

        Raises:
            OSError: the kernel refuses.
        """
        done = self._remove(entries[:_TOGETHER], beside)
        for start in range(_TOGETHER, len(entries), _TOGETHER):
            self._remove(entries[start : start + _TOGETHER])
        return done

    def _remove(self, entries: Sequence[Element], beside: Sequence[bytearray] = ()) -> bool:
        """Remove entries in one transaction, and one by one if some are gone."""
        messages = [*(nft.delete_element(entry.network, entry.key) for entry in entries), *beside]
        refusal = commit(self._netlink, messages) if messages else None
        if refusal is not None and refusal.error != errno.ENOENT:
            raise failure(f"end masquerading {', '.join(str(entry.address) for entry in entries)}", refusal)
        if refusal is not None and len(messages) > 1:
            for entry in entries:
                self._remove([entry])
        return refusal is None

    def discard(self, unwanted: Callable[[list[Element]], Sequence[Element]]) -> None:
        """Remove those of all entries that are still unwanted when nothing has changed since they were listed.

        Args:
            unwanted: chooses among the entries of all networks; called again if another program was faster.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """
        for _ in range(_ATTEMPTS):
            generation = generation_of(self._netlink)
            chosen = unwanted(self.entries(""))[:_TOGETHER]
            if not chosen:
                return
            deletions = [nft.delete_element(one.network, one.key) for one in chosen]
            refusal = commit(self._netlink, deletions, generation)
            if refusal is not None and refusal.error not in {errno.ERESTART, errno.ENOENT}:
                raise failure(f"end masquerading {', '.join(str(one.address) for one in chosen)}", refusal)
        raise _restless()

    def _sets(self) -> set[str] | None:
        """Return the names of the table's sets; None without a table."""
        answer = self._netlink.ask(Request(nft.dump_sets(), f"list the sets of table {nft.TABLE}", ABSENT))[0]
        if answer.error:
            return None
        return {
            text(message, start, end)
            for message in answer.messages
            for kind, start, end in attributes(message, BODY)
            if kind == _SET_NAME
        }


def _restless() -> PluginError:
    return PluginError(f"table inet {nft.TABLE} keeps changing; is another program writing to it?")


def _parse_elements(message: bytes, needle: bytes) -> list[tuple[bytes, str]]:
    """Read the elements that contain the needle; searching is ten times faster than parsing them all."""
    if needle not in message:
        return []
    return [
        _parse_element(message, first, last)
        for kind, start, end in attributes(message, BODY)
        if kind == _LIST_ELEMENTS
        for _, first, last in attributes(message, start, end)
        if message.find(needle, first, last) >= 0
    ]


def _parse_element(message: bytes, start: int, end: int) -> tuple[bytes, str]:
    key, label = b"", ""
    for kind, first, last in attributes(message, start, end):
        if kind == _ELEM_KEY:
            key = message[first + 4 : last]  # inside one nested NFTA_DATA_VALUE
        elif kind == _ELEM_USERDATA:
            label = text(message, first + 2, last)  # type and length of the comment come first
    return key, label
