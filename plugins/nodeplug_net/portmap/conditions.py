"""Conditions of port mappings: `conditionsV4` and `conditionsV6`, in the words of iptables(8) or of nft(8).

Owns: reading them into values, and the expressions of a rule that they are.
Refuses: most of both languages, which only those programs can read: what packets a mapping is for is said by address
and by interface, and anything else is refused instead of ignored.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nodeplug import InvalidRequest
from nodeplug_net.nftables.encoding import Expression, Network, compare, destination, expression, load, of_family

_OPTIONS: Final = {
    "-s": "saddr",
    "--source": "saddr",
    "--src": "saddr",
    "-d": "daddr",
    "--destination": "daddr",
    "--dst": "daddr",
    "-i": "iifname",
    "--in-interface": "iifname",
}
_FIELDS: Final = {"saddr", "daddr"}
_IFNAME_SIZE: Final = 16
_IIFNAME: Final = 6  # NFT_META_IIFNAME


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition.

    Attributes:
        field: saddr, daddr or iifname.
        network: what the address is in; None for an interface.
        interface: its name; with `*` at its end all that begin so.
        inverted: whether it holds for all others.
    """

    field: str
    network: Network | None = None
    interface: str = ""
    inverted: bool = False

    def expressions(self) -> list[Expression]:
        """Return what a rule compares."""
        operator = int(self.inverted)
        if self.network is None:
            name = self.interface.encode()
            data = name[:-1] if name.endswith(b"*") else name.ljust(_IFNAME_SIZE, b"\0")
            return [expression("meta", ("NFTA_META_KEY", _IIFNAME), ("NFTA_META_DREG", 1)), compare(operator, data)]
        if self.field == "daddr":
            return destination(self.network, operator)
        mask, compared = destination(self.network, operator)[3:]
        return [*of_family(self.network.version), load(self.network.version, source=True), mask, compared]


def is_of_iptables(words: Sequence[str]) -> bool:
    """Whether conditions are iptables(8)'s, as the reference tells them apart: by their first letter."""
    return words[0][:1] in {"-", "!"}


def parse_conditions(key: str, words: Sequence[str], version: int) -> tuple[Condition, ...]:
    """Read the conditions of one version of IP.

    Raises:
        InvalidRequest: they say something that is not understood; the message has what is.
    """
    if not words or not words[0]:
        return ()
    left = " ".join(words).split()
    read = _of_iptables if is_of_iptables(words) else _of_nft
    found = []
    try:
        while left:
            condition, left = read(left, version)
            found.append(condition)
    except (IndexError, KeyError, ValueError):
        raise InvalidRequest(
            f"key {key!r}: found {' '.join(words)!r}, which is not understood; give [!] -s NETWORK, [!] -d NETWORK and "
            "[!] -i INTERFACE, or ip saddr, ip daddr (ip6 ...) and iifname with an optional != before the value"
        ) from None
    return tuple(found)


def _of_iptables(words: list[str], version: int) -> tuple[Condition, list[str]]:
    inverted = words[0] == "!"
    option, value, *left = words[inverted:]
    field = _OPTIONS[option]
    if field == "iifname":
        return Condition(field, interface=_interface(value.replace("+", "*")), inverted=inverted), left
    return Condition(field, _network(value, version), inverted=inverted), left


def _of_nft(words: list[str], version: int) -> tuple[Condition, list[str]]:
    first, *left = words[1:] if words[0] == "meta" else words
    field = first
    if first != "iifname":
        if first != ("ip" if version == 4 else "ip6") or left[0] not in _FIELDS:
            raise ValueError(first)
        field, *left = left
    inverted = left[0] == "!="
    value, *left = left[1:] if left[0] in {"!=", "=="} else left
    if field == "iifname":
        return Condition(field, interface=_interface(value.strip('"')), inverted=inverted), left
    return Condition(field, _network(value, version), inverted=inverted), left


def _network(text: str, version: int) -> Network:
    network = ipaddress.ip_network(text, strict=False)
    if network.version != version:
        raise ValueError(text)
    return network


def _interface(name: str) -> str:
    if not name.strip("*") or len(name.encode()) >= _IFNAME_SIZE or "*" in name[:-1]:
        raise ValueError(name)
    return name
