"""Messages about the check of source MACs: table `bridge nat`, as the reference writes it (pkg/link/spoofcheck.go).

Owns: their shape and names, and reading a rule of it. Names are the reference's, so that either can end what the other
began: of a container's id and its interface's name, without the network's.
Refuses: sockets. pyroute2 is imported by the first message.

The shape, as nft(8) prints it, for interface eth0 of container c1:

    table bridge nat {
        chain PREROUTING {
            type filter hook prerouting priority -300; policy accept;
            iifname "veth1a2b3c4d" jump cni-br-iface-c1-eth0 comment "macspoofchk-c1-eth0"
        }
        chain cni-br-iface-c1-eth0 { jump cni-br-iface-c1-eth0-mac comment "macspoofchk-c1-eth0" }
        chain cni-br-iface-c1-eth0-mac {
            ether saddr 0a:58:0a:58:00:02 return comment "macspoofchk-c1-eth0"
            drop comment "macspoofchk-c1-eth0"
        }
    }
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from nodeplug_net.attachment import LABEL_LIMIT, Attachment
from nodeplug_net.netlink.connection import attributes, text
from nodeplug_net.netlink.messages import Template, mac_bytes
from nodeplug_net.nftables.encoding import (
    APPEND,
    ASK,
    CREATE,
    DROP,
    DUMP,
    ENSURE,
    JUMP,
    NFPROTO_BRIDGE,
    NFT_MSG_DELCHAIN,
    NFT_MSG_DELRULE,
    NFT_MSG_GETCHAIN,
    NFT_MSG_GETRULE,
    NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWRULE,
    NFT_MSG_NEWTABLE,
    PRE_ROUTING,
    RETURN,
    Attributes,
    Expression,
    compare,
    encode,
    expression,
    nest,
    verdict,
    with_comment,
)
from nodeplug_net.nftables.transactions import BODY
from nodeplug_net.reference.messages import expressions, verdict_chain

TABLE: Final = "nat"
HOOKED: Final = "PREROUTING"
CHAIN_PREFIX: Final = "cni-br-iface-"
_RULE_PREFIX: Final = "macspoofchk-"
_MAC_SUFFIX: Final = "-mac"
_PRIORITY: Final = -300
_IFNAMSIZ: Final = 16
_IIFNAME: Final = 6  # NFT_META_IIFNAME
_SENDER: Final = 6
"""Where the source address is in an Ethernet header, and how many bytes it has."""
_HOST: Final = b"\x7e" * _IFNAMSIZ
_MAC: Final = b"\x7d" * _SENDER
_REFERENCE: Final = "\x7f"
_COMMENT: Final = "\x7c"


@dataclass(slots=True)
class Check:
    """A rule of the table as the kernel lists it.

    Attributes:
        compared: with what the interface's name or the sender's MAC is compared; empty for a rule about everything.
        verdict: as nf_tables numbers it.
        jump: the chain where it jumps.
    """

    handle: int = 0
    compared: bytes = b""
    verdict: int | None = None
    jump: str = ""


def reference_of(attachment: Attachment) -> str:
    """Return what the reference tells attachments apart by (uniqueID)."""
    return f"{attachment.container_id}-{attachment.ifname}"


def chains_of(attachment: Attachment) -> tuple[str, str]:
    """Return the names of an attachment's chains: the interface's, and that of its MAC."""
    name = f"{CHAIN_PREFIX}{reference_of(attachment)}"
    return name, f"{name}{_MAC_SUFFIX}"


def interface(name: str) -> bytes:
    """Return what an interface's name is compared with."""
    return name.encode().ljust(_IFNAMSIZ, b"\0")


def setup(attachment: Attachment, host: str, mac: str) -> list[bytearray]:
    """Let only one MAC pass from an attachment; refused with EEXIST if it has a chain already.

    Args:
        attachment: the one that is checked.
        host: the name of its port of the bridge.
        mac: `aa:bb:cc:dd:ee:ff`.
    """
    reference = reference_of(attachment)
    comment = f"{_RULE_PREFIX}{reference}"[:LABEL_LIMIT]
    values = {
        "reference": reference.encode(),
        "comment": comment.encode(),
        "host": interface(host),
        "mac": mac_bytes(mac),
    }
    templates = _setup(len(values["reference"]), len(values["comment"]))
    return [bytearray(_base()[0]), bytearray(_base()[1]), *(template.fill(**values) for template in templates)]


@cache
def _base() -> tuple[bytes, bytes]:
    hook = nest(("NFTA_HOOK_HOOKNUM", PRE_ROUTING), ("NFTA_HOOK_PRIORITY", _PRIORITY))
    chain: Attributes = [
        ("NFTA_CHAIN_TABLE", TABLE),
        ("NFTA_CHAIN_NAME", HOOKED),
        ("NFTA_CHAIN_HOOK", hook),
        ("NFTA_CHAIN_POLICY", 1),  # NF_ACCEPT
        ("NFTA_CHAIN_TYPE", "filter"),
    ]
    return (
        encode("nft_table_msg", NFT_MSG_NEWTABLE, ENSURE, [("NFTA_TABLE_NAME", TABLE)], NFPROTO_BRIDGE),
        encode("nft_chain_msg", NFT_MSG_NEWCHAIN, ENSURE, chain, NFPROTO_BRIDGE),
    )


