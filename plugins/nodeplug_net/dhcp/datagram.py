"""UDP datagrams between a DHCP client and a server, as bytes from the IPv4 header on.

Owns: both headers, their checksums, and the classic BPF program that lets only such datagrams through.
Refuses: verification of UDP checksums: between two ends on one machine the kernel leaves them to hardware that is not
there (CHECKSUM_PARTIAL), and xid, hardware address and server are compared anyway.
"""

import struct
from ipaddress import IPv4Address
from typing import Final

CLIENT_PORT: Final = 68
SERVER_PORT: Final = 67
_IP: Final = struct.Struct("!BBHHHBBH4s4s")
_UDP: Final = struct.Struct("!HHHH")
_PROTOCOL: Final = 17
_TTL: Final = 64
_FRAGMENT: Final = 0x3FFF
_INSTRUCTIONS: Final = (
    (0x30, 0, 0, 9),  # load the byte at 9, the protocol
    (0x15, 0, 6, _PROTOCOL),
    (0x28, 0, 0, 6),  # flags and offset of a fragment
    (0x45, 4, 0, 0x1FFF),
    (0xB1, 0, 0, 0),  # X becomes the length of the IP header
    (0x48, 0, 0, 2),  # the port it goes to
    (0x15, 0, 1, CLIENT_PORT),
    (0x06, 0, 0, 0xFFFF),  # accept
    (0x06, 0, 0, 0),
)
FILTER: Final = b"".join(struct.pack("=HBBI", *one) for one in _INSTRUCTIONS)
"""struct sock_filter (linux/filter.h), for sockets whose data begin with the IP header."""
FILTER_LENGTH: Final = len(_INSTRUCTIONS)


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def wrap(payload: bytes, source: IPv4Address, destination: IPv4Address) -> bytes:
    """Put the headers of a client's datagram before a message."""
    length = _UDP.size + len(payload)
    pseudo = source.packed + destination.packed + struct.pack("!HH", _PROTOCOL, length)
    udp = _UDP.pack(CLIENT_PORT, SERVER_PORT, length, 0)
    udp = _UDP.pack(CLIENT_PORT, SERVER_PORT, length, checksum(pseudo + udp + payload) or 0xFFFF)
    head = (0x45, 0x10, _IP.size + length, 0, 0, _TTL, _PROTOCOL)
    ip = _IP.pack(*head, 0, source.packed, destination.packed)
    return _IP.pack(*head, checksum(ip), source.packed, destination.packed) + udp + payload


def unwrap(data: bytes) -> bytes | None:
    """Return what a server sent to a client; None for every other packet."""
    if len(data) < _IP.size or data[0] >> 4 != 4:
        return None
    size = (data[0] & 15) * 4
    _, _, total, _, fragment, _, protocol, *_ = _IP.unpack_from(data)
    if size < _IP.size or total > len(data) or total < size + _UDP.size:
        return None
    if protocol != _PROTOCOL or fragment & _FRAGMENT:
        return None
    _, port, length, _ = _UDP.unpack_from(data, size)
    if port != CLIENT_PORT or not _UDP.size <= length <= total - size:
        return None
    return data[size + _UDP.size : size + length]
