"""The verbs of vlan: what is special about an interface in a VLAN of another.

Owns: what the interface below must be, and the attributes of this kind.
Refuses: the order of the steps (see `inner_link`), and finding the interface below (see `lower_link`).

Source: plugins/main/vlan of the CNI plugins, whose sentences these are.
"""

import struct
from dataclasses import replace
from typing import Final

from nodeplug import CniAdd, CniCheck, CniResult, CniStatus, InvalidRequest, PluginError
from nodeplug_net.comparison import refuse
from nodeplug_net.inner_attachment import differences
from nodeplug_net.inner_link import InnerLinks
from nodeplug_net.ipam.addressing import MISSING, Addressing
from nodeplug_net.lower_link import Upper, find_lower, links_below, require_lower
from nodeplug_net.netlink.link_messages import attribute
from nodeplug_net.netlink.links import Link, links_in
from nodeplug_net.undo import Undo
from nodeplug_net.vlan.config import parse_vlan

KIND: Final = "vlan"
_REFUSED: Final = "failed to create vlan: {}"
_IFLA_VLAN_ID: Final = 1
_IFLA_VLAN_FLAGS: Final = 2
_U16: Final = struct.Struct("=H")


class VlanAddressing(Addressing):
    """Where the addresses of a network come from, with the words that the reference's vlan puts before failures."""

    def add(self, request: CniAdd, plugin_type: str, undo: Undo) -> CniResult:
        """Get addresses.

        Raises:
            PluginError: IPAM has none.
        """
        try:
            return super().add(request, plugin_type, undo)
        except PluginError as error:
            if error.message != MISSING:
                error.message = f"failed to execute IPAM delegate: {error.message}"
            raise


class Vlans(InnerLinks):
    """The verbs of vlan."""

    def attach(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves nothing behind.

        Raises:
            PluginError: the configuration is wrong, IPAM has no address, or the interface's name is taken.
            OSError: the kernel refuses.
        """
        config = parse_vlan(request)
        with links_below(request.netns, inside=config.inside) as outer:
            master = find_lower(outer, config.master)
            if not 0 <= config.mtu <= master.mtu:
                raise InvalidRequest(f"invalid MTU {config.mtu}, must be [0, master MTU({master.mtu})]")
            if not config.ipam:
                words = "failed to execute IPAM delegate: no plugin name provided"
                raise InvalidRequest(words, details="there is no key 'ipam.type'")
            data = attribute(_IFLA_VLAN_ID, _U16.pack(config.number)) + attribute(_IFLA_VLAN_FLAGS, bytes(8))
            upper = Upper(KIND, _REFUSED, data, inside=config.inside, mtu=config.mtu)
            result = self.make(request, config.ipam, upper.creation(request, outer, master))
        return replace(result, dns=config.dns)

    def differences(self, request: CniCheck) -> list[str]:
        """Name what of the container's interface is not as the result says.

        Raises:
            PluginError: what it needs is not there, or the configuration is wrong.
            OSError: the kernel refuses.
        """
        config = parse_vlan(request)
        with links_below(request.netns, inside=config.inside) as outer, links_in(request.netns) as inner:
            find_lower(outer, config.master, words=f'failed to lookup master "{config.master}": Link not found')
            link = inner.get(request.ifname)
            found = list(differences(request, inner, link, KIND))
        if link is not None and link.kind == KIND:
            if (number := number_of(link)) != config.number:
                found.append(f"interface {link.name} is in VLAN {number}, not {config.number}")
            if config.mtu not in {0, link.mtu}:
                found.append(
                    f"Error: Tuning configured MTU of {link.name} is {config.mtu}, current value is {link.mtu}"
                )
        return found

    def check(self, request: CniCheck) -> None:
        """Serve CHECK.

        Raises:
            PluginError: with every difference.
            OSError: the kernel refuses.
        """
        refuse(request, self.differences(request))
        self.addressing.check(request, parse_vlan(request).ipam)

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            NotReady: the interface below is missing or down, or IPAM has no address.
            LimitedConnectivity: the interface below is missing or down, and containers are attached.
            InvalidRequest: a key is wrong.
        """
        config = parse_vlan(request)
        if not config.inside:
            require_lower(request, lambda links: find_lower(links, config.master), self.addressing, config.ipam)
        self.addressing.status(request, config.ipam)


def number_of(link: Link) -> int:
    """Return the number of an interface's VLAN."""
    return int(_U16.unpack_from(link.kind_data.get(_IFLA_VLAN_ID, bytes(2)))[0])