@lru_cache(maxsize=64)
def _setup(reference: int, comment: int) -> tuple[Template, ...]:
    """Encode what is written for attachments whose names have these lengths; ids of one runtime have one length."""
    name = f"{CHAIN_PREFIX}{_REFERENCE * reference}"
    sentinels = {
        "reference": (_REFERENCE * reference).encode(),
        "comment": (_COMMENT * comment).encode(),
        "host": _HOST,
        "mac": _MAC,
    }
    load_name = expression("meta", ("NFTA_META_KEY", _IIFNAME), ("NFTA_META_DREG", 1))
    load_sender = expression(
        "payload",
        ("NFTA_PAYLOAD_DREG", 1),
        ("NFTA_PAYLOAD_BASE", 0),  # NFT_PAYLOAD_LL_HEADER
        ("NFTA_PAYLOAD_OFFSET", _SENDER),
        ("NFTA_PAYLOAD_LEN", len(_MAC)),
    )
    rules = [
        (HOOKED, [load_name, compare(0, _HOST), verdict(JUMP, name)]),
        (name, [verdict(JUMP, name + _MAC_SUFFIX)]),
        (name + _MAC_SUFFIX, [load_sender, compare(0, _MAC), verdict(RETURN)]),
        (name + _MAC_SUFFIX, [verdict(DROP)]),
    ]
    encoded = [
        _chain(name, CREATE),
        _chain(name + _MAC_SUFFIX, ENSURE),
        _flush(name + _MAC_SUFFIX),
        *(with_comment(_rule(chain, parts), _COMMENT * comment) for chain, parts in rules),
    ]
    return tuple(
        Template(data, **{key: (one, data.count(one)) for key, one in sentinels.items() if one in data})
        for data in encoded
    )


def _chain(name: str, flags: int) -> bytes:
    attrs: Attributes = [("NFTA_CHAIN_TABLE", TABLE), ("NFTA_CHAIN_NAME", name)]
    return encode("nft_chain_msg", NFT_MSG_NEWCHAIN, flags, attrs, NFPROTO_BRIDGE)


def _flush(chain: str) -> bytes:
    attrs: Attributes = [("NFTA_RULE_TABLE", TABLE), ("NFTA_RULE_CHAIN", chain)]
    return encode("nft_rule_msg", NFT_MSG_DELRULE, ASK, attrs, NFPROTO_BRIDGE)


def _rule(chain: str, parts: list[Expression]) -> bytes:
    attrs: Attributes = [
        ("NFTA_RULE_TABLE", TABLE),
        ("NFTA_RULE_CHAIN", chain),
        ("NFTA_RULE_EXPRESSIONS", parts),
    ]
    return encode("nft_rule_msg", NFT_MSG_NEWRULE, APPEND, attrs, NFPROTO_BRIDGE)


@lru_cache(maxsize=64)
def _get_chain(length: int) -> Template:
    sentinel = _REFERENCE * length
    attrs: Attributes = [("NFTA_CHAIN_TABLE", TABLE), ("NFTA_CHAIN_NAME", sentinel)]
    data = encode("nft_chain_msg", NFT_MSG_GETCHAIN, ASK, attrs, NFPROTO_BRIDGE)
    return Template(data, name=(sentinel.encode(), 1))


def get_chain(name: str) -> bytearray:
    """Query a chain; ENOENT if it does not exist."""
    encoded = name.encode()
    return _get_chain(len(encoded)).fill(name=encoded)


def dump_rules(chain: str) -> bytearray:
    """List the rules of a chain."""
    attrs: Attributes = [("NFTA_RULE_TABLE", TABLE), ("NFTA_RULE_CHAIN", chain)]
    return bytearray(encode("nft_rule_msg", NFT_MSG_GETRULE, DUMP, attrs, NFPROTO_BRIDGE))


def delete_rule(handle: int) -> bytearray:
    """Delete one rule of the hooked chain by its handle."""
    attrs: Attributes = [("NFTA_RULE_TABLE", TABLE), ("NFTA_RULE_CHAIN", HOOKED), ("NFTA_RULE_HANDLE", handle)]
    return bytearray(encode("nft_rule_msg", NFT_MSG_DELRULE, ASK, attrs, NFPROTO_BRIDGE))


def delete_chain(name: str) -> list[bytearray]:
    """Empty a chain and delete it; nothing may jump there."""
    attrs: Attributes = [("NFTA_CHAIN_TABLE", TABLE), ("NFTA_CHAIN_NAME", name)]
    itself = encode("nft_chain_msg", NFT_MSG_DELCHAIN, ASK, attrs, NFPROTO_BRIDGE)
    return [bytearray(_flush(name)), bytearray(itself)]


def parse_rule(message: bytes) -> Check:
    """Read an NFT_MSG_NEWRULE message (struct nfgenmsg after the header, attributes from byte 20)."""
    rule = Check()
    for kind, start, end in attributes(message, BODY):
        if kind == 3:  # NFTA_RULE_HANDLE
            rule.handle = int.from_bytes(message[start:end], "big")
        elif kind == 4:  # NFTA_RULE_EXPRESSIONS
            for name, data in expressions(message, start, end):
                if name == "cmp":
                    rule.compared = _value(data.get(3, b""))  # NFTA_CMP_DATA
                elif name == "immediate":  # NFTA_IMMEDIATE_DATA
                    rule.verdict = _verdict(data.get(2, b""))
                    rule.jump = verdict_chain(data.get(2, b""))
    return rule


def _value(data: bytes) -> bytes:
    """Return NFTA_DATA_VALUE, without what aligns it."""
    return b"".join(data[start:end] for _, start, end in attributes(data, 0))


def _verdict(data: bytes) -> int | None:
    """Return NFTA_VERDICT_CODE of NFTA_DATA_VERDICT."""
    for _, start, end in attributes(data, 0):
        for kind, first, last in attributes(data, start, end):
            if kind == 1:
                return int.from_bytes(data[first:last], "big", signed=True)
    return None


def interface_of(rule: Check) -> str:
    """Return the name of the interface that a rule of the hooked chain is about."""
    return text(rule.compared, 0, len(rule.compared))
