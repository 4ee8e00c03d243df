"""Messages about the table of port mappings: encoded once by pyroute2, patched for each request.

Owns: the shape of the table `inet nodeplug_portmap`, as messages.
Refuses: sockets, and the decision what to send when (see `portmap_table`). pyroute2 is imported by the first message.

The shape, as nft(8) prints it (the maps and sets for IPv6 look alike):

    table inet nodeplug_portmap {
        map host4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; elements = { ... comment } }
        map any4 { type inet_proto . inet_service : ipv4_addr . inet_service
                   elements = { tcp . 8080 comment "nodeplug <network> <id> eth0" : 10.88.0.5 . 80 } }
        set near4_24 { type ipv4_addr . ipv4_addr . inet_proto . inet_service
                       elements = { 10.88.0.0 . 10.88.0.5 . tcp . 8080 comment "nodeplug <network> <id> eth0" } }
        chain prerouting { type nat hook prerouting priority dstnat; fib daddr type local jump hostports }
        chain output { type nat hook output priority dstnat; fib daddr type local jump hostports }
        chain hostports {
            jump conditional
            dnat ip to ip daddr . meta l4proto . th dport map @host4
            dnat ip to meta l4proto . th dport map @any4
        }
        chain conditional { <conditions> meta l4proto tcp th dport 8080 dnat ip to 10.88.0.5:80 comment "nodeplug ..." }
        chain postrouting {
            type nat hook postrouting priority srcnat;
            ct status dnat ip saddr & 255.255.255.0 . ip daddr . meta l4proto . ct original proto-dst @near4_24
                masquerade
        }
    }

The cost of a connection does not grow with the number of containers. `near4_24` has who would be answered past the
host: containers of the same network of /24, by their network's address; `near4_8` has the host's own loopback, and
`near4_0` everybody (`masqAll`). What a packet was sent to at first tells a mapped connection from any other to the
container.
"""

import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from ipaddress import ip_address
from typing import Final

from nodeplug_net.attachment import LABEL_LIMIT
from nodeplug_net.netlink.messages import Template
from nodeplug_net.nftables.encoding import (
    APPEND,
    ASK,
    DSTNAT,
    DUMP,
    ENSURE,
    JUMP,
    LOCAL_OUT,
    NFT_MSG_DELRULE,
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
    PRE_ROUTING,
    SRCNAT,
    Attributes,
    Expression,
    compare,
    encode,
    expression,
    nest,
    of_family,
    value,
    verdict,
    with_comment,
)
from nodeplug_net.portmap.conditions import Condition
from nodeplug_net.portmap.config import Forward, port_name
from nodeplug_net.portmap.expressions import (
    ADDRTYPE,
    REGISTER,
    SIZE,
    forward_by_map,
    jump_if_local,
    load_address,
    load_port,
    load_protocol,
    masquerade_by_set,
    translate,
)

TABLE: Final = "nodeplug_portmap"
CONDITIONAL: Final = "conditional"
_HOSTPORTS: Final = "hostports"
_POSTROUTING: Final = "postrouting"
_HOOKS: Final = (
    ("prerouting", PRE_ROUTING, DSTNAT),
    ("output", LOCAL_OUT, DSTNAT),
    (_POSTROUTING, POST_ROUTING, SRCNAT),
)
_NEAR: Final = "near"
_ADDRESS, _PROTOCOL, _SERVICE = {4: 7, 6: 8}, 12, 13
"""nft's numbers of the types ipv4_addr and ipv6_addr, inet_proto, inet_service; a concatenation has six bits each."""
_MAP: Final = 8  # NFT_SET_MAP
_LABEL: Final = b"nodeplug~label~".ljust(LABEL_LIMIT, b"~")
_KEY, _DATA = b"\x7a\x11\xb0\xc5\xd6\xe7\xf8\x09", b"\x7a\x11\xb0\xc6\xd7\xe8\xf9\x0a"


def map_of(forward: Forward) -> str:
    """Name the map that has a forward."""
    return f"{'any' if forward.host_ip is None else 'host'}{forward.version}"


def near_of(version: int, prefix: int) -> str:
    """Name the set of sources in networks of one prefix length."""
    return f"{_NEAR}{version}_{prefix}"


def prefix_of(name: str) -> tuple[int, int] | None:
    """Return version and prefix length of such a set; None for another one."""
    version, _, prefix = name.removeprefix(_NEAR).partition("_")
    if not name.startswith(_NEAR) or not (version.isdecimal() and prefix.isdecimal()) or int(version) not in SIZE:
        return None
    return int(version), int(prefix)


def port_key(protocol: int, port: int) -> bytes:
    """Encode a protocol and a port, each in a register of four bytes."""
    return bytes([protocol, 0, 0, 0]) + port.to_bytes(2, "big") + b"\0\0"


def forward_key(forward: Forward) -> bytes:
    """Encode what the map of a forward looks up."""
    return (b"" if forward.host_ip is None else forward.host_ip.packed) + port_key(forward.protocol, forward.host_port)


def forward_data(forward: Forward) -> bytes:
    """Encode where a forward leads."""
    return forward.target.packed + forward.container_port.to_bytes(2, "big") + b"\0\0"


