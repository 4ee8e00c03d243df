"""DHCPv4 messages as bytes.

Owns: the fixed part, the options, and the routes inside options.
Refuses: sockets, clocks, and what a message means for a lease. Any bytes become a message or `Malformed`.

Source: RFC 2131 section 2, RFC 2132, RFC 3396 (long options), RFC 3442 (classless routes).
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Final

BOOTREQUEST: Final = 1
BOOTREPLY: Final = 2
DISCOVER: Final = 1
OFFER: Final = 2
REQUEST: Final = 3
ACK: Final = 5
NAK: Final = 6
RELEASE: Final = 7
SUBNET_MASK: Final = 1
ROUTER: Final = 3
STATIC_ROUTES: Final = 33
REQUESTED_ADDRESS: Final = 50
LEASE_TIME: Final = 51
OVERLOAD: Final = 52
MESSAGE_TYPE: Final = 53
SERVER_ID: Final = 54
PARAMETERS: Final = 55
TEXT: Final = 56
MAX_SIZE: Final = 57
RENEWAL_TIME: Final = 58
REBINDING_TIME: Final = 59
CLIENT_ID: Final = 61
CLASSLESS_ROUTES: Final = 121
MICROSOFT_ROUTES: Final = 249
"""The same form as 121, from servers older than RFC 3442."""
BROADCAST_FLAG: Final = 0x8000
ANY: Final = IPv4Address(0)
_FIXED: Final = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s4s")
_COOKIE: Final = b"\x63\x82\x53\x63"
_PAD: Final = 0
_END: Final = 255
_MINIMUM: Final = 300
"""Bytes: BOOTP relays drop what is shorter (RFC 1542, section 2.1)."""
_IN_FILE: Final = 1
_IN_NAME: Final = 2


class Malformed(ValueError):
    """The bytes are no DHCP message."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message; the server's name and boot file are not read.

    Attributes:
        op: `BOOTREQUEST` or `BOOTREPLY`.
        xid: chosen by the client, repeated by the server.
        chaddr: the client's hardware address, at most 16 bytes.
        secs: seconds since the client began.
        flags: `BROADCAST_FLAG`, or 0.
        ciaddr: the client's address, if it may use it.
        yiaddr: the client's address, as the server says.
        options: by code; parts of one option are joined.
    """

    op: int
    xid: int
    chaddr: bytes
    secs: int = 0
    flags: int = 0
    ciaddr: IPv4Address = ANY
    yiaddr: IPv4Address = ANY
    siaddr: IPv4Address = ANY
    giaddr: IPv4Address = ANY
    options: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def type(self) -> int:
        """`DISCOVER` to `RELEASE`, or 0 for BOOTP."""
        value = self.options.get(MESSAGE_TYPE, b"")
        return value[0] if len(value) == 1 else 0

    @property
    def server(self) -> IPv4Address | None:
        """The server's identifier."""
        return self.address(SERVER_ID)

    def address(self, code: int) -> IPv4Address | None:
        """Return the first address of an option; None if it has none, or is no list of addresses."""
        value = self.options.get(code, b"")
        return IPv4Address(value[:4]) if value and len(value) % 4 == 0 else None

    def seconds(self, code: int) -> int | None:
        """Return the duration in an option."""
        value = self.options.get(code, b"")
        return int.from_bytes(value, "big") if len(value) == 4 else None

    def encode(self) -> bytes:
        """Write the message, its options by code, padded to what relays accept."""
        addresses = (one.packed for one in (self.ciaddr, self.yiaddr, self.siaddr, self.giaddr))
        head = (self.op, 1, len(self.chaddr), 0, self.xid, self.secs, self.flags)
        data = bytearray(_FIXED.pack(*head, *addresses, self.chaddr, b"", b"", _COOKIE))
        for code, value in sorted(self.options.items()):
            for part in _parts(value):
                data += bytes((code, len(part))) + part
        data.append(_END)
        return bytes(data.ljust(_MINIMUM, b"\0"))


def _parts(value: bytes) -> Iterator[bytes]:
    """Split a value into what one option holds (RFC 3396); an empty one is one part."""
    for start in range(0, max(len(value), 1), 255):
        yield value[start : start + 255]


def decode(data: bytes) -> Message:
    """Read a message.

    Raises:
        Malformed: it is none.
    """
    if len(data) < _FIXED.size:
        raise Malformed(f"{len(data)} bytes are too few for a DHCP message, which has {_FIXED.size} and more")
    op, _, size, _, xid, secs, flags, ci, yi, si, gi, chaddr, name, file, cookie = _FIXED.unpack_from(data)
    if cookie != _COOKIE:
        raise Malformed("the magic cookie of DHCP is missing")
    options = _options(data[_FIXED.size :])
    overload = options.pop(OVERLOAD, b"\0")
    for flag, place in ((_IN_FILE, file), (_IN_NAME, name)):
        if overload[:1] and overload[0] & flag:
            for code, value in _options(place).items():
                options[code] = options.get(code, b"") + value
    ciaddr, yiaddr, siaddr, giaddr = map(IPv4Address, (ci, yi, si, gi))
    return Message(op, xid, chaddr[: min(size, 16)], secs, flags, ciaddr, yiaddr, siaddr, giaddr, options)


def _options(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    place = 0
    while place < len(data):
        code = data[place]
        place += 1
        if code == _PAD:
            continue
        if code == _END:
            return found
        if place == len(data) or place + 1 + data[place] > len(data):
            break
        value = data[place + 1 : place + 1 + data[place]]
        found[code] = found.get(code, b"") + value
        place += 1 + len(value)
    raise Malformed("the options do not end")


def classless_routes(value: bytes) -> list[tuple[IPv4Network, IPv4Address]]:
    """Read option 121 or 249: destinations and their routers. Anything malformed voids the option (RFC 3442)."""
    routes = []
    place = 0
    while place < len(value):
        prefix = value[place]
        end = place + 1 + (prefix + 7) // 8
        if prefix > 32 or end + 4 > len(value):
            return []
        destination = value[place + 1 : end].ljust(4, b"\0")
        routes.append((IPv4Network((destination, prefix), strict=False), IPv4Address(value[end : end + 4])))
        place = end + 4
    return routes


def classful_routes(value: bytes) -> list[tuple[IPv4Network, IPv4Address]]:
    """Read option 33: destinations without a mask, which their class gives, and their routers."""
    routes = []
    for place in range(0, len(value) - 7, 8):
        first = value[place]
        prefix = 8 if first < 128 else 16 if first < 192 else 24
        if first < 224:  # above are no networks
            destination = IPv4Network((value[place : place + 4], prefix), strict=False)
            routes.append((destination, IPv4Address(value[place + 4 : place + 8])))
    return routes
