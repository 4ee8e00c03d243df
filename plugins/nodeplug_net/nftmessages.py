"""nf_tables messages: encoded once by pyroute2, patched for each request.

Owns: the shape of the table `inet nodeplug_masquerade`, as messages.
Refuses: sockets, and the decision what to send when (see `masquerade`). pyroute2 is imported by the first message.

The shape, as nft(8) prints it:

    table inet nodeplug_masquerade {
        set net_10.88.0.0/16 { type ipv4_addr; elements = { 10.88.0.5 comment "nodeplug <network> <id> eth0" } }
        chain postrouting {
            type nat hook postrouting priority srcnat; policy accept;
            ip daddr 224.0.0.0/4 return
            ip6 daddr ff00::/8 return
            ip saddr @net_10.88.0.0/16 ip daddr != 10.88.0.0/16 masquerade
        }
    }

One set and one rule for each subnet: the cost of a packet does not grow with the number of containers.
"""

import struct
from collections.abc import Iterable
from functools import cache, lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final

from nodeplug_net.attachment import LABEL_LIMIT
from nodeplug_net.encoder import message_class
from nodeplug_net.messages import Template

TABLE: Final = "nodeplug_masquerade"
CHAIN: Final = "postrouting"
_SET_PREFIX: Final = "net_"

NFT_MSG_NEWTABLE: Final = 0
NFT_MSG_DELTABLE: Final = 2
NFT_MSG_NEWCHAIN: Final = 3
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
_SUBSYSTEM: Final = 10 << 8  # NFNL_SUBSYS_NFTABLES
_BATCH_BEGIN: Final = 0x10
_BATCH_END: Final = 0x11
_NFPROTO_INET: Final = 1
_NFPROTO_IPV4: Final = 2
_NFPROTO_IPV6: Final = 10

_LOOKUP_SET: Final = 1
_REQUEST: Final = 0x1
_ASK: Final = 0x5  # NLM_F_REQUEST | NLM_F_ACK
_ENSURE: Final = 0x405  # NLM_F_CREATE: what exists stays as it is
_CREATE: Final = 0x605  # NLM_F_CREATE | NLM_F_EXCL
_APPEND: Final = 0xC05  # NLM_F_CREATE | NLM_F_APPEND
_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_SRCNAT: Final = 100  # NF_IP_PRI_NAT_SRC
_POST_ROUTING: Final = 4
_RETURN: Final = "NFT_RETURN"

_LABEL: Final = b"nodeplug~label~".ljust(LABEL_LIMIT, b"~")
_KEYS: Final = {4: bytes.fromhex("7a11b0c5"), 6: bytes.fromhex("7a11b0c5d6e7f8091a2b3c4d5e6f7081")}

Network = IPv4Network | IPv6Network
Attributes = list[tuple[str, Any]]


def set_name(network: Network) -> str:
    """Name the set of a subnet; nft(8) accepts no colon in a name."""
    return _SET_PREFIX + str(network).replace(":", "_")


def network_of(name: str) -> Network | None:
    """Return the subnet of a set, or None for a foreign set."""
    text = name.removeprefix(_SET_PREFIX)
    try:
        return IPv6Network(text.replace("_", ":")) if "_" in text else IPv4Network(text)
    except ValueError:
        return None


def _encode(kind: str, number: int, flags: int, attrs: Attributes) -> bytes:
    message = message_class("netlink.nfnetlink.nftsocket", kind)()
    message["nfgen_family"] = _NFPROTO_INET
    message["attrs"] = attrs
    message["header"]["type"] = number | _SUBSYSTEM
    message["header"]["flags"] = flags
    message.encode()
    return bytes(message.data)


def _nest(*attrs: tuple[str, Any]) -> dict[str, Attributes]:
    return {"attrs": list(attrs)}


def batch(number: int) -> bytearray:
    """Encode the beginning or the end of a transaction (struct nfgenmsg: family, version, resource id)."""
    return bytearray(struct.pack("=IHHIIBBH", 20, number, _REQUEST, 0, 0, 0, 0, _htons(_SUBSYSTEM >> 8)))


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
    return bytearray(struct.pack("=IHHIIBBH", 20, NFT_MSG_GETGEN | _SUBSYSTEM, _ASK, 0, 0, 0, 0, 0))


def end() -> bytearray:
    """Commit a transaction."""
    return batch(_BATCH_END)