def port_name_of(name: str, key: bytes) -> str:
    """Name the port of the host that an element of a map or set is about: its key ends with protocol and port."""
    address = ip_address(key[:-8]) if name.startswith("host") else None
    return port_name(key[-8], address, int.from_bytes(key[-4:-2], "big"))


def near_key(network: bytes, forward: Forward) -> bytes:
    """Encode that packets from a network by a forward are masqueraded."""
    return network + forward.target.packed + port_key(forward.protocol, forward.host_port)


def _renumbered(encoded: bytes, number: int, kind: int, to: int) -> bytes:
    """Give an attribute with a number another type, since pyroute2 encodes that one in another way, or not at all.

    Raises:
        AssertionError: it occurs more or less often than once: the encoder behaves unexpectedly.
    """
    found, wanted = (struct.pack("=HH", 8, one) + number.to_bytes(4, "big") for one in (kind, to))
    if encoded.count(found) != 1:
        raise AssertionError(f"attribute {kind} with {number} occurs {encoded.count(found)} times in a message")
    return encoded.replace(found, wanted)


def _rule(chain: str, expressions: list[Expression], comment: str) -> bytes:
    attrs: Attributes = [
        ("NFTA_RULE_TABLE", TABLE),
        ("NFTA_RULE_CHAIN", chain),
        ("NFTA_RULE_EXPRESSIONS", expressions),
    ]
    return with_comment(encode("nft_rule_msg", NFT_MSG_NEWRULE, APPEND, attrs), comment)


def comment_of(name: str) -> str:
    """Return the comment of a rule of the table itself, by which it is found again."""
    return f"nodeplug_portmap {name}"


def _chain(name: str, hook: tuple[int, int] | None = None) -> bytes:
    attrs: Attributes = [("NFTA_CHAIN_TABLE", TABLE), ("NFTA_CHAIN_NAME", name)]
    if hook is not None:
        where = nest(("NFTA_HOOK_HOOKNUM", hook[0]), ("NFTA_HOOK_PRIORITY", hook[1]))
        attrs += [("NFTA_CHAIN_HOOK", where), ("NFTA_CHAIN_POLICY", 1), ("NFTA_CHAIN_TYPE", "nat")]  # NF_ACCEPT
    return encode("nft_chain_msg", NFT_MSG_NEWCHAIN, ENSURE, attrs)


def _set(name: str, number: int, types: Sequence[int], data: int = 0) -> bytes:
    """Create a set; with the version of IP of its data a map."""
    key = size = 0
    for one in types:
        key, size = key << 6 | one, size + {7: 4, 8: 16}.get(one, 4)
    attrs: Attributes = [
        ("NFTA_SET_TABLE", TABLE),
        ("NFTA_SET_NAME", name),
        ("NFTA_SET_KEY_TYPE", key),
        ("NFTA_SET_KEY_LEN", size),
        ("NFTA_SET_ID", number),
    ]
    if data:
        attrs += [
            ("NFTA_SET_KEY_TYPE", _MAP),
            ("NFTA_SET_DATA_TYPE", _ADDRESS[data] << 6 | _SERVICE),
            ("NFTA_SET_DATA_LEN", SIZE[data] + 4),
        ]
    encoded = encode("nft_set_msg", NFT_MSG_NEWSET, ENSURE, attrs)
    return _renumbered(encoded, _MAP, 4, 3) if data else encoded  # NFTA_SET_FLAGS


RULES: Final = (*(name for name, *_ in _HOOKS[:2]), "conditional", "host4", "any4", "host6", "any6")
"""The names of the rules that the table always has, as their comments say."""


@cache
def _table() -> tuple[bytes, ...]:
    chains = [(name, (hook, priority)) for name, hook, priority in _HOOKS]
    maps = [
        _set(
            f"{word}{version}", number, [*([_ADDRESS[version]] if word == "host" else []), _PROTOCOL, _SERVICE], version
        )
        for number, (version, word) in enumerate(((4, "host"), (4, "any"), (6, "host"), (6, "any")), 1)
    ]
    emptied = [
        encode("nft_rule_msg", NFT_MSG_DELRULE, ASK, [("NFTA_RULE_TABLE", TABLE), ("NFTA_RULE_CHAIN", name)])
        for name in (_HOSTPORTS, *(name for name, *_ in _HOOKS))
    ]
    return (
        encode("nft_table_msg", NFT_MSG_NEWTABLE, ENSURE, [("NFTA_TABLE_NAME", TABLE)]),
        _chain(CONDITIONAL),
        _chain(_HOSTPORTS),
        *(_chain(name, hook) for name, hook in chains),
        *maps,
        *emptied,
        *(
            _renumbered(_rule(name, jump_if_local(_HOSTPORTS), comment_of(name)), ADDRTYPE, 3, 2)
            for name, *_ in _HOOKS[:2]
        ),
        _rule(_HOSTPORTS, [verdict(JUMP, CONDITIONAL)], comment_of(CONDITIONAL)),
        *(
            _rule(_HOSTPORTS, forward_by_map(version, by_address=word == "host"), comment_of(f"{word}{version}"))
            for version in (4, 6)
            for word in ("host", "any")
        ),
    )


