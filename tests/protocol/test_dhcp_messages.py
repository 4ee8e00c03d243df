"""DHCP messages as bytes: those of a capture, those of hypothesis, and those that are none."""

import re
import socket
import struct
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug_net.dhcp import datagram
from nodeplug_net.dhcp import message as dhcp
from nodeplug_net.dhcp.message import Malformed, Message, decode

MAC = bytes.fromhex("0242ac110002")
DISCOVER = bytes.fromhex(
    "01010600" "3903f326" "00000000" "00000000" "00000000" "00000000" "00000000"
    "0242ac110002" + "00" * 10 + "00" * 192 + "63825363"
    "350101" "37020301" "390205dc" "3d0d0063312f6e65742f65746830" "ff"
)  # fmt: skip
"""What the reference's client sends, but for the padding behind its end."""
addresses = st.integers(0, 2**32 - 1).map(IPv4Address)
codes = st.integers(1, 254).filter(lambda code: code != dhcp.OVERLOAD)
messages = st.builds(
    Message,
    op=st.sampled_from([dhcp.BOOTREQUEST, dhcp.BOOTREPLY]),
    xid=st.integers(0, 2**32 - 1),
    chaddr=st.binary(min_size=6, max_size=16),
    secs=st.integers(0, 65535),
    flags=st.integers(0, 65535),
    ciaddr=addresses,
    yiaddr=addresses,
    siaddr=addresses,
    giaddr=addresses,
    options=st.dictionaries(codes, st.binary(max_size=600), max_size=8),
)


def test_a_discover_has_the_bytes_of_the_reference() -> None:
    options = {53: b"\1", 55: b"\3\1", 57: b"\5\xdc", 61: b"\0c1/net/eth0"}
    assert len(options[61]) == 12
    golden = DISCOVER.replace(b"\x3d\x0d", b"\x3d\x0c")
    made = Message(dhcp.BOOTREQUEST, 0x3903F326, MAC, options=options)
    assert made.encode() == golden.ljust(300, b"\0")
    assert decode(golden) == made


@given(messages)
def test_what_is_written_is_read_again(message: Message) -> None:
    assert decode(message.encode()) == message


@given(st.binary(max_size=700))
def test_any_bytes_are_a_message_or_malformed(data: bytes) -> None:
    for one in (data, DISCOVER[:240] + data):
        try:
            read = decode(one)
        except Malformed:
            continue
        assert decode(read.encode()) == read


@given(st.binary(max_size=300))
def test_any_packet_is_a_datagram_or_none(data: bytes) -> None:
    for one in (data, b"\x45" + data):
        found = datagram.unwrap(one)
        assert found is None or found in one


@given(st.binary(max_size=300))
def test_any_option_is_a_list_of_routes(value: bytes) -> None:
    assert all(network.version == 4 for network, _ in dhcp.classless_routes(value) + dhcp.classful_routes(value))


def test_parts_of_a_long_option_are_joined() -> None:
    value = bytes(range(256)) * 2
    data = Message(dhcp.BOOTREPLY, 1, MAC, options={121: value}).encode()
    assert data.count(b"\x79\xff") == 2
    assert decode(data).options[121] == value


def test_options_go_on_in_the_fields_that_are_overloaded() -> None:
    fixed = bytearray(DISCOVER[:240])
    fixed[44:52] = b"\x0c\x01c\xff\0\0\0\0"
    fixed[108:116] = b"\x0c\x01b\xff\0\0\0\0"
    data = bytes(fixed) + bytes.fromhex("0c0161" "340103" "ff")  # fmt: skip
    assert decode(data).options == {12: b"abc"}


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (b"", "0 bytes are too few"),
        (DISCOVER[:239], "239 bytes are too few"),
        (DISCOVER.replace(b"\x63\x82\x53\x63", b"\0\0\0\0"), "magic cookie"),
        (DISCOVER[:-1], "do not end"),
        (DISCOVER[:-3], "do not end"),
        (DISCOVER[:240] + b"\x35", "do not end"),
    ],
)
def test_what_is_no_message_is_malformed(spoilt: bytes, said: str) -> None:
    with pytest.raises(Malformed, match=re.escape(said)):
        decode(spoilt)


