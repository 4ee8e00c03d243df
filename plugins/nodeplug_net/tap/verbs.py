"""The verbs of tap: what is special about an interface whose frames a program reads and writes.

Owns: what is set on it before it has its name, and its place in a bridge of the container.
Refuses: the order of the steps (see `inner_link`).

Source: plugins/main/tap of the CNI plugins, whose sentences these are.
"""

import os
from dataclasses import replace
from typing import Final

from nodeplug import CniAdd, CniCheck, CniResult, CniStatus, InvalidRequest, NotReady, PluginError
from nodeplug_net.comparison import refuse
from nodeplug_net.inner_attachment import ARP_NOTIFY, differences
from nodeplug_net.inner_link import InnerLinks
from nodeplug_net.netlink.connection import Request
from nodeplug_net.netlink.link_messages import attribute, change_link
from nodeplug_net.netlink.links import Link, Links, links_in
from nodeplug_net.netlink.messages import mac_bytes, u32
from nodeplug_net.tap.config import TapConfig, parse_tap
from nodeplug_net.tap.device import make_labelled_tap, make_tap

KIND: Final = "tun"
"""The kernel's one kind for both, tun and tap."""
_IFLA_ADDRESS: Final = 1
_IFLA_MTU: Final = 4
_IFLA_MASTER: Final = 10


class Taps(InnerLinks):
    """The verbs of tap."""

    def attach(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves nothing behind.

        Raises:
            PluginError: the configuration is wrong, IPAM has no address, or the interface's name is taken.
            OSError: the kernel refuses.
        """
        config = parse_tap(request)

        def create(inner: Links, name: str) -> None:
            master = _bridge(inner, config)
            try:
                with request.netns.entered():
                    (make_labelled_tap if config.context else make_tap)(name, config)
                link = inner.get(name)
                if link is not None:
                    _set_up(inner, link, config)
            except OSError as error:
                reason = os.strerror(error.errno or 0).lower()
                raise PluginError(f"failed to create tap: {reason}", details=str(error)) from error
            if link is not None and master is not None:
                _join(inner, link, master, request.ifname)

        sysctls = (ARP_NOTIFY,) if config.ipam else ()
        # Until a program opens it, there is no carrier: nobody can be asked who has an address.
        result = self.make(request, config.ipam, create, sysctls=sysctls, waits_for_duplicates=False)
        return replace(result, dns=config.dns)

    def differences(self, request: CniCheck) -> list[str]:
        """Name what of the container's interface is not as the result says.

        Raises:
            PluginError: what it needs is not there, or the configuration is wrong.
            OSError: the kernel refuses.
        """
        config = parse_tap(request)
        with links_in(request.netns) as inner:
            link = inner.get(request.ifname)
            found = list(differences(request, inner, link, KIND))
            if config.bridge and link is not None:
                bridge = inner.get(config.bridge)
                if bridge is None or link.master != bridge.index:
                    found.append(f"interface {request.ifname} is no port of bridge {config.bridge}")
        return found

    def check(self, request: CniCheck) -> None:
        """Serve CHECK.

        Raises:
            PluginError: with every difference.
            OSError: the kernel refuses.
        """
        refuse(request, self.differences(request))
        self.addressing.check(request, parse_tap(request).ipam)

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            NotReady: there is no /dev/net/tun, or IPAM has no address.
            InvalidRequest: a key is wrong.
        """
        config = parse_tap(request)
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise NotReady(f"network {request.network}: /dev/net/tun is missing; load the module tun")
        self.addressing.status(request, config.ipam)


def _bridge(inner: Links, config: TapConfig) -> Link | None:
    master = inner.get(config.bridge) if config.bridge else None
    if config.bridge and master is None:
        words = f"failed to get bridge {config.bridge}: Link not found"
        raise InvalidRequest(words, details="it is looked for in the container")
    return master


def _set_up(inner: Links, link: Link, config: TapConfig) -> None:
    attrs = attribute(_IFLA_MTU, u32(config.mtu & 0xFFFFFFFF)) if config.mtu else b""
    if config.mac:
        attrs += attribute(_IFLA_ADDRESS, mac_bytes(config.mac))
    if attrs:
        inner.netlink.ask(Request(change_link(link.index, attrs), "set the MTU and the MAC of the tap"))


def _join(inner: Links, link: Link, master: Link, ifname: str) -> None:
    data = change_link(link.index, attribute(_IFLA_MASTER, u32(master.index)))
    try:
        inner.netlink.ask(Request(data, f"make interface {ifname} a port of bridge {master.name}"))
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        words = f"failed to set tap {ifname} as a port of bridge {master.name}: {reason}"
        raise PluginError(words, details=error.strerror or "") from error
