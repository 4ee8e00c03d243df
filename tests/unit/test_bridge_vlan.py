"""Messages about VLANs of a port; tests/real/test_bridge_keys.py compares them with what others send."""

import struct
from collections.abc import Sequence

import pytest

from nodeplug import InvalidRequest
from nodeplug_net.bridge.config import BridgeConfig
from nodeplug_net.bridge.vlan import add_vlans, parse_vlans, put_into_vlans, vlans_of
from nodeplug_net.netlink.connection import KernelReply, Netlink, Request
from nodeplug_net.netlink.links import Link, Links, parse_link

ACCESS = 0x2 | 0x4  # PVID, untagged
BEGIN, END = 0x8, 0x10


def infos(message: bytearray) -> list[tuple[int, int]]:
    """Identifier and flags of each IFLA_BRIDGE_VLAN_INFO; the first attribute is BRIDGE_FLAGS_MASTER."""
    nested = message[32 + 4 :]
    assert nested[:6] == struct.pack("=HHH", 6, 0, 1)
    found = []
    for start in range(8, len(nested), 8):
        length, kind, flags, number = struct.unpack_from("=HHHH", nested, start)
        assert (length, kind) == (8, 2)
        found.append((number, flags))
    return found


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (BridgeConfig(vlan=100), [(100, ACCESS)]),
        (BridgeConfig(trunk=(101,)), [(101, 0), (1, ACCESS)]),
        (BridgeConfig(vlan=100, trunk=(101,)), [(100, ACCESS), (101, 0)]),
        (BridgeConfig(trunk=(5, 200, 201, 202)), [(5, 0), (200, BEGIN), (202, END), (1, ACCESS)]),
        (BridgeConfig(vlan=9, trunk=(10, 11)), [(9, ACCESS), (10, BEGIN), (11, END)]),
        (BridgeConfig(vlan=100, trunk=(100,)), [(100, ACCESS), (100, 0)]),  # so the last one says
        (BridgeConfig(trunk=tuple(range(1, 4095))), [(1, BEGIN), (4094, END), (1, ACCESS)]),
    ],
)
def test_a_port_is_told_its_vlans_in_one_message(config: BridgeConfig, expected: list[tuple[int, int]]) -> None:
    message = add_vlans(7, vlans_of(config))
    assert infos(message) == expected
    assert struct.unpack_from("=IH", message) == (len(message), 19)
    assert message[16] == 7
    assert struct.unpack_from("=i", message, 20) == (7,)


def test_the_vlans_of_a_port_are_read_as_they_are_written() -> None:
    assert parse_vlans(bytes(add_vlans(7, [(100, ACCESS), (300, 0)]))) == {100: ACCESS, 300: 0}


def bridge_message(*data: tuple[int, bytes]) -> bytes:
    def attribute(kind: int, value: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(value), kind) + value.ljust((len(value) + 3) & ~3, b"\0")

    inner = attribute(1, b"bridge\0") + attribute(2, b"".join(attribute(*one) for one in data))
    body = struct.pack("=BBHiII", 0, 0, 1, 5, 1, 0) + attribute(18, inner)
    return struct.pack("=IHHII", 16 + len(body), 16, 0, 0, 0) + body


@pytest.mark.parametrize(
    ("data", "filters"),
    [
        ([(7, b"\1"), (39, b"\1\0")], True),
        ([(7, b"\0"), (39, b"\1\0")], False),
        ([(7, b"\0")], None),  # as a kernel without VLANs of bridges says it
        ([], None),
    ],
)
def test_a_bridge_says_whether_it_filters(data: list[tuple[int, bytes]], filters: bool | None) -> None:
    assert parse_link(bridge_message(*data)).filters_vlans is filters


class Unused(Netlink):
    """A socket over which nothing is sent."""

    def ask(self, *requests: Request) -> list[KernelReply]:
        raise AssertionError(requests)

    def exchange(self, messages: Sequence[tuple[bytearray, bool]]) -> list[KernelReply]:
        raise AssertionError(messages)


def test_a_bridge_that_keeps_no_vlans_apart_is_refused_before_a_port_is_told() -> None:
    bridge = Link(5, 1, "br0", kind="bridge", bridge_data=struct.pack("=HHB3xHHH2x", 5, 7, 0, 6, 39, 1))
    with Unused() as netlink, pytest.raises(InvalidRequest, match="br0 does not filter VLANs") as refusal:
        put_into_vlans(Links(netlink), bridge, "veth0", [(100, ACCESS)], preserve_default=False)
    assert "ip link set br0 type bridge vlan_filtering 1" in refusal.value.details