@cache
def _table() -> tuple[bytes, ...]:
    hook = _nest(("NFTA_HOOK_HOOKNUM", _POST_ROUTING), ("NFTA_HOOK_PRIORITY", _SRCNAT))
    chain: Attributes = [
        ("NFTA_CHAIN_TABLE", TABLE),
        ("NFTA_CHAIN_NAME", CHAIN),
        ("NFTA_CHAIN_HOOK", hook),
        ("NFTA_CHAIN_POLICY", 1),  # NF_ACCEPT
        ("NFTA_CHAIN_TYPE", "nat"),
    ]
    verdict = _nest(("NFTA_DATA_VERDICT", _nest(("NFTA_VERDICT_CODE", -5))))  # NFT_RETURN
    leave = _expression("immediate", ("NFTA_IMMEDIATE_DREG", 0), ("NFTA_IMMEDIATE_DATA", verdict))
    return (
        _encode("nft_table_msg", NFT_MSG_NEWTABLE, _ENSURE, [("NFTA_TABLE_NAME", TABLE)]),
        _encode("nft_chain_msg", NFT_MSG_NEWCHAIN, _ENSURE, chain),
        _encode("nft_rule_msg", NFT_MSG_DELRULE, _ASK, [("NFTA_RULE_TABLE", TABLE), ("NFTA_RULE_CHAIN", CHAIN)]),
        *(
            _rule([*_destination(IPv4Network(multicast) if "." in multicast else IPv6Network(multicast), 0), leave])
            for multicast in ("224.0.0.0/4", "ff00::/8")
        ),
    )


@lru_cache(maxsize=64)
def _subnet(network: Network) -> tuple[bytes, ...]:
    version, name = network.version, set_name(network)
    new_set: Attributes = [
        ("NFTA_SET_TABLE", TABLE),
        ("NFTA_SET_NAME", name),
        ("NFTA_SET_KEY_TYPE", 7 if version == 4 else 8),  # nft's ipv4_addr, ipv6_addr
        ("NFTA_SET_KEY_LEN", 4 if version == 4 else 16),
        ("NFTA_SET_ID", 1),
    ]
    lookup = _expression("lookup", ("NFTA_LOOKUP_SET", name), ("NFTA_LOOKUP_SREG", 1), ("NFTA_LOOKUP_SET_ID", 1))
    rule = [*_family(version), _load(version, source=True), lookup, *_destination(network, 1)[2:], _expression("masq")]
    return (_encode("nft_set_msg", NFT_MSG_NEWSET, _ENSURE, new_set), _rule(rule))


def rebuild(networks: Iterable[Network]) -> list[bytearray]:
    """Create the table and its chain if they are missing, and replace the chain's rules: multicast, and each subnet's.

    Existing sets keep their elements. A rule that is left out is gone afterwards, so the list must be complete.
    """
    subnets = [message for network in networks for message in _subnet(network)]
    return [bytearray(message) for message in (*_table(), *subnets)]


def delete_set(network: Network) -> bytearray:
    """Delete the set of a subnet with its elements; no rule may refer to it."""
    attrs: Attributes = [("NFTA_SET_TABLE", TABLE), ("NFTA_SET_NAME", set_name(network))]
    return bytearray(_encode("nft_set_msg", NFT_MSG_DELSET, _ASK, attrs))


def delete_table() -> bytearray:
    """Delete the table with everything in it."""
    return bytearray(_encode("nft_table_msg", NFT_MSG_DELTABLE, _ASK, [("NFTA_TABLE_NAME", TABLE)]))


@cache
def _dump_rules() -> bytes:
    attrs: Attributes = [("NFTA_RULE_TABLE", TABLE), ("NFTA_RULE_CHAIN", CHAIN)]
    return _encode("nft_rule_msg", NFT_MSG_GETRULE, _DUMP, attrs)


def dump_rules() -> bytearray:
    """List the rules of the chain."""
    return bytearray(_dump_rules())


def names_set(network: Network) -> bytes:
    """Return the bytes that only the rule of a subnet contains: the attribute NFTA_LOOKUP_SET with its set."""
    return struct.pack("=H", _LOOKUP_SET) + set_name(network).encode() + b"\0"


def _rule(expressions: list[dict[str, Attributes]]) -> bytes:
    attrs: Attributes = [
        ("NFTA_RULE_TABLE", TABLE),
        ("NFTA_RULE_CHAIN", CHAIN),
        ("NFTA_RULE_EXPRESSIONS", expressions),
    ]
    return _encode("nft_rule_msg", NFT_MSG_NEWRULE, _APPEND, attrs)


def _expression(name: str, *data: tuple[str, Any]) -> dict[str, Attributes]:
    return _nest(("NFTA_EXPR_NAME", name), ("NFTA_EXPR_DATA", _nest(*data)))


