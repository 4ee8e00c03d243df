"""The numbers by which a namespace knows others (RTM_GETNSID), as the kernel writes them beside an event.

Owns: asking for one, and having it given.
Refuses: to keep any: a number is another namespace's when its own has ended.
"""

import errno
import struct
from typing import Final

from nodeplug import InvalidNetns, Netns
from nodeplug_net.netlink.connection import Netlink, Request, attributes
from nodeplug_net.netlink.link_messages import attribute
from nodeplug_net.nftables.sockets import Identity

_NEWNSID: Final = 88
_GETNSID: Final = 90
_ACKNOWLEDGED: Final = 0x5
_BODY: Final = 20
_NSID: Final = 1  # NETNSA_NSID
_FD: Final = 3  # NETNSA_FD
_ANY: Final = -1
"""In a request: give one. In a reply: it has none (NETNSA_NSID_NOT_ASSIGNED)."""


def number_of(path: str, namespace: Identity) -> int | None:
    """Return the number that the calling thread's namespace has for another, which gets one if it has none.

    Args:
        path: where the other one is.
        namespace: its identity.

    Returns:
        None if another one is there by now, or the kernel does not say.
    """
    try:
        netns = Netns.open(path)
    except InvalidNetns:
        return None
    try:
        if netns.identity != namespace:
            return None
        with Netlink() as netlink:
            number = _number(netlink, netns.fd)
            if number == _ANY:
                given = attribute(_NSID, struct.pack("=i", _ANY)) + attribute(_FD, struct.pack("=i", netns.fd))
                netlink.ask(_request(_NEWNSID, given, frozenset({errno.EEXIST})))
                number = _number(netlink, netns.fd)
    except OSError:
        return None
    finally:
        netns.close()
    return None if number == _ANY else number


def _number(netlink: Netlink, descriptor: int) -> int:
    answer = netlink.ask(_request(_GETNSID, attribute(_FD, struct.pack("=i", descriptor))))[0]
    for message in answer.messages:
        for kind, start, _ in attributes(message, _BODY):
            if kind == _NSID:
                return int(struct.unpack_from("=i", message, start)[0])
    return _ANY


def _request(kind: int, attrs: bytes, accept: frozenset[int] = frozenset()) -> Request:
    data = struct.pack("=IHHII4x", _BODY + len(attrs), kind, _ACKNOWLEDGED, 0, 0) + attrs
    return Request(bytearray(data), "find the number of a network namespace", accept)
