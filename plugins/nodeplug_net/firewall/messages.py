"""Messages about table `filter`, in the form in which iptables-nft(8) keeps it: rules as values, and as bytes.

Owns: the expressions of the reference's rules as iptables-nft(8) writes them, to write and to read them. That program
calls a whole table incompatible for one rule that it cannot show, so there is neither a set nor `ct state`.
Refuses: sockets, and which rules there are (see `rules`). pyroute2 is imported by the first message.

An attachment with the address 10.88.0.5, as iptables -S prints it (ip6tables for IPv6, alike):

    -A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
    -A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
    -A CNI-FORWARD -d 10.88.0.5/32 -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "..." -j ACCEPT
    -A CNI-FORWARD -s 10.88.0.5/32 -m comment --comment "nodeplug net c1 eth0" -j ACCEPT
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from ipaddress import ip_address
from typing import Final

from nodeplug_net.attachment import LABEL_LIMIT
from nodeplug_net.firewall.config import FORWARD, Address
from nodeplug_net.netlink.connection import attributes, text
from nodeplug_net.netlink.messages import Template
from nodeplug_net.nftables.encoding import (
    APPEND,
    DROP,
    ENSURE,
    JUMP,
    NFPROTO_IPV4,
    NFPROTO_IPV6,
    NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWRULE,
    NFT_MSG_NEWTABLE,
    RETURN,
    Attributes,
    Expression,
    compare,
    encode,
    expression,
    load,
    nest,
    verdict,
)
from nodeplug_net.nftables.transactions import BODY
from nodeplug_net.reference.messages import expressions

TABLE: Final = "filter"
FAMILY: Final = {4: NFPROTO_IPV4, 6: NFPROTO_IPV6}
_FORWARD_HOOK: Final = 2  # NF_INET_FORWARD
_META: Final = {6: "in", 7: "out"}  # NFT_META_IIFNAME, NFT_META_OIFNAME
_ADDRESSES: Final = {(12, 4): "from", (16, 4): "to", (8, 16): "from", (24, 16): "to"}
"""Where an address is in the header of IPv4 and IPv6 (RFC 791, RFC 8200), and how many bytes it has."""
_VERDICTS: Final = {DROP: "drop", 1: "accept", RETURN: "return", JUMP: "jump"}
_CODES: Final = {word: code for code, word in _VERDICTS.items()}
_ESTABLISHED: Final = struct.pack("=146x3H16x", 1, 0, 0b110)
"""struct xt_conntrack_mtinfo3: match_flags is XT_CONNTRACK_STATE, state_mask has ESTABLISHED and RELATED."""
_COMMENT_SIZE: Final = 256  # XT_MAX_COMMENT_LEN
_LABEL: Final = "nodeplug~label~".ljust(LABEL_LIMIT, "~")
_SENTINEL: Final = {4: ip_address("122.17.176.197"), 6: ip_address("7a11:b0c5:d6e7:f809:7a11:b0c5:d6e7:f80a")}

Part = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        version: of IP.
        chain: where it is.
        parts: what it compares, and its verdict: ("from", "10.88.0.5"), ("not out", "br0"), ("jump", "CNI-FORWARD").
        comment: whose it is; part of what iptables(8) compares.
        handle: the kernel's number of it; 0 before it is written.
    """

    version: int
    chain: str
    parts: tuple[Part, ...]
    comment: str = ""
    handle: int = field(default=0, compare=False)


ESTABLISHED: Final = ("established", "")
ACCEPT: Final = ("accept", "")


def structure(version: int, chains: list[str]) -> list[bytearray]:
    """Create table `filter`, its hooked chain FORWARD and further chains where they are missing.

    A chain that exists keeps its policy.
    """
    return [bytearray(message) for message in (*_base(version), *(_chain(version, name) for name in chains))]


@cache
def _base(version: int) -> tuple[bytes, bytes]:
    hook = nest(("NFTA_HOOK_HOOKNUM", _FORWARD_HOOK), ("NFTA_HOOK_PRIORITY", 0))
    chain: Attributes = [
        ("NFTA_CHAIN_TABLE", TABLE),
        ("NFTA_CHAIN_NAME", FORWARD),
        ("NFTA_CHAIN_HOOK", hook),
        ("NFTA_CHAIN_TYPE", "filter"),
    ]
    family = FAMILY[version]
    return (
        encode("nft_table_msg", NFT_MSG_NEWTABLE, ENSURE, [("NFTA_TABLE_NAME", TABLE)], family),
        encode("nft_chain_msg", NFT_MSG_NEWCHAIN, ENSURE, chain, family),
    )


@lru_cache(maxsize=32)
def _chain(version: int, name: str) -> bytes:
    attrs: Attributes = [("NFTA_CHAIN_TABLE", TABLE), ("NFTA_CHAIN_NAME", name)]
    return encode("nft_chain_msg", NFT_MSG_NEWCHAIN, ENSURE, attrs, FAMILY[version])


def append(rule: Rule) -> bytearray:
    """Add a rule as the last one of its chain."""
    kinds = [kind for kind, _ in rule.parts]
    if rule.comment and len(rule.comment) <= LABEL_LIMIT and kinds[0] in {"from", "to"}:
        address = ip_address(rule.parts[0][1])
        return _accept(rule.version, rule.chain, kinds[0]).fill(address=address.packed, label=rule.comment.encode())
    return bytearray(_encode(rule, APPEND))


def insert(rule: Rule) -> bytearray:
    """Add a rule as the first one of its chain."""
    return bytearray(_encode(rule, ENSURE))


