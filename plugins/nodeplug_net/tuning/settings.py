"""What tuning sets on an interface: reading it, setting it, and naming what differs.

Owns: the five settings, the order in which the reference sets and restores them, and its sentences about differences.
Refuses: to decide what is wanted (see `config`), and to remember what was (see `backups`).
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from nodeplug import InvalidRequest, PluginError
from nodeplug_net.netlink.connection import Request, attributes
from nodeplug_net.netlink.link_messages import attribute, change_link
from nodeplug_net.netlink.links import Links, get_request, parse_link
from nodeplug_net.netlink.messages import IFF_PROMISC, mac_bytes, u32

_IFLA_ADDRESS: Final = 1
_IFLA_MTU: Final = 4
_IFLA_TXQLEN: Final = 13
_IFF_ALLMULTI: Final = 0x200


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an interface; None is not said.

    Attributes:
        mac: `aa:bb:cc:dd:ee:ff`.
        promisc: whether it was set promiscuous: what a program such as tcpdump needs meanwhile does not count.
        mtu: bytes.
        allmulti: whether it was set to receive all multicast frames.
        queue: frames that may wait to be sent (txqueuelen).
    """

    mac: str | None = None
    promisc: bool | None = None
    mtu: int | None = None
    allmulti: bool | None = None
    queue: int | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, one.name) is not None for one in fields(self))

    def where_said(self, other: "Settings") -> "Settings":
        """Return of these settings those that another says, too."""
        return Settings(**{one.name: getattr(self, one.name) for one in fields(self) if _says(other, one.name)})

    def before(self, other: "Settings") -> "Settings":
        """Return these settings, and the other's where these say nothing."""
        return Settings(
            **{one.name: getattr(self if _says(self, one.name) else other, one.name) for one in fields(self)}
        )


def _says(settings: Settings, name: str) -> bool:
    return getattr(settings, name) is not None


@dataclass(frozen=True, slots=True)
class Tuned:
    """An interface.

    Attributes:
        index: in its namespace.
        settings: all five; `mac` is empty if it has none.
    """

    index: int
    name: str
    settings: Settings


def look(links: Links, name: str) -> Tuned | None:
    """Find an interface by name."""
    answer = links.netlink.ask(get_request(name))[0]
    if not answer.messages:
        return None
    message = answer.messages[0]
    link = parse_link(message)
    found = {kind: start for kind, start, _ in attributes(message, 32)}
    queue = struct.unpack_from("=I", message, found[_IFLA_TXQLEN])[0] if _IFLA_TXQLEN in found else 0
    allmulti = bool(link.flags & _IFF_ALLMULTI)
    return Tuned(link.index, link.name, Settings(link.mac, link.is_promiscuous, link.mtu, allmulti, queue))


def find(links: Links, name: str) -> Tuned:
    """Find an interface by name.

    Raises:
        PluginError: there is none.
    """
    link = look(links, name)
    if link is None:
        raise PluginError(f'failed to get "{name}": Link not found', details="the plugin before in the list makes it")
    return link


def change(links: Links, link: Tuned, settings: Settings) -> None:
    """Set what is said, in the reference's order.

    Raises:
        PluginError: the kernel refuses.
    """
    if settings.mac and link.settings.mac and len(settings.mac) != len(link.settings.mac):
        found = f"interface {link.name} has addresses as long as {link.settings.mac}"
        raise InvalidRequest("invalid argument", details=f"the MAC {settings.mac} is of another kind: {found}")
    for request in _requests(link, settings):
        _ask(links, request)


def restore(links: Links, link: Tuned, settings: Settings) -> list[str]:
    """Set what is said, each even if another one fails; return the reference's sentences about those that failed."""
    failures = []
    for what, one in (
        ("MTU", Settings(mtu=settings.mtu)),
        ("MAC address", Settings(mac=settings.mac)),
        ("promiscuous mode", Settings(promisc=settings.promisc)),
        ("all-multicast mode", Settings(allmulti=settings.allmulti)),
        ("transmit queue length", Settings(queue=settings.queue)),
    ):
        try:
            change(links, link, one)
        except PluginError as error:
            failures.append(f"failed to restore {what}: {error}")
    return failures


def _requests(link: Tuned, settings: Settings) -> Iterator[Request]:
    name = f"of interface {link.name}"
    if settings.mac:
        data = change_link(link.index, attribute(_IFLA_ADDRESS, mac_bytes(settings.mac)))
        yield Request(data, f"set the MAC {name} to {settings.mac}")
    if settings.promisc is not None:
        flags = IFF_PROMISC if settings.promisc else 0
        data = change_link(link.index, flags=flags, change=IFF_PROMISC)
        yield Request(data, f"set promiscuous mode {name} to {_word(settings.promisc)}")
    if settings.mtu is not None:
        yield Request(
            change_link(link.index, attribute(_IFLA_MTU, u32(settings.mtu))), f"set the MTU {name} to {settings.mtu}"
        )
    if settings.allmulti is not None:
        flags = _IFF_ALLMULTI if settings.allmulti else 0
        data = change_link(link.index, flags=flags, change=_IFF_ALLMULTI)
        yield Request(data, f"set all-multicast mode {name} to {_word(settings.allmulti)}")
    if settings.queue is not None:
        data = change_link(link.index, attribute(_IFLA_TXQLEN, u32(settings.queue)))
        yield Request(data, f"set the transmit queue length {name} to {settings.queue}")


def _ask(links: Links, request: Request) -> None:
    try:
        links.netlink.ask(request)
    except OSError as error:
        said = os.strerror(error.errno or 0).lower()
        raise PluginError(said, details=error.strerror or "") from error


def differences(name: str, wanted: Settings, found: Settings) -> Iterator[str]:
    """Compare an interface with what is wanted, in the reference's sentences."""
    if wanted.mac and wanted.mac != found.mac:
        yield f"Error: Tuning configured Ethernet of {name} is {wanted.mac}, current value is {found.mac}"
    promisc = bool(wanted.promisc)
    if promisc != found.promisc:
        now = int(bool(found.promisc))
        yield f"Error: Tuning link {name} configured promisc is {_word(promisc)}, current value is {now}"
    if wanted.mtu is not None and wanted.mtu != found.mtu:
        yield f"Error: Tuning configured MTU of {name} is {wanted.mtu}, current value is {found.mtu}"
    if wanted.allmulti is not None and wanted.allmulti != found.allmulti:
        said, now_said = _word(wanted.allmulti), _word(bool(found.allmulti))
        yield f"Error: Tuning configured all-multicast mode of {name} is {said}, current value is {now_said}"
    if wanted.queue is not None and wanted.queue != found.queue:
        said = f"is {wanted.queue}, current value is {found.queue}"
        yield f"Error: Tuning configured Transmit Queue Length of {name} {said}"


def _word(value: bool) -> str:
    return "true" if value else "false"
