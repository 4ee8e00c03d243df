"""Messages about tables of the reference's plugins: `nat` as iptables-nft(8) keeps it, and `cni_plugins_masquerade`.

Owns: their shape, as the reference writes it (ipmasq_nftables_linux.go), and reading a rule from its expressions.
Refuses: sockets. pyroute2 is imported by the first message.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_network
from typing import Final

from nodeplug_net.netlink.connection import attributes, text
from nodeplug_net.netlink.routes import Interface
from nodeplug_net.nftables.encoding import (
    APPEND,
    ASK,
    DUMP,
    ENSURE,
    GOTO,
    MULTICAST,
    NFT_MSG_DELCHAIN,
    NFT_MSG_DELRULE,
    NFT_MSG_GETRULE,
    NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWRULE,
    NFT_MSG_NEWTABLE,
    POST_ROUTING,
    RETURN,
    SRCNAT,
    Attributes,
    Expression,
    Network,
    compare,
    destination,
    encode,
    expression,
    load,
    nest,
    of_family,
    verdict,
    with_comment,
)
from nodeplug_net.nftables.transactions import BODY

TABLE: Final = "cni_plugins_masquerade"
CHECKS: Final = "masq_checks"
HOOKED: Final = "postrouting"
NAT: Final = "nat"
POSTROUTING: Final = "POSTROUTING"

_WIDTHS: Final = {12: 4, 8: 16}
"""Where a source address is in the header of IPv4 and IPv6, and how many bytes it has."""


@dataclass(slots=True)
class Read:
    """A rule as the kernel lists it.

    Attributes:
        source: the addresses that it is about; None for a rule about something else.
        comment: of nft(8), or of iptables(8).
        jump: the chain where it jumps; empty for a rule that does not.
        register: of the address that was loaded last: where it is in the header, and how many bits are compared.
    """

    handle: int = 0
    source: Network | None = None
    comment: str = ""
    jump: str = ""
    register: tuple[int, int] = (0, 0)


def parse_rule(message: bytes) -> Read:
    """Read an NFT_MSG_NEWRULE message (struct nfgenmsg after the header, attributes from byte 20)."""
    rule = Read()
    for kind, start, end in attributes(message, BODY):
        if kind == 3:  # NFTA_RULE_HANDLE
            rule.handle = int.from_bytes(message[start:end], "big")
        elif kind == 4:  # NFTA_RULE_EXPRESSIONS
            for name, data in expressions(message, start, end):
                _take(rule, name, data)
        elif kind == 7 and message[start] == 0:  # NFTA_RULE_USERDATA, NFTNL_UDATA_RULE_COMMENT
            rule.comment = text(message, start + 2, end)
    return rule


def expressions(message: bytes, start: int, end: int) -> Iterator[tuple[str, dict[int, bytes]]]:
    """Walk the expressions of a rule: the name of each, and its attributes by their numbers."""
    for _, first, last in attributes(message, start, end):  # NFTA_LIST_ELEM
        name, data = "", {}
        for kind, begin, stop in attributes(message, first, last):
            if kind == 1:  # NFTA_EXPR_NAME
                name = text(message, begin, stop)
            elif kind == 2:  # NFTA_EXPR_DATA
                data = {number: message[one:two] for number, one, two in attributes(message, begin, stop)}
        yield name, data


def _take(rule: Read, name: str, data: dict[int, bytes]) -> None:
    if name == "payload":  # NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN
        rule.register = (_number(data.get(3)), 8 * _number(data.get(4)))
    elif name == "bitwise":  # NFTA_BITWISE_MASK, inside one NFTA_DATA_VALUE
        rule.register = (rule.register[0], int.from_bytes(data.get(4, b"")[4:], "big").bit_count())
    elif name == "cmp" and rule.source is None and not _number(data.get(2)):  # NFTA_CMP_OP, NFT_CMP_EQ
        offset, bits = rule.register
        packed = data.get(3, b"")[4:].ljust(_WIDTHS.get(offset, 0), b"\0")  # NFTA_CMP_DATA, inside one NFTA_DATA_VALUE
        if offset in _WIDTHS and len(packed) == _WIDTHS[offset]:
            rule.source = ip_network((packed, bits), strict=False)
    elif name == "match" and text(data.get(1, b""), 0, 8) == "comment":  # NFTA_MATCH_NAME, NFTA_MATCH_INFO
        rule.comment = text(data.get(3, b""), 0, len(data.get(3, b"")))
    elif name == "immediate":
        rule.jump = verdict_chain(data.get(2, b""))  # NFTA_IMMEDIATE_DATA


def _number(data: bytes | None) -> int:
    return int.from_bytes(data or b"", "big")


def verdict_chain(data: bytes) -> str:
    """Return NFTA_VERDICT_CHAIN of NFTA_DATA_VERDICT."""
    chains = [
        text(data, first, last)
        for _, start, end in attributes(data, 0)
        for kind, first, last in attributes(data, start, end)
        if kind == 2
    ]
    return chains[0] if chains else ""


@cache
def _dump(family: int, table: str, chain: str) -> bytes:
    attrs: Attributes = [("NFTA_RULE_TABLE", table), ("NFTA_RULE_CHAIN", chain)]
    return encode("nft_rule_msg", NFT_MSG_GETRULE, DUMP, attrs, family)


def dump_rules(family: int, table: str, chain: str) -> bytearray:
    """List the rules of a chain."""
    return bytearray(_dump(family, table, chain))


def delete_rule(family: int, table: str, chain: str, handle: int) -> bytearray:
    """Delete one rule by its handle, which the kernel gives to no other."""
    attrs: Attributes = [("NFTA_RULE_TABLE", table), ("NFTA_RULE_CHAIN", chain), ("NFTA_RULE_HANDLE", handle)]
    return bytearray(encode("nft_rule_msg", NFT_MSG_DELRULE, ASK, attrs, family))


def delete_chain(family: int, chain: str) -> list[bytearray]:
    """Empty a chain of table `nat` and delete it; nothing may jump there."""
    rules: Attributes = [("NFTA_RULE_TABLE", NAT), ("NFTA_RULE_CHAIN", chain)]
    itself: Attributes = [("NFTA_CHAIN_TABLE", NAT), ("NFTA_CHAIN_NAME", chain)]
    return [
        bytearray(encode("nft_rule_msg", NFT_MSG_DELRULE, ASK, rules, family)),
        bytearray(encode("nft_chain_msg", NFT_MSG_DELCHAIN, ASK, itself, family)),
    ]


def table() -> list[bytearray]:
    """Create the reference's table and chains if they are missing, and the rules of the hooked one anew."""
    hook = nest(("NFTA_HOOK_HOOKNUM", POST_ROUTING), ("NFTA_HOOK_PRIORITY", SRCNAT))
    hooked: Attributes = [
        ("NFTA_CHAIN_TABLE", TABLE),
        ("NFTA_CHAIN_NAME", HOOKED),
        ("NFTA_CHAIN_HOOK", hook),
        ("NFTA_CHAIN_POLICY", 1),  # NF_ACCEPT
        ("NFTA_CHAIN_TYPE", "nat"),
    ]
    checks: Attributes = [("NFTA_CHAIN_TABLE", TABLE), ("NFTA_CHAIN_NAME", CHECKS)]
    flush: Attributes = [("NFTA_RULE_TABLE", TABLE), ("NFTA_RULE_CHAIN", HOOKED)]
    encoded = (
        encode("nft_table_msg", NFT_MSG_NEWTABLE, ENSURE, [("NFTA_TABLE_NAME", TABLE)]),
        encode("nft_chain_msg", NFT_MSG_NEWCHAIN, ENSURE, checks),
        encode("nft_chain_msg", NFT_MSG_NEWCHAIN, ENSURE, hooked),
        encode("nft_rule_msg", NFT_MSG_DELRULE, ASK, flush),
        *(_rule(HOOKED, [*destination(multicast, 0), verdict(RETURN)]) for multicast in MULTICAST),
        _rule(HOOKED, [verdict(GOTO, CHECKS)]),
    )
    return [bytearray(message) for message in encoded]


def masquerade(address: Interface, comment: str) -> bytearray:
    """Add the rule of an address, as the reference writes it."""
    version = address.version
    own = [*of_family(version), load(version, source=True), compare(0, address.ip.packed)]
    return bytearray(_rule(CHECKS, [*own, *destination(address.network, 1)[2:], expression("masq")], comment))


def _rule(chain: str, expressions: list[Expression], comment: str = "") -> bytes:
    attrs: Attributes = [
        ("NFTA_RULE_TABLE", TABLE),
        ("NFTA_RULE_CHAIN", chain),
        ("NFTA_RULE_EXPRESSIONS", expressions),
    ]
    encoded = encode("nft_rule_msg", NFT_MSG_NEWRULE, APPEND, attrs)
    return encoded if not comment else with_comment(encoded, comment)
