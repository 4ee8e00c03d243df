"""Duplicate address detection of IPv6 (RFC 4862): an address may be used when no neighbour answers for it.

Owns: the wait for its end (`enabledad`), in the words of the reference (pkg/ip/addr_linux.go).
Refuses: detection itself, which is the kernel's.
"""

import struct
import time
from typing import Final

from nodeplug import PluginError
from nodeplug_net.netlink import messages
from nodeplug_net.netlink.changes import IPV6_ADDRESSES, Changes
from nodeplug_net.netlink.connection import ENODEV, Request
from nodeplug_net.netlink.links import OPER_UP, Link, Links
from nodeplug_net.netlink.messages import u32
from nodeplug_net.netlink.routes import parse_address

_PATIENCE: Final = 5.0
_FLAGS: Final = 18  # ifaddrmsg.ifa_flags, behind the header
_DADFAILED: Final = 0x08
_TENTATIVE: Final = 0x40


def settle(links: Links, link: Link) -> None:
    """Return when the addresses of a link may be used: after a second or two, since the kernel waits for answers.

    Args:
        links: of the link's namespace.
        link: one that is up.

    Raises:
        PluginError: a neighbour has one of them, or detection does not end.
    """
    until = time.monotonic() + _PATIENCE
    words = f'failed to settle addresses for "{link.name}": link {link.name}'
    with Changes(IPV6_ADDRESSES) as changes:
        while not _settled(links, link, words, last=time.monotonic() > until):
            changes.wait(until - time.monotonic())


def _settled(links: Links, link: Link, words: str, *, last: bool) -> bool:
    """Whether the addresses may be used, or nobody can tell.

    Raises:
        PluginError: a neighbour has one of them, or this was the last look.
    """
    data = messages.dump_addresses().fill(index=u32(link.index))
    answer = links.netlink.ask(Request(data, f"list the addresses of interface {link.name}", ENODEV))[0]
    found = [message for message in answer.messages if _is_of(message, link.index)]
    failed = next((parse_address(message).ip for message in found if message[_FLAGS] & _DADFAILED), None)
    if failed is not None:
        raise PluginError(f"{words} has address {failed} in DADFAILED state", details="a neighbour has it")
    if not any(message[_FLAGS] & _TENTATIVE for message in found):
        return True
    if last:
        now = links.at(link.index)
        if now is None or now.state != OPER_UP:
            return True  # which is what the wait for the port of the bridge says
        raise PluginError(f"{words} still has tentative addresses after {_PATIENCE:.0f} seconds")
    return False


def _is_of(message: bytes, index: int) -> bool:
    """Whether an address is of an interface: kernels without strict checking list those of every one."""
    return bool(struct.unpack_from("=I", message, 20)[0] == index)
