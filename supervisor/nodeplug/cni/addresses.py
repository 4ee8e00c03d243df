"""Which addresses some network namespace of this node has: what has one is in use, whatever its path shows.

Owns: listing the addresses in each namespace (rtnetlink, RTM_GETADDR).
Refuses: the event loop, and to be complete (see `Netns.every`): it is one piece of evidence among others.
"""

import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from nodeplug.contract.netns import Netns

Address = IPv4Address | IPv6Address
_HEADER: Final = struct.Struct("=IHHII")
_ADDRESS: Final = struct.Struct("=BBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_GET_ADDRESS: Final = 22
_REQUEST_DUMP: Final = 0x301
_ERROR, _DONE = 2, 3
_IFA_ADDRESS, _IFA_LOCAL = 1, 2


def everywhere() -> dict[Address, str]:
    """Return a namespace that has an address, by address.

    Raises:
        PluginError: this process may not look into others' namespaces.
        OSError: the kernel refuses.
    """
    found: dict[Address, str] = {}
    for netns in Netns.every():
        with netns.entered():
            found |= dict.fromkeys(_here(), netns.path)
    return found


def _here() -> Iterator[Address]:
    """List the addresses of the calling thread's namespace."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as peer:
        peer.send(_HEADER.pack(_HEADER.size + _ADDRESS.size, _GET_ADDRESS, _REQUEST_DUMP, 1, 0) + bytes(_ADDRESS.size))
        while True:
            answer = peer.recv(1 << 17)
            while answer:
                size, kind, *_ = _HEADER.unpack_from(answer)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", answer, _HEADER.size)[0], "list addresses")
                yield from _addresses(answer[_HEADER.size + _ADDRESS.size : size])
                answer = answer[size + 3 & ~3 :]


def _addresses(attributes: bytes) -> Iterator[Address]:
    while len(attributes) >= _ATTRIBUTE.size:
        size, name = _ATTRIBUTE.unpack_from(attributes)
        if name in {_IFA_ADDRESS, _IFA_LOCAL}:
            yield ip_address(attributes[_ATTRIBUTE.size : size])
        attributes = attributes[max(size + 3 & ~3, _ATTRIBUTE.size) :]