@lru_cache(maxsize=64)
def _near(name: str) -> tuple[bytes, ...]:
    found = prefix_of(name)
    if found is None:
        return ()
    version, prefix = found
    types = [_ADDRESS[version], _ADDRESS[version], _PROTOCOL, _SERVICE]
    made = _set(name, 5 + prefix + version * 200, types)
    return made, _rule(_POSTROUTING, masquerade_by_set(version, prefix, name), comment_of(name))


def rebuild(near: Sequence[str]) -> list[bytearray]:
    """Create the table, its chains and maps where they are missing, and all rules anew but those of `conditional`.

    Existing maps and sets keep their elements. A set of `near` that is left out loses its rule.
    """
    return [bytearray(message) for message in (*_table(), *(part for name in near for part in _near(name)))]


def delete_table() -> bytearray:
    """Delete the table with everything in it."""
    return bytearray(encode("nft_table_msg", NFT_MSG_DELTABLE, ASK, [("NFTA_TABLE_NAME", TABLE)]))


def conditional(forward: Forward, conditions: Sequence[Condition], label: str) -> bytearray:
    """Add the rule of a forward with conditions."""
    register, version = REGISTER, forward.version
    expressions = [*of_family(version), *(part for one in conditions for part in one.expressions())]
    if forward.host_ip is not None:
        expressions += [load_address(version, 1, source=False), compare(0, forward.host_ip.packed)]
    expressions += [load_protocol(1), compare(0, bytes([forward.protocol]))]
    expressions += [load_port(1), compare(0, forward.host_port.to_bytes(2, "big"))]
    target = ((register, forward.target.packed), (register + SIZE[version] // 4, forward_data(forward)[-4:-2]))
    expressions += [
        expression("immediate", ("NFTA_IMMEDIATE_DREG", number), ("NFTA_IMMEDIATE_DATA", value(data)))
        for number, data in target
    ]
    return bytearray(_rule(CONDITIONAL, [*expressions, translate(version, register)], label))


@lru_cache(maxsize=256)
def _element(number: int, flags: int, name: str, key: int, data: int) -> Template:
    """NEWSETELEM or DELSETELEM with the hole `key`; NEWSETELEM has the hole `label`, and in a map `data`, too."""
    item: Attributes = [("NFTA_SET_ELEM_KEY", value(_KEY.ljust(key, b"\x7b")))]
    holes = {"key": (_KEY.ljust(key, b"\x7b"), 1)}
    if number == NFT_MSG_NEWSETELEM:
        if data:
            item.append(("NFTA_SET_ELEM_DATA", value(_DATA.ljust(data, b"\x7c"))))
            holes["data"] = (_DATA.ljust(data, b"\x7c"), 1)
        item.append(("NFTA_SET_ELEM_USERDATA", [("NFTNL_UDATA_SET_ELEM_COMMENT", _LABEL + b"\0")]))
        holes["label"] = (_LABEL, 1)
    attrs: Attributes = [
        ("NFTA_SET_ELEM_LIST_TABLE", TABLE),
        ("NFTA_SET_ELEM_LIST_SET", name),
        ("NFTA_SET_ELEM_LIST_ELEMENTS", [nest(*item)]),
    ]
    return Template(encode("nft_set_elem_list_msg", number, flags, attrs), **holes)


def new_element(name: str, key: bytes, data: bytes, label: str, *, flags: int) -> bytearray:
    """Add an element; one that exists is refused with EEXIST (`CREATE`), or kept if it is the same (`ENSURE`)."""
    holes = {"key": key, "label": label.encode()} | ({"data": data} if data else {})
    return _element(NFT_MSG_NEWSETELEM, flags, name, len(key), len(data)).fill(**holes)


def delete_element(name: str, key: bytes) -> bytearray:
    """Remove an element."""
    return _element(NFT_MSG_DELSETELEM, ASK, name, len(key), 0).fill(key=key)


@cache
def _dump_rules() -> bytes:
    return encode("nft_rule_msg", NFT_MSG_GETRULE, DUMP, [("NFTA_RULE_TABLE", TABLE)])


def dump_rules() -> bytearray:
    """List the rules of all chains."""
    return bytearray(_dump_rules())


@cache
def _dump_sets() -> bytes:
    return encode("nft_set_msg", NFT_MSG_GETSET, DUMP, [("NFTA_SET_TABLE", TABLE)])


def dump_sets() -> bytearray:
    """List the maps and sets."""
    return bytearray(_dump_sets())


@lru_cache(maxsize=64)
def _dump_elements(name: str) -> bytes:
    attrs: Attributes = [("NFTA_SET_ELEM_LIST_TABLE", TABLE), ("NFTA_SET_ELEM_LIST_SET", name)]
    return encode("nft_set_elem_list_msg", NFT_MSG_GETSETELEM, DUMP, attrs)


def dump_elements(name: str) -> bytearray:
    """List the elements of a map or set."""
    return bytearray(_dump_elements(name))
