"""What every table of nf_tables has in common, as messages: encoded by pyroute2, without a socket.

Owns: the numbers of the kernel's interface, the bounds of a transaction, and the expressions of which rules consist.
Refuses: tables (`masquerade_messages` has ours, `reference.messages` that of the reference's plugins), and sending.
pyroute2 is imported by the first message.
"""

import struct
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final

from nodeplug_net.netlink.encoder import message_class

NFT_MSG_NEWTABLE: Final = 0
NFT_MSG_DELTABLE: Final = 2
NFT_MSG_NEWCHAIN: Final = 3
NFT_MSG_GETCHAIN: Final = 4
NFT_MSG_DELCHAIN: Final = 5
NFT_MSG_NEWRULE: Final = 6
NFT_MSG_GETRULE: Final = 7
NFT_MSG_DELRULE: Final = 8
NFT_MSG_NEWSET: Final = 9
NFT_MSG_GETSET: Final = 10
NFT_MSG_DELSET: Final = 11
NFT_MSG_NEWSETELEM: Final = 12
NFT_MSG_GETSETELEM: Final = 13
NFT_MSG_DELSETELEM: Final = 14
NFT_MSG_GETGEN: Final = 16
SUBSYSTEM: Final = 10 << 8  # NFNL_SUBSYS_NFTABLES
_BATCH_BEGIN: Final = 0x10
_BATCH_END: Final = 0x11
NFPROTO_INET: Final = 1
NFPROTO_IPV4: Final = 2
NFPROTO_BRIDGE: Final = 7
NFPROTO_IPV6: Final = 10

REQUEST: Final = 0x1
ASK: Final = 0x5  # NLM_F_REQUEST | NLM_F_ACK
ENSURE: Final = 0x405  # NLM_F_CREATE: what exists stays as it is
CREATE: Final = 0x605  # NLM_F_CREATE | NLM_F_EXCL
APPEND: Final = 0xC05  # NLM_F_CREATE | NLM_F_APPEND
DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
SRCNAT: Final = 100  # NF_IP_PRI_NAT_SRC
DSTNAT: Final = -100  # NF_IP_PRI_NAT_DST
PRE_ROUTING: Final = 0
LOCAL_OUT: Final = 3
POST_ROUTING: Final = 4
DROP: Final = 0
RETURN: Final = -5
JUMP: Final = -3
GOTO: Final = -4
MULTICAST: Final = (IPv4Network("224.0.0.0/4"), IPv6Network("ff00::/8"))

Network = IPv4Network | IPv6Network
Attributes = list[tuple[str, Any]]
Expression = dict[str, Attributes]


def encode(kind: str, number: int, flags: int, attrs: Attributes, family: int = NFPROTO_INET) -> bytes:
    """Encode one message with pyroute2's class of that name, for tables of one family."""
    message = message_class("netlink.nfnetlink.nftsocket", kind)()
    message["nfgen_family"] = family
    message["attrs"] = attrs
    message["header"]["type"] = number | SUBSYSTEM
    message["header"]["flags"] = flags
    message.encode()
    return bytes(message.data)


def nest(*attrs: tuple[str, Any]) -> dict[str, Attributes]:
    """Wrap attributes in one."""
    return {"attrs": list(attrs)}


def batch(number: int) -> bytearray:
    """Encode the beginning or the end of a transaction (struct nfgenmsg: family, version, resource id)."""
    return bytearray(struct.pack("=IHHIIBBH", 20, number, REQUEST, 0, 0, 0, 0, _htons(SUBSYSTEM >> 8)))


def _htons(number: int) -> int:
    return int.from_bytes(number.to_bytes(2, "big"), "little" if struct.pack("=H", 1)[0] else "big")


def begin(generation: int | None = None) -> bytearray:
    """Begin a transaction; with a generation it is refused (ERESTART) if any table has changed since."""
    data = batch(_BATCH_BEGIN)
    if generation is not None:
        data += struct.pack("=HH", 8, 1) + generation.to_bytes(4, "big")  # NFNL_BATCH_GENID
        struct.pack_into("=I", data, 0, len(data))
    return data


