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
        chain invalid {                                      # where a network asks for it
            type filter hook forward priority filter; policy accept;
            ct state invalid ip saddr @net_10.88.0.0/16 ip daddr != 10.88.0.0/16 drop
        }
    }

One set and one rule for each subnet: the cost of a packet does not grow with the number of containers. What belongs to
no connection never comes to a chain of type nat, and would leave with the container's address: hence the second chain.
"""

import struct
from collections.abc import Collection, Iterable
from functools import cache, lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from nodeplug_net.attachment import LABEL_LIMIT
from nodeplug_net.netlink.messages import Template
from nodeplug_net.nftables.encoding import (
    APPEND,
    ASK,
    CREATE,
    DROP,
    DUMP,
    ENSURE,
    MULTICAST,
    NFT_MSG_DELCHAIN,
    NFT_MSG_DELRULE,
    NFT_MSG_DELSET,
    NFT_MSG_DELSETELEM,
    NFT_MSG_DELTABLE,
    NFT_MSG_GETRULE,
    NFT_MSG_GETSET,
    NFT_MSG_GETSETELEM,
    NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWRULE,
    NFT_MSG_NEWSET,
    NFT_MSG_NEWSETELEM,
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
    value,
    verdict,
)

TABLE: Final = "nodeplug_masquerade"
CHAIN: Final = "postrouting"
INVALID: Final = "invalid"
_FORWARD: Final = 2  # NF_INET_FORWARD
_FILTER: Final = 0  # NF_IP_PRI_FILTER
_SET_PREFIX: Final = "net_"

_LOOKUP_SET: Final = 1
_IN_INVALID: Final = struct.pack("=HH", 4 + len(INVALID) + 1, 2) + INVALID.encode() + b"\0"
_LABEL: Final = b"nodeplug~label~".ljust(LABEL_LIMIT, b"~")
_KEYS: Final = {4: bytes.fromhex("7a11b0c5"), 6: bytes.fromhex("7a11b0c5d6e7f8091a2b3c4d5e6f7081")}


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


@cache
def _table() -> tuple[bytes, ...]:
    hook = nest(("NFTA_HOOK_HOOKNUM", POST_ROUTING), ("NFTA_HOOK_PRIORITY", SRCNAT))
    chain: Attributes = [
        ("NFTA_CHAIN_TABLE", TABLE),
        ("NFTA_CHAIN_NAME", CHAIN),
        ("NFTA_CHAIN_HOOK", hook),
        ("NFTA_CHAIN_POLICY", 1),  # NF_ACCEPT
        ("NFTA_CHAIN_TYPE", "nat"),
    ]
    return (
        encode("nft_table_msg", NFT_MSG_NEWTABLE, ENSURE, [("NFTA_TABLE_NAME", TABLE)]),
        encode("nft_chain_msg", NFT_MSG_NEWCHAIN, ENSURE, chain),
        encode("nft_rule_msg", NFT_MSG_DELRULE, ASK, [("NFTA_RULE_TABLE", TABLE), ("NFTA_RULE_CHAIN", CHAIN)]),
        *(_rule([*destination(multicast, 0), verdict(RETURN)]) for multicast in MULTICAST),
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
    rule = [*_leaving(network), expression("masq")]
    return (encode("nft_set_msg", NFT_MSG_NEWSET, ENSURE, new_set), _rule(rule))


def _leaving(network: Network) -> list[Expression]:
    """Match what a subnet's containers send to elsewhere."""
    version, name = network.version, set_name(network)
    lookup = expression("lookup", ("NFTA_LOOKUP_SET", name), ("NFTA_LOOKUP_SREG", 1), ("NFTA_LOOKUP_SET_ID", 1))
    return [*of_family(version), load(version, source=True), lookup, *destination(network, 1)[2:]]


@lru_cache(maxsize=64)
def _drop(network: Network) -> bytes:
    """Drop what of it belongs to no connection: NFT_CT_STATE has NF_CT_STATE_INVALID_BIT."""
    bit = struct.pack("=I", 1)
    masked = expression(
        "bitwise",
        ("NFTA_BITWISE_SREG", 1),
        ("NFTA_BITWISE_DREG", 1),
        ("NFTA_BITWISE_LEN", 4),
        ("NFTA_BITWISE_MASK", value(bit)),
        ("NFTA_BITWISE_XOR", value(bytes(4))),
    )
    state = [expression("ct", ("NFTA_CT_KEY", 0), ("NFTA_CT_DREG", 1)), masked, compare(1, bytes(4))]
    return _rule([*state, *_leaving(network), verdict(DROP)], INVALID)


@cache
def _invalid() -> tuple[bytes, ...]:
    hook = nest(("NFTA_HOOK_HOOKNUM", _FORWARD), ("NFTA_HOOK_PRIORITY", _FILTER))
    chain: Attributes = [
        ("NFTA_CHAIN_TABLE", TABLE),
        ("NFTA_CHAIN_NAME", INVALID),
        ("NFTA_CHAIN_HOOK", hook),
        ("NFTA_CHAIN_POLICY", 1),  # NF_ACCEPT
        ("NFTA_CHAIN_TYPE", "filter"),
    ]
    rules: Attributes = [("NFTA_RULE_TABLE", TABLE), ("NFTA_RULE_CHAIN", INVALID)]
    return (
        encode("nft_chain_msg", NFT_MSG_NEWCHAIN, ENSURE, chain),
        encode("nft_rule_msg", NFT_MSG_DELRULE, ASK, rules),
    )