def _value(data: bytes) -> dict[str, Attributes]:
    return _nest(("NFTA_DATA_VALUE", data))


def _compare(operator: int, data: bytes) -> dict[str, Attributes]:
    return _expression("cmp", ("NFTA_CMP_SREG", 1), ("NFTA_CMP_OP", operator), ("NFTA_CMP_DATA", _value(data)))


def _family(version: int) -> list[dict[str, Attributes]]:
    """`meta nfproto ipv4`: in a table of family inet both families pass."""
    number = _NFPROTO_IPV4 if version == 4 else _NFPROTO_IPV6
    return [_expression("meta", ("NFTA_META_KEY", 15), ("NFTA_META_DREG", 1)), _compare(0, bytes([number]))]


def _load(version: int, *, source: bool) -> dict[str, Attributes]:
    """`ip saddr` or `ip daddr` into register 1: offsets in the IPv4 and IPv6 headers (RFC 791, RFC 8200)."""
    offset = (12 if source else 16) if version == 4 else (8 if source else 24)
    return _expression(
        "payload",
        ("NFTA_PAYLOAD_DREG", 1),
        ("NFTA_PAYLOAD_BASE", 1),  # NFT_PAYLOAD_NETWORK_HEADER
        ("NFTA_PAYLOAD_OFFSET", offset),
        ("NFTA_PAYLOAD_LEN", 4 if version == 4 else 16),
    )


def _destination(network: Network, operator: int) -> list[dict[str, Attributes]]:
    """`ip daddr NETWORK` for operator 0 (equal), `ip daddr != NETWORK` for 1; the family comes first, in two."""
    mask = _expression(
        "bitwise",
        ("NFTA_BITWISE_SREG", 1),
        ("NFTA_BITWISE_DREG", 1),
        ("NFTA_BITWISE_LEN", len(network.netmask.packed)),
        ("NFTA_BITWISE_MASK", _value(network.netmask.packed)),
        ("NFTA_BITWISE_XOR", _value(bytes(len(network.netmask.packed)))),
    )
    return [
        *_family(network.version),
        _load(network.version, source=False),
        mask,
        _compare(operator, network.network_address.packed),
    ]


@lru_cache(maxsize=256)
def element(number: int, flags: int, name: str, version: int) -> Template:
    """NEWSETELEM or DELSETELEM with the hole `key`; NEWSETELEM has the hole `label` too."""
    item: Attributes = [("NFTA_SET_ELEM_KEY", _value(_KEYS[version]))]
    holes = {"key": (_KEYS[version], 1)}
    if number == NFT_MSG_NEWSETELEM:
        item.append(("NFTA_SET_ELEM_USERDATA", [("NFTNL_UDATA_SET_ELEM_COMMENT", _LABEL + b"\0")]))
        holes["label"] = (_LABEL, 1)
    attrs: Attributes = [
        ("NFTA_SET_ELEM_LIST_TABLE", TABLE),
        ("NFTA_SET_ELEM_LIST_SET", name),
        ("NFTA_SET_ELEM_LIST_ELEMENTS", [_nest(*item)]),
    ]
    return Template(_encode("nft_set_elem_list_msg", number, flags, attrs), **holes)


def new_element(network: Network, key: bytes, label: str, *, keep: bool = False) -> bytearray:
    """Add an address to the set of its subnet; an existing one is refused with EEXIST, or kept with its label."""
    template = element(NFT_MSG_NEWSETELEM, _ENSURE if keep else _CREATE, set_name(network), network.version)
    return template.fill(key=key, label=label.encode())


def delete_element(network: Network, key: bytes) -> bytearray:
    """Remove an address from the set of its subnet."""
    return element(NFT_MSG_DELSETELEM, _ASK, set_name(network), network.version).fill(key=key)


@cache
def _dump_sets() -> bytes:
    return _encode("nft_set_msg", NFT_MSG_GETSET, _DUMP, [("NFTA_SET_TABLE", TABLE)])


def dump_sets() -> bytearray:
    """List the sets of the table."""
    return bytearray(_dump_sets())


@lru_cache(maxsize=64)
def _dump_elements(name: str) -> bytes:
    attrs: Attributes = [("NFTA_SET_ELEM_LIST_TABLE", TABLE), ("NFTA_SET_ELEM_LIST_SET", name)]
    return _encode("nft_set_elem_list_msg", NFT_MSG_GETSETELEM, _DUMP, attrs)


def dump_elements(name: str) -> bytearray:
    """List the elements of a set."""
    return bytearray(_dump_elements(name))