def insert_after(rule: Rule, handle: int) -> bytearray:
    """Add a rule behind another one."""
    return bytearray(_encode(rule, APPEND, handle))


def accept(address: Address, chain: str, label: str) -> tuple[Rule, Rule]:
    """Return what lets answers come to a container's address, and everything leave from it."""
    text = str(address)
    return (
        Rule(address.version, chain, (("to", text), ESTABLISHED, ACCEPT), label),
        Rule(address.version, chain, (("from", text), ACCEPT), label),
    )


@cache
def _accept(version: int, chain: str, kind: str) -> Template:
    """NEWRULE of a container's address, with the holes `address` and `label`."""
    address = _SENTINEL[version]
    rule = accept(address, chain, _LABEL)[kind == "from"]
    return Template(_encode(rule, APPEND), address=(address.packed, 1), label=(_LABEL.encode(), 1))


@lru_cache(maxsize=256)
def _encode(rule: Rule, flags: int, position: int = 0) -> bytes:
    parts = [one for part in rule.parts[:-1] for one in _part(rule.version, *part)]
    if rule.comment:
        parts.append(_match("comment", 0, rule.comment.encode()[: _COMMENT_SIZE - 1].ljust(_COMMENT_SIZE, b"\0")))
    parts.append(expression("counter", ("NFTA_COUNTER_BYTES", 0), ("NFTA_COUNTER_PACKETS", 0)))
    word, chain = rule.parts[-1]
    attrs: Attributes = [
        ("NFTA_RULE_TABLE", TABLE),
        ("NFTA_RULE_CHAIN", rule.chain),
        ("NFTA_RULE_EXPRESSIONS", [*parts, verdict(_CODES[word], chain)]),
        *([("NFTA_RULE_POSITION", position)] if position else []),
    ]
    return encode("nft_rule_msg", NFT_MSG_NEWRULE, flags, attrs, FAMILY[rule.version])


def _part(version: int, kind: str, value: str) -> list[Expression]:
    operator, kind = int(kind.startswith("not ")), kind.removeprefix("not ")
    if kind in {"from", "to"}:
        return [load(version, source=kind == "from"), compare(operator, ip_address(value).packed)]
    if kind == "established":
        return [_match("conntrack", 3, _ESTABLISHED)]
    key = next(number for number, word in _META.items() if word == kind)
    named = expression("meta", ("NFTA_META_KEY", key), ("NFTA_META_DREG", 1))
    return [named, compare(operator, value.encode() + b"\0")]  # the NUL, too: without it the name is a prefix


def _match(name: str, revision: int, info: bytes) -> Expression:
    """Use a match of x_tables, as iptables-nft(8) does."""
    return expression("match", ("NFTA_MATCH_NAME", name), ("NFTA_MATCH_REV", revision), ("NFTA_MATCH_INFO", info))


def parse_rule(version: int, chain: str, message: bytes) -> Rule:
    """Read an NFT_MSG_NEWRULE message (struct nfgenmsg after the header, attributes from byte 20)."""
    handle, comment, parts = 0, "", []
    for kind, start, end in attributes(message, BODY):
        if kind == 3:  # NFTA_RULE_HANDLE
            handle = int.from_bytes(message[start:end], "big")
        elif kind == 4:  # NFTA_RULE_EXPRESSIONS
            for word, value in _parts(message, start, end):
                if word == "comment":
                    comment = value
                else:
                    parts.append((word, value))
    return Rule(version, chain, tuple(parts), comment, handle)


def _parts(message: bytes, start: int, end: int) -> Iterator[Part]:
    loaded = ""
    for name, data in expressions(message, start, end):
        if name == "payload":  # NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN
            loaded = _ADDRESSES.get((_number(data.get(3)), _number(data.get(4))), "other")
        elif name == "meta":
            loaded = _META.get(_number(data.get(2)), "other")
        elif name == "cmp":
            yield _compared(loaded, _number(data.get(2)), _inner(data.get(3, b"")))
        elif name == "match":
            yield _matched(text(data.get(1, b""), 0, 32), data.get(3, b""))
        elif name == "immediate":
            yield _verdict(data.get(2, b""))
        elif name != "counter":
            yield "other", name


def _compared(loaded: str, operator: int, value: bytes) -> Part:
    word = f"{'not ' if operator else ''}{loaded}"
    if loaded in {"from", "to"} and operator in {0, 1}:
        return word, str(ip_address(value))
    if loaded in {"in", "out"} and operator in {0, 1} and value.endswith(b"\0"):
        return word, text(value, 0, len(value))
    return "other", loaded


def _matched(name: str, info: bytes) -> Part:
    if name == "comment":
        return "comment", text(info, 0, len(info))
    return ESTABLISHED if name == "conntrack" and info == _ESTABLISHED else ("other", name)


def _verdict(data: bytes) -> Part:
    """Read NFTA_VERDICT_CODE and NFTA_VERDICT_CHAIN of NFTA_DATA_VERDICT."""
    code, chain = 0, ""
    for _, start, end in attributes(data, 0):
        for kind, first, last in attributes(data, start, end):
            if kind == 1:
                code = int.from_bytes(data[first:last], "big", signed=True)
            elif kind == 2:
                chain = text(data, first, last)
    return _VERDICTS.get(code, "other"), chain


def _inner(data: bytes) -> bytes:
    """Return NFTA_DATA_VALUE, without what aligns it."""
    return b"".join(data[start:end] for _, start, end in attributes(data, 0))


def _number(data: bytes | None) -> int:
    return int.from_bytes(data or b"", "big")
