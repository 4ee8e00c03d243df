"""What the rules of port mappings match and do, as nf_tables' expressions.

Owns: their order and registers.
Refuses: the table, and messages (see `messages`).
"""

import struct
from typing import Final

from nodeplug_net.nftables.encoding import (
    JUMP,
    NFPROTO_IPV4,
    NFPROTO_IPV6,
    Expression,
    compare,
    expression,
    of_family,
    value,
    verdict,
)

SIZE: Final = {4: 4, 6: 16}
"""Bytes of an address, by version."""
ADDRTYPE: Final = 3  # NFT_FIB_RESULT_ADDRTYPE
REGISTER: Final = 8  # NFT_REG32_00
_FAMILY: Final = {4: NFPROTO_IPV4, 6: NFPROTO_IPV6}


def _payload(base: int, offset: int, length: int, register: int) -> Expression:
    return expression(
        "payload",
        ("NFTA_PAYLOAD_DREG", register),
        ("NFTA_PAYLOAD_BASE", base),
        ("NFTA_PAYLOAD_OFFSET", offset),
        ("NFTA_PAYLOAD_LEN", length),
    )


def load_address(version: int, register: int, *, source: bool) -> Expression:
    """Load the source or destination address of a packet."""
    offset = (12 if source else 16) if version == 4 else (8 if source else 24)
    return _payload(1, offset, SIZE[version], register)  # NFT_PAYLOAD_NETWORK_HEADER


def load_protocol(register: int) -> Expression:
    """Load the protocol of a packet."""
    return expression("meta", ("NFTA_META_KEY", 16), ("NFTA_META_DREG", register))  # NFT_META_L4PROTO


def load_port(register: int) -> Expression:
    """Load the destination port of a packet."""
    return _payload(2, 2, 2, register)  # NFT_PAYLOAD_TRANSPORT_HEADER


def translate(version: int, register: int) -> Expression:
    """Send a connection to the address in a register and the port behind it."""
    return expression(
        "nat",
        ("NFTA_NAT_TYPE", 1),  # NFT_NAT_DNAT
        ("NFTA_NAT_FAMILY", _FAMILY[version]),
        ("NFTA_NAT_REG_ADDR_MIN", register),
        ("NFTA_NAT_REG_PROTO_MIN", register + SIZE[version] // 4),
    )


def forward_by_map(version: int, *, by_address: bool) -> list[Expression]:
    """Send connections where a map says: `dnat ip to [ip daddr .] meta l4proto . th dport map @...`."""
    name, register, loads = f"{'host' if by_address else 'any'}{version}", REGISTER, []
    if by_address:
        loads.append(load_address(version, register, source=False))
        register += SIZE[version] // 4
    loads += [load_protocol(register), load_port(register + 1)]
    lookup = expression(
        "lookup", ("NFTA_LOOKUP_SET", name), ("NFTA_LOOKUP_SREG", REGISTER), ("NFTA_LOOKUP_DREG", register + 2)
    )
    return [*of_family(version), *loads, lookup, translate(version, register + 2)]


def masquerade_by_set(version: int, prefix: int, name: str) -> list[Expression]:
    """Masquerade what a set has.

    `ct status dnat ip saddr & MASK . ip daddr . meta l4proto . ct original proto-dst @... masquerade`
    """
    size = SIZE[version]
    mask = ((1 << 8 * size) - (1 << (8 * size - prefix))).to_bytes(size, "big")
    masked = expression(
        "bitwise",
        ("NFTA_BITWISE_SREG", REGISTER),
        ("NFTA_BITWISE_DREG", REGISTER),
        ("NFTA_BITWISE_LEN", size),
        ("NFTA_BITWISE_MASK", value(mask)),
        ("NFTA_BITWISE_XOR", value(bytes(size))),
    )
    after = REGISTER + 2 * size // 4
    original = expression(  # NFT_CT_PROTO_DST, IP_CT_DIR_ORIGINAL
        "ct", ("NFTA_CT_KEY", 12), ("NFTA_CT_DREG", after + 1), ("NFTA_CT_DIRECTION", 0)
    )
    lookup = expression("lookup", ("NFTA_LOOKUP_SET", name), ("NFTA_LOOKUP_SREG", REGISTER))
    return [
        *of_family(version),
        *_redirected(),
        load_address(version, REGISTER, source=True),
        masked,
        load_address(version, REGISTER + size // 4, source=False),
        load_protocol(after),
        original,
        lookup,
        expression("masq"),
    ]


def _redirected() -> list[Expression]:
    """`ct status dnat`: NFT_CT_STATUS has IPS_DST_NAT. Who asks the container itself keeps its address."""
    bit = struct.pack("=I", 1 << 5)
    masked = expression(
        "bitwise",
        ("NFTA_BITWISE_SREG", 1),
        ("NFTA_BITWISE_DREG", 1),
        ("NFTA_BITWISE_LEN", 4),
        ("NFTA_BITWISE_MASK", value(bit)),
        ("NFTA_BITWISE_XOR", value(bytes(4))),
    )
    return [expression("ct", ("NFTA_CT_KEY", 2), ("NFTA_CT_DREG", 1)), masked, compare(0, bit)]


def jump_if_local(chain: str) -> list[Expression]:
    """Go on with what is sent to the host: `fib daddr type local jump CHAIN`.

    NFT_FIB_RESULT_ADDRTYPE of NFTA_FIB_F_DADDR is RTN_LOCAL.

    pyroute2 takes NFTA_FIB_RESULT for flags, which it is not: the message gets its number put right.
    """
    kind = expression("fib", ("NFTA_FIB_DREG", 1), ("NFTA_FIB_FLAGS", ADDRTYPE), ("NFTA_FIB_FLAGS", 2))
    return [kind, compare(0, struct.pack("=I", 2)), verdict(JUMP, chain)]
