"""The ports of a host that lead to containers, in nf_tables, without executing anything.

Owns: the table `inet nodeplug_portmap` of a network namespace: which port leads where, and on whose behalf.
Refuses: iptables, and memory: the kernel is asked each time, so what an administrator's `nft flush ruleset` removed is
noticed, and restored from what the caller knows.

Each element carries the label of its attachment: a port has one owner, and DEL removes only what carries its own label.
"""

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from nodeplug import PluginError, TryAgain
from nodeplug_net.netlink.connection import Netlink, Request, attributes, failure, text
from nodeplug_net.nftables.encoding import CREATE, ENSURE, NFPROTO_INET
from nodeplug_net.nftables.transactions import ABSENT, BODY, commit, dump, generation_of
from nodeplug_net.portmap import messages as nft
from nodeplug_net.portmap.config import Forward, Mappings
from nodeplug_net.reference.messages import delete_rule, parse_rule

_TOGETHER: Final = 100
"""Elements of one transaction: a socket has room for some three hundred acknowledgements."""
_ATTEMPTS: Final = 50
_SET_NAME: Final = 2  # NFTA_SET_NAME
_LIST_ELEMENTS: Final = 3  # NFTA_SET_ELEM_LIST_ELEMENTS
_CHANGED: Final = frozenset({errno.ERESTART, errno.ENOENT, errno.EBUSY})
"""What a transaction is refused with if another program changed the table in between."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a map or set: the port of a forward, or whose packets to it are masqueraded."""

    name: str
    key: bytes
    data: bytes
    label: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What the kernel is to have for an attachment.

    Attributes:
        label: of the attachment.
        elements: of maps and sets.
        rules: messages of rules, for forwards with conditions.
    """

    label: str
    elements: tuple[Element, ...]
    rules: tuple[bytes, ...] = ()

    @property
    def near(self) -> list[str]:
        """The names of the sets that it needs, besides those that the table always has."""
        return [name for name in dict.fromkeys(one.name for one in self.elements) if nft.prefix_of(name)]


def entry_of(mappings: Mappings, label: str) -> Entry:
    """Compose what the kernel is to have for an attachment."""
    conditions, near = dict(mappings.conditions), dict(mappings.near)
    elements: list[Element] = []
    rules = []
    for forward in mappings.forwards:
        if forward.version in conditions:
            rules.append(bytes(nft.conditional(forward, conditions[forward.version], label)))
        else:
            elements.append(_element_of(forward, label))
        for source in near.get(forward.version, ()):
            key = nft.near_key(source.network.network_address.packed, forward)
            elements.append(Element(nft.near_of(forward.version, source.network.prefixlen), key, b"", label))
    return Entry(label, tuple(dict.fromkeys(elements)), tuple(rules))


def _element_of(forward: Forward, label: str) -> Element:
    return Element(nft.map_of(forward), nft.forward_key(forward), nft.forward_data(forward), label)


class PortTable:
    """The table of one namespace.

    Args:
        netlink: a socket of nf_tables in that namespace.
    """

    __slots__ = ("_netlink",)

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink

    def add(self, entry: Entry, restore: Callable[[Sequence[str]], None], *, again: bool = False) -> None:
        """Forward the ports of an attachment, in one transaction; what it had before is replaced.

        Args:
            entry: of the attachment.
            restore: called if rules of the table are missing, with the sets that the entry needs; see `mend`.
            again: whether the attachment may have ports already.

        Raises:
            TryAgain: another attachment has one of the ports.
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """
        messages = self._replacement(entry) if again else _additions(entry, CREATE)
        for _ in range(_ATTEMPTS):
            if self.lacking(entry.near):
                restore(entry.near)
            refusal = commit(self._netlink, messages)
            if refusal is None:
                return
            if refusal.error not in {errno.EEXIST, errno.ENOENT, errno.EBUSY}:
                raise failure(f"forward ports in table {nft.TABLE}", refusal)
            messages = self._replacement(entry)
        raise _restless()

    def _replacement(self, entry: Entry) -> list[bytearray]:
        return [*self._deletions(entry.label, self._refuse_taken(entry)), *_additions(entry, CREATE)]

    def _refuse_taken(self, entry: Entry) -> list[Element]:
        """Return what the attachment has already.

        Raises:
            TryAgain: another attachment has a port of its.
        """
        wanted = {(one.name, one.key): one for one in entry.elements}
        own = []
        for one in self.elements(""):
            if one.label == entry.label:
                own.append(one)
            elif (one.name, one.key) in wanted:
                raise TryAgain(f"host port {nft.port_name_of(one.name, one.key)} belongs to {one.label!r}")
        return own

    def lacking(self, near: Iterable[str] = ()) -> list[str]:
        """Return which rules are missing, by name: without them ports lead nowhere, whatever the maps have."""
        rules = b"".join(self._rules())
        return [name for name in (*nft.RULES, *near) if nft.comment_of(name).encode() + b"\0" not in rules]

    def mend(self, asked: Callable[[], Sequence[Entry]], near: Iterable[str] = ()) -> None:
        """Restore what is missing: rules, maps, sets, and the expected entries; in one transaction.

        Args:
            asked: returns who should have ports; called anew whenever others change the table meanwhile.
            near: further sets.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """
        for _ in range(_ATTEMPTS):
            generation, entries = generation_of(self._netlink), asked()
            known = [name for name in sorted(self._sets()) if nft.prefix_of(name)]
            wanted = list(dict.fromkeys([*known, *near, *(name for entry in entries for name in entry.near)]))
            messages = nft.rebuild(wanted) if self.lacking(wanted) else []
            present = {(one.name, one.key) for one in self.elements("")}
            ruled = {one.comment for one in map(parse_rule, self._rules())}
            for entry in entries:
                missing = tuple(one for one in entry.elements if (one.name, one.key) not in present)
                rules = () if entry.label in ruled else entry.rules
                messages += _additions(Entry(entry.label, missing, rules), ENSURE)
            refusal = commit(self._netlink, messages, generation) if messages else None
            if refusal is None:
                return
            if refusal.error not in _CHANGED:
                raise failure(f"restore table {nft.TABLE}", refusal)
        raise _restless()

    def remove(self, *labels: str) -> bool:
        """Remove what attachments have; return whether one had anything.

        Raises:
            OSError: the kernel refuses.
            PluginError: others keep changing the table.
        """
        removed = [self._remove(label) for label in labels]
        return any(removed)

    def _remove(self, label: str) -> bool:
        for _ in range(_ATTEMPTS):
            messages = self._deletions(label, self.owned(label))
            refusal = commit(self._netlink, messages) if messages else None
            if refusal is None:
                return bool(messages)
            if refusal.error not in _CHANGED:
                raise failure(f"end forwarding of ports for {label!r}", refusal)
        raise _restless()

    def _deletions(self, label: str, own: Iterable[Element]) -> list[bytearray]:
        needle = label.encode() + b"\0"
        rules = [parse_rule(message) for message in self._rules() if needle in message]
        return [
            *(nft.delete_element(one.name, one.key) for one in own),
            *(
                delete_rule(NFPROTO_INET, nft.TABLE, nft.CONDITIONAL, one.handle)
                for one in rules
                if one.comment == label
            ),
        ]

    def owned(self, label: str) -> list[Element]:
        """List the elements of one attachment."""
        return [one for one in self._scan(label.encode() + b"\0") if one.label == label]

    def elements(self, prefix: str) -> list[Element]:
        """List the elements of attachments whose label starts with the prefix."""
        return [one for one in self._scan(prefix.encode()) if one.label.startswith(prefix)]

    def labels(self, prefix: str) -> set[str]:
        """List the attachments whose label starts with the prefix."""
        rules = {one.comment for one in map(parse_rule, self._rules())}
        return {one.label for one in self.elements(prefix)} | {one for one in rules if one.startswith(prefix)}

    def differences(self, entry: Entry) -> list[str]:
        """Name what an attachment lacks."""
        present = {(one.name, one.key, one.data) for one in self.owned(entry.label)}
        lost = [one for one in entry.elements if (one.name, one.key, one.data) not in present]
        rules = [one for one in map(parse_rule, self._rules()) if one.comment == entry.label]
        found = [
            f"host port {nft.port_name_of(one.name, one.key)} does not lead to the container"
            if one.data
            else f"connections from nearby to host port {nft.port_name_of(one.name, one.key)} are not masqueraded"
            for one in lost
        ]
        if len(rules) < len(entry.rules):
            found.append(f"{len(entry.rules) - len(rules)} rules of host ports with conditions are missing")
        gone = self.lacking(entry.near)
        if gone:
            found.append(
                f"table {nft.TABLE} lost its rules {', '.join(gone)}; the next ADD, STATUS or GC of a network with "
                "port mappings restores them"
            )
        return list(dict.fromkeys(found))

    def missing(self, entries: Sequence[Entry]) -> list[str]:
        """Name what attachments lack, without a word on each."""
        gone = self.lacking(dict.fromkeys(name for entry in entries for name in entry.near))
        if gone:
            return [f"table {nft.TABLE} lost its rules {', '.join(gone)}"]
        present = {(one.name, one.key, one.data) for one in self.elements("nodeplug ")}
        ruled = {one.comment for one in map(parse_rule, self._rules())}
        lost = [
            entry.label
            for entry in entries
            if any((one.name, one.key, one.data) not in present for one in entry.elements)
            or (entry.rules and entry.label not in ruled)
        ]
        return [f"table {nft.TABLE} lost the host ports of {', '.join(lost)}"] if lost else []

    def prune(self) -> None:
        """Remove the table if nobody has a port; an ADD in between is not lost, as it makes a new generation.

        Raises:
            OSError: the kernel refuses.
        """
        generation = generation_of(self._netlink)
        if generation is None or not self._sets() or self.labels("nodeplug "):
            return
        refusal = commit(self._netlink, [nft.delete_table()], generation)
        if refusal is not None and refusal.error not in _CHANGED:
            raise failure(f"remove the empty table {nft.TABLE}", refusal)

    def _scan(self, needle: bytes) -> list[Element]:
        return [
            element
            for name in sorted(self._sets())
            for message in dump(self._netlink, partial(nft.dump_elements, name), f"list {name} of table {nft.TABLE}")
            if needle in message
            for element in _parse_elements(name, message, needle)
        ]

    def _rules(self) -> list[bytes]:
        return dump(self._netlink, nft.dump_rules, f"list the rules of table {nft.TABLE}")

    def _sets(self) -> set[str]:
        """Return the names of maps and sets; none without a table."""
        answer = self._netlink.ask(Request(nft.dump_sets(), f"list the sets of table {nft.TABLE}", ABSENT))[0]
        return {
            text(message, start, end)
            for message in answer.messages
            for kind, start, end in attributes(message, BODY)
            if kind == _SET_NAME
        }


def _additions(entry: Entry, flags: int) -> list[bytearray]:
    added = [nft.new_element(one.name, one.key, one.data, one.label, flags=flags) for one in entry.elements]
    return [*added, *map(bytearray, entry.rules)]


def _parse_elements(name: str, message: bytes, needle: bytes) -> list[Element]:
    return [
        _parse_element(name, message, first, last)
        for kind, start, end in attributes(message, BODY)
        if kind == _LIST_ELEMENTS
        for _, first, last in attributes(message, start, end)
        if message.find(needle, first, last) >= 0
    ]


def _parse_element(name: str, message: bytes, start: int, end: int) -> Element:
    key, data, label = b"", b"", ""
    for kind, first, last in attributes(message, start, end):
        if kind == 1:  # NFTA_SET_ELEM_KEY, inside one nested NFTA_DATA_VALUE
            key = message[first + 4 : last]
        elif kind == 2:  # NFTA_SET_ELEM_DATA
            data = message[first + 4 : last]
        elif kind == 6:  # NFTA_SET_ELEM_USERDATA: type and length of the comment come first
            label = text(message, first + 2, last)
    return Element(name, key, data, label)


def _restless() -> PluginError:
    return PluginError(f"table inet {nft.TABLE} keeps changing; is another program writing to it?")