def get_generation() -> bytearray:
    """Query the number of transactions so far."""
    return bytearray(struct.pack("=IHHIIBBH", 20, NFT_MSG_GETGEN | SUBSYSTEM, ASK, 0, 0, 0, 0, 0))


def end() -> bytearray:
    """Commit a transaction."""
    return batch(_BATCH_END)


def expression(name: str, *data: tuple[str, Any]) -> Expression:
    """Return an expression of a rule by its name in the kernel."""
    return nest(("NFTA_EXPR_NAME", name), ("NFTA_EXPR_DATA", nest(*data)))


def value(data: bytes) -> dict[str, Attributes]:
    """Wrap what a register is compared with."""
    return nest(("NFTA_DATA_VALUE", data))


def compare(operator: int, data: bytes) -> Expression:
    """Compare register 1: 0 is equal, 1 is not equal."""
    return expression("cmp", ("NFTA_CMP_SREG", 1), ("NFTA_CMP_OP", operator), ("NFTA_CMP_DATA", value(data)))


def of_family(version: int) -> list[Expression]:
    """`meta nfproto ipv4`: in a table of family inet both families pass."""
    number = NFPROTO_IPV4 if version == 4 else NFPROTO_IPV6
    return [expression("meta", ("NFTA_META_KEY", 15), ("NFTA_META_DREG", 1)), compare(0, bytes([number]))]


def load(version: int, *, source: bool) -> Expression:
    """`ip saddr` or `ip daddr` into register 1: offsets in the IPv4 and IPv6 headers (RFC 791, RFC 8200)."""
    offset = (12 if source else 16) if version == 4 else (8 if source else 24)
    return expression(
        "payload",
        ("NFTA_PAYLOAD_DREG", 1),
        ("NFTA_PAYLOAD_BASE", 1),  # NFT_PAYLOAD_NETWORK_HEADER
        ("NFTA_PAYLOAD_OFFSET", offset),
        ("NFTA_PAYLOAD_LEN", 4 if version == 4 else 16),
    )


def destination(network: Network, operator: int) -> list[Expression]:
    """`ip daddr NETWORK` for operator 0 (equal), `ip daddr != NETWORK` for 1; the family comes first, in two."""
    mask = expression(
        "bitwise",
        ("NFTA_BITWISE_SREG", 1),
        ("NFTA_BITWISE_DREG", 1),
        ("NFTA_BITWISE_LEN", len(network.netmask.packed)),
        ("NFTA_BITWISE_MASK", value(network.netmask.packed)),
        ("NFTA_BITWISE_XOR", value(bytes(len(network.netmask.packed)))),
    )
    return [
        *of_family(network.version),
        load(network.version, source=False),
        mask,
        compare(operator, network.network_address.packed),
    ]


def verdict(code: int, chain: str = "") -> Expression:
    """`return` and `drop`, or `jump CHAIN` and `goto CHAIN`."""
    attrs: Attributes = [("NFTA_VERDICT_CODE", code), *([("NFTA_VERDICT_CHAIN", chain)] if chain else [])]
    data = nest(("NFTA_DATA_VERDICT", {"attrs": attrs}))
    return expression("immediate", ("NFTA_IMMEDIATE_DREG", 0), ("NFTA_IMMEDIATE_DATA", data))


def with_comment(encoded: bytes, comment: str) -> bytes:
    """Append NFTA_RULE_USERDATA to a rule; not every release of pyroute2 knows what is in it."""
    data = comment.encode() + b"\0"
    data = bytes([0, len(data)]) + data  # NFTNL_UDATA_RULE_COMMENT
    attribute = struct.pack("=HH", 4 + len(data), 7) + data
    whole = encoded + attribute.ljust((len(attribute) + 3) & ~3, b"\0")
    return struct.pack("=I", len(whole)) + whole[4:]