def test_routes_without_classes_are_those_of_the_rfc() -> None:
    value = bytes.fromhex("00 0a000001 08 0a 0a000002 18 0a1102 0a000003 20 0a000009 00000000")
    assert dhcp.classless_routes(value) == [
        (IPv4Network("0.0.0.0/0"), IPv4Address("10.0.0.1")),
        (IPv4Network("10.0.0.0/8"), IPv4Address("10.0.0.2")),
        (IPv4Network("10.17.2.0/24"), IPv4Address("10.0.0.3")),
        (IPv4Network("10.0.0.9/32"), IPv4Address("0.0.0.0")),
    ]
    assert dhcp.classless_routes(value[:-1]) == []
    assert dhcp.classless_routes(b"\x21" + value) == []


def test_routes_with_classes_have_their_masks() -> None:
    value = b"".join(socket.inet_aton(one) for one in ("10.1.2.0", "10.0.0.1", "172.16.9.0", "10.0.0.2"))
    value += b"".join(socket.inet_aton(one) for one in ("192.0.2.7", "10.0.0.3", "224.0.0.1", "10.0.0.4"))
    assert [(str(dst), str(gw)) for dst, gw in dhcp.classful_routes(value + b"rest")] == [
        ("10.0.0.0/8", "10.0.0.1"),
        ("172.16.0.0/16", "10.0.0.2"),
        ("192.0.2.0/24", "10.0.0.3"),
    ]


def test_a_datagram_has_the_checksums_of_its_headers() -> None:
    source, server = IPv4Address("10.99.0.10"), IPv4Address("10.99.0.1")
    data = datagram.wrap(b"odd", source, server)
    assert datagram.checksum(data[:20]) == 0
    pseudo = source.packed + server.packed + struct.pack("!HH", 17, len(data) - 20)
    assert datagram.checksum(pseudo + data[20:]) == 0
    assert struct.unpack_from("!HH", data, 20) == (68, 67)


def answer(port: int = 68, **changed: int) -> bytes:
    data = bytearray(datagram.wrap(b"payload", IPv4Address("10.99.0.1"), IPv4Address("10.99.0.10")))
    data[20:24] = struct.pack("!HH", 67, port)
    for place, value in changed.items():
        data[int(place[1:])] = value
    return bytes(data)


def test_only_whole_datagrams_to_a_client_are_read() -> None:
    assert datagram.unwrap(answer() + b"padding") == b"payload"
    assert datagram.unwrap(answer(67)) is None
    spoilt = [answer(_0=0x65), answer(_0=0x44), answer(_6=0x20), answer(_7=1), answer(_9=6), answer(_25=99)]
    assert [datagram.unwrap(one) for one in [*spoilt, answer()[:-1]]] == [None] * 7


def test_the_filter_lets_only_datagrams_to_a_client_through() -> None:
    assert [runs(one) for one in (answer(), answer(67), answer(_9=6), answer(_7=1))] == [True, False, False, False]
    long = bytearray(answer())
    long[0], long[20:20] = 0x46, b"\1\1\1\1"
    assert runs(bytes(long))


def runs(packet: bytes) -> bool:
    """Let the kernel run the filter."""
    import ctypes  # noqa: PLC0415

    program = ctypes.create_string_buffer(datagram.FILTER, len(datagram.FILTER))
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        described = struct.pack("HP", datagram.FILTER_LENGTH, ctypes.addressof(program))
        other.setsockopt(socket.SOL_SOCKET, 26, described)
        other.setblocking(False)
        try:
            one.send(packet)
            return other.recv(2000) == packet
        except (BlockingIOError, PermissionError):
            return False
