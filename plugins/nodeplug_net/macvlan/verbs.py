"""The verbs of macvlan: what is special about a second hardware address on an interface.

Owns: finding the interface below, and what is asked of it; the message that makes an interface on it.
Refuses: the order of the steps (see `inner_link`).

Source: plugins/main/macvlan of the CNI plugins, whose sentences these are.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from nodeplug import CniAdd, CniCheck, CniResult, CniStatus, InvalidRequest, Netns, NotReady, PluginError
from nodeplug_net.comparison import refuse
from nodeplug_net.inner_attachment import ARP_NOTIFY, NDISC_NOTIFY, differences
from nodeplug_net.inner_link import InnerLinks
from nodeplug_net.macvlan.config import MODES, MacvlanConfig, parse_macvlan
from nodeplug_net.netlink.connection import Netlink, Request
from nodeplug_net.netlink.link_messages import attribute, create_link
from nodeplug_net.netlink.links import Link, Links, links_in
from nodeplug_net.netlink.messages import u32

KIND: Final = "macvlan"
_IFLA_MACVLAN_MODE: Final = 1
_IFLA_MACVLAN_BC_QUEUE_LEN: Final = 7


class Macvlans(InnerLinks):
    """The verbs of macvlan."""

    def attach(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves nothing behind.

        Raises:
            PluginError: the configuration is wrong, IPAM has no address, or the interface's name is taken.
            OSError: the kernel refuses.
        """
        config = parse_macvlan(request)
        with _outer(request.netns, config) as outer:
            master = _master(outer, config)
            if not 0 <= config.mtu <= master.mtu:
                raise InvalidRequest(f"invalid MTU {config.mtu}, must be [0, master MTU({master.mtu})]")
            mode, mac = config.mode_number, config.address

            def create(_: Links, name: str) -> None:
                data = attribute(_IFLA_MACVLAN_MODE, u32(mode))
                if config.queue:
                    data += attribute(_IFLA_MACVLAN_BC_QUEUE_LEN, u32(config.queue))
                netns = None if config.inside else request.netns.fd
                message = create_link(KIND, name, data=data, parent=master.index, netns=netns, mac=mac, mtu=config.mtu)
                what = f"create interface {request.ifname} in {request.netns.path} on {master.name}"
                try:
                    outer.netlink.ask(Request(message, what))
                except OSError as error:
                    reason = os.strerror(error.errno or 0).lower()
                    raise PluginError(f"failed to create macvlan: {reason}", details=error.strerror or "") from error

            result = self.make(request, config.ipam, create, sysctls=(ARP_NOTIFY, NDISC_NOTIFY) if config.ipam else ())
        return replace(result, dns=config.dns)

    def check(self, request: CniCheck) -> None:
        """Serve CHECK.

        Raises:
            PluginError: with every difference.
            OSError: the kernel refuses.
        """
        config = parse_macvlan(request)
        with _outer(request.netns, config) as outer, links_in(request.netns) as inner:
            _master(outer, config)
            inside = inner.get(request.ifname)
            found = list(differences(request, inner, inside, KIND))
            mode = _mode_of(inside)
            if mode and mode != config.mode:
                found.append(f"container macvlan mode {mode} does not match expected value: {config.mode}")
        refuse(request, found)
        self.addressing.check(request, config.ipam)

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            NotReady: the interface below is missing or down, or IPAM has no address.
            OSError: the kernel refuses.
        """
        config = parse_macvlan(request)
        if not config.inside:
            with Netlink() as netlink:
                try:
                    master = _master(Links(netlink), config)
                except InvalidRequest as error:
                    raise NotReady(f"network {request.network}: {error}") from error
            if not master.is_up:
                raise NotReady(f"network {request.network}: interface {master.name} is down; set it up")
        self.addressing.status(request, config.ipam)


@contextmanager
def _outer(netns: Netns, config: MacvlanConfig) -> Iterator[Links]:
    """Open the links of the namespace where the interface below is."""
    if config.inside:
        with links_in(netns) as links:
            yield links
    else:
        with Netlink() as netlink:
            yield Links(netlink)


def _master(links: Links, config: MacvlanConfig) -> Link:
    """Find the interface below.

    Raises:
        InvalidRequest: there is none.
    """
    index = 0 if config.master else links.default_route()
    if index is None:
        raise InvalidRequest("no default route interface found", details="name the interface below in key 'master'")
    master = links.at(index) if index else links.get(config.master)
    if master is None:
        raise InvalidRequest("Link not found", details=f"interface {config.master or index} of key 'master'")
    return master


def _mode_of(link: Link | None) -> str:
    if link is None or link.kind != KIND:
        return ""
    number = struct.unpack_from("=I", link.kind_data.get(_IFLA_MACVLAN_MODE, bytes(4)))[0]
    return next((name for name, one in MODES.items() if one == number), "")
