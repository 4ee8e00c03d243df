"""Moving an interface between the host and a container.

Owns: the messages of both ways, and what of a half-done way is found again.
Refuses: to know which interface (see `devices`), and who has it (see `records`).

The way in is one message: the kernel moves the interface, then names it in the container, where nobody's udev looks.
On the way out it is named in the container first, with the attachment's label as its alias, and then appears on the
host under its own name: a name that changes there within a moment is what udev and NetworkManager trip over. A daemon
that is killed between the two finds it by that label. The alias of an interface in a container is its name on the
host, as with the reference, so that either gives back what the other brought.
"""

import os
import re
from typing import Final

from nodeplug import Netns, PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink.connection import EEXIST, Request
from nodeplug_net.netlink.link_messages import attribute, change_link, name_link
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.netlink.messages import IFF_UP, u32

_IFLA_IFNAME: Final = 3
_IFLA_IFALIAS: Final = 20
_IFLA_NET_NS_FD: Final = 28
_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[^\s/:]{1,15}")
_GIVEN_BY_THE_KERNEL: Final = re.compile(r"dev\d+")


def move_in(outer: Links, device: Link, netns: Netns, ifname: str) -> None:
    """Move an interface of the host into a container, under another name; it is down there.

    Raises:
        PluginError: the kernel refuses.
    """
    attrs = _named(ifname) + attribute(_IFLA_NET_NS_FD, u32(netns.fd))
    data = change_link(device.index, attrs + attribute(_IFLA_IFALIAS, device.name.encode()))
    try:
        outer.netlink.ask(Request(data, f"move interface {device.name} to {netns.path} as {ifname}"))
    except OSError as error:
        words = f'failed to move link failed to move "{device.name}" to tempNS: {os.strerror(error.errno or 0).lower()}'
        raise PluginError(words, details=error.strerror or "") from error


def find_inside(inner: Links, attachment: Attachment, device: str) -> tuple[Link, str] | None:
    """Find the interface of an attachment in its container, and its name on the host.

    Args:
        inner: the links of the container.
        attachment: whose it is.
        device: its name on the host as far as that is recorded, or empty.
    """
    link = inner.get(attachment.ifname)
    if link is not None and is_name(link.alias):
        return link, link.alias
    if link is not None and device and not link.alias:
        return link, device
    half = next((one for one in inner.all() if one.alias == attachment.label and one.name != attachment.ifname), None)
    return None if half is None else (half, half.name)


def is_name(text: str) -> bool:
    """Whether an alias can be the name of an interface."""
    return bool(_NAME.fullmatch(text))


def move_out(inner: Links, outer: Links, link: Link, device: str, attachment: Attachment, host: Netns) -> None:
    """Move an interface of a container back to the host, where it is down; a failure leaves it in the container.

    Args:
        inner: the links of the container.
        outer: those of the host.
        link: the interface.
        device: its name on the host.
        attachment: whose it is.
        host: the namespace of the host.

    Raises:
        PluginError: the host has another interface of that name, or the kernel refuses.
        OSError: the kernel refuses.
    """
    if outer.get(device) is not None:
        raise _refused(device, "file exists", f"the host has another interface {device}: rename that one")
    if link.name != device:
        inner.set_down(link)
        what = f"name interface {link.name} of the container {device}"
        inner.netlink.ask(Request(name_link(link.index, device, attachment.label), what, EEXIST))
    attrs = _named(device) + attribute(_IFLA_NET_NS_FD, u32(host.fd)) + attribute(_IFLA_IFALIAS, b"")
    try:
        inner.netlink.ask(Request(change_link(link.index, attrs), f"move interface {device} to the host"))
    except OSError as error:
        back = name_link(link.index, attachment.ifname, device)
        inner.netlink.ask(Request(back, f"name interface {device} {attachment.ifname}", frozenset({error.errno or 0})))
        if link.is_up:
            inner.set_up(link)
        raise _refused(device, os.strerror(error.errno or 0).lower(), error.strerror or "") from error


def _refused(device: str, why: str, details: str) -> PluginError:
    return PluginError(f'failed to move "{device}" to hostNS: {why}', details=details)


def take_back(outer: Links, device: str, ifname: str) -> bool:
    """Name an interface that the kernel returned to the host, because its container's namespace ended.

    The kernel keeps the alias, and the name of the container unless the host has one of that name: then it is `dev0`
    and so on.

    Args:
        outer: the links of the host.
        device: its name on the host.
        ifname: its name in the container.

    Returns:
        Whether the host has it, named now or before.
    """
    if outer.get(device) is not None:
        return True
    for link in outer.all():
        if link.alias == device and (link.name == ifname or _GIVEN_BY_THE_KERNEL.fullmatch(link.name)):
            attrs = _named(device) + attribute(_IFLA_IFALIAS, b"")
            down = Request(change_link(link.index, change=IFF_UP), f"set interface {link.name} down")
            outer.netlink.ask(down, Request(change_link(link.index, attrs), f"name interface {link.name} {device}"))
            return True
    return False


def _named(name: str) -> bytes:
    return attribute(_IFLA_IFNAME, name.encode() + b"\0")
