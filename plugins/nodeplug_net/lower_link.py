"""Interfaces on top of another one: ipvlan, macvlan, vlan.

Owns: the namespace of the interface below, finding it, what STATUS asks of it, and the message that makes one on it.
Refuses: what is special about a kind.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nodeplug import CniAdd, CniStatus, InvalidRequest, LimitedConnectivity, Netns, NotReady, PluginError
from nodeplug_net.inner_link import Create
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.netlink.connection import Netlink, Request
from nodeplug_net.netlink.link_messages import create_link
from nodeplug_net.netlink.links import Link, Links, links_in


@dataclass(frozen=True, slots=True)
class Upper:
    """What is asked of the kernel for an interface on another one.

    Attributes:
        kind: as the kernel names it.
        refused: the sentence about the kernel's refusal; `{}` stands for its reason.
        data: attributes of that kind, encoded.
        inside: whether the interface below is in the container.
        mac: the hardware address, or empty.
        mtu: bytes; 0 or less leaves it to the kernel.
    """

    kind: str
    refused: str
    data: bytes
    inside: bool = False
    mac: str = ""
    mtu: int = 0

    def creation(self, request: CniAdd, outer: Links, lower: Link) -> Create:
        """Return what makes it, in the container, under a name.

        Args:
            request: with the container's namespace.
            outer: the links of the namespace of the interface below.
            lower: the interface below.
        """

        def create(_: Links, name: str) -> None:
            netns = None if self.inside else request.netns.fd
            message = create_link(
                self.kind, name, data=self.data, parent=lower.index, netns=netns, mac=self.mac, mtu=max(self.mtu, 0)
            )
            what = f"create interface {request.ifname} in {request.netns.path} on {lower.name}"
            with creating(self.refused):
                outer.netlink.ask(Request(message, what))

        return create


@contextmanager
def creating(refused: str) -> Iterator[None]:
    """Say in the reference's words that the kernel refuses an interface.

    Args:
        refused: the sentence; `{}` stands for the reason.

    Raises:
        PluginError: instead of OSError.
    """
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise PluginError(refused.format(reason), details=error.strerror or "") from error


@contextmanager
def links_below(netns: Netns, *, inside: bool) -> Iterator[Links]:
    """Open the links of the namespace where the interface below is: the container's or the caller's."""
    if inside:
        with links_in(netns) as links:
            yield links
    else:
        with Netlink() as netlink:
            yield Links(netlink)


def find_lower(links: Links, name: str, *, words: str = "Link not found") -> Link:
    """Find the interface below.

    Args:
        links: of its namespace.
        name: its own; empty for the one of the default route.
        words: what is said if there is none.

    Raises:
        InvalidRequest: there is none.
    """
    index = 0 if name else links.default_route()
    if index is None:
        raise InvalidRequest("no default route interface found", details="name the interface below in key 'master'")
    lower = links.at(index) if index else links.get(name)
    if lower is None:
        raise InvalidRequest(words, details=f"interface {name or index} of key 'master'")
    return lower


def require_lower(request: CniStatus, find: Callable[[Links], Link], addressing: Addressing, ipam: str) -> None:
    """Refuse STATUS without an interface below that is up.

    Args:
        request: of STATUS.
        find: finds it among the links of the host.
        addressing: knows who has addresses of the network.
        ipam: the IPAM plugin, or empty.

    Raises:
        LimitedConnectivity: it is missing or down, and containers are attached: what they have leads nowhere.
        NotReady: it is missing or down.
    """
    with Netlink() as netlink:
        try:
            lower = find(Links(netlink))
            found = "" if lower.is_up else f"interface {lower.name} is down; set it up"
        except InvalidRequest as error:
            found = str(error)
    if not found:
        return
    attached = {label for label, _ in addressing.owners(request, ipam)}
    if attached:
        lost = f"{len(attached)} attached {'container has' if len(attached) == 1 else 'containers have'} no connection"
        raise LimitedConnectivity(f"network {request.network}: {found}; {lost} meanwhile")
    raise NotReady(f"network {request.network}: {found}")