def rebuild(networks: Iterable[Network], strict: Collection[Network] = ()) -> list[bytearray]:
    """Create the table and its chains if they are missing, and replace their rules: multicast, and each subnet's.

    Existing sets keep their elements. A rule that is left out is gone afterwards, so the lists must be complete.

    Args:
        networks: those that are masqueraded.
        strict: those of them from which nothing leaves that belongs to no connection.
    """
    subnets = [message for network in networks for message in _subnet(network)]
    dropping = [*_invalid(), *map(_drop, strict)] if strict else []
    return [bytearray(message) for message in (*_table(), *subnets, *dropping)]


def delete_invalid() -> list[bytearray]:
    """Delete the chain that drops, there or not; before sets to which its rules refer."""
    attrs: Attributes = [("NFTA_CHAIN_TABLE", TABLE), ("NFTA_CHAIN_NAME", INVALID)]
    return [bytearray(one) for one in (*_invalid(), encode("nft_chain_msg", NFT_MSG_DELCHAIN, ASK, attrs))]


def delete_set(network: Network) -> bytearray:
    """Delete the set of a subnet with its elements; no rule may refer to it."""
    attrs: Attributes = [("NFTA_SET_TABLE", TABLE), ("NFTA_SET_NAME", set_name(network))]
    return bytearray(encode("nft_set_msg", NFT_MSG_DELSET, ASK, attrs))


def delete_table() -> bytearray:
    """Delete the table with everything in it."""
    return bytearray(encode("nft_table_msg", NFT_MSG_DELTABLE, ASK, [("NFTA_TABLE_NAME", TABLE)]))


@cache
def _dump_rules() -> bytes:
    return encode("nft_rule_msg", NFT_MSG_GETRULE, DUMP, [("NFTA_RULE_TABLE", TABLE)])


def dump_rules() -> bytearray:
    """List the rules of both chains."""
    return bytearray(_dump_rules())


def drops(message: bytes) -> bool:
    """Whether a rule that was listed is one of the chain that drops (NFTA_RULE_CHAIN)."""
    return _IN_INVALID in message


def names_set(network: Network) -> bytes:
    """Return the bytes that only a subnet's rules contain: the attribute NFTA_LOOKUP_SET with its set."""
    return struct.pack("=H", _LOOKUP_SET) + set_name(network).encode() + b"\0"


def _rule(expressions: list[Expression], chain: str = CHAIN) -> bytes:
    attrs: Attributes = [
        ("NFTA_RULE_TABLE", TABLE),
        ("NFTA_RULE_CHAIN", chain),
        ("NFTA_RULE_EXPRESSIONS", expressions),
    ]
    return encode("nft_rule_msg", NFT_MSG_NEWRULE, APPEND, attrs)


@lru_cache(maxsize=256)
def element(number: int, flags: int, name: str, version: int) -> Template:
    """NEWSETELEM or DELSETELEM with the hole `key`; NEWSETELEM has the hole `label` too."""
    item: Attributes = [("NFTA_SET_ELEM_KEY", value(_KEYS[version]))]
    holes = {"key": (_KEYS[version], 1)}
    if number == NFT_MSG_NEWSETELEM:
        item.append(("NFTA_SET_ELEM_USERDATA", [("NFTNL_UDATA_SET_ELEM_COMMENT", _LABEL + b"\0")]))
        holes["label"] = (_LABEL, 1)
    attrs: Attributes = [
        ("NFTA_SET_ELEM_LIST_TABLE", TABLE),
        ("NFTA_SET_ELEM_LIST_SET", name),
        ("NFTA_SET_ELEM_LIST_ELEMENTS", [nest(*item)]),
    ]
    return Template(encode("nft_set_elem_list_msg", number, flags, attrs), **holes)


def new_element(network: Network, key: bytes, label: str, *, keep: bool = False) -> bytearray:
    """Add an address to the set of its subnet; an existing one is refused with EEXIST, or kept with its label."""
    template = element(NFT_MSG_NEWSETELEM, ENSURE if keep else CREATE, set_name(network), network.version)
    return template.fill(key=key, label=label.encode())


def delete_element(network: Network, key: bytes) -> bytearray:
    """Remove an address from the set of its subnet."""
    return element(NFT_MSG_DELSETELEM, ASK, set_name(network), network.version).fill(key=key)


@cache
def _dump_sets() -> bytes:
    return encode("nft_set_msg", NFT_MSG_GETSET, DUMP, [("NFTA_SET_TABLE", TABLE)])


def dump_sets() -> bytearray:
    """List the sets of the table."""
    return bytearray(_dump_sets())


@lru_cache(maxsize=64)
def _dump_elements(name: str) -> bytes:
    attrs: Attributes = [("NFTA_SET_ELEM_LIST_TABLE", TABLE), ("NFTA_SET_ELEM_LIST_SET", name)]
    return encode("nft_set_elem_list_msg", NFT_MSG_GETSETELEM, DUMP, attrs)


def dump_elements(name: str) -> bytearray:
    """List the elements of a set."""
    return bytearray(_dump_elements(name))
