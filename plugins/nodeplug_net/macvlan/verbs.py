"""The verbs of macvlan: what is special about a second hardware address on an interface.

Owns: what the interface below must be, and the attributes of this kind.
Refuses: the order of the steps (see `inner_link`), and finding the interface below (see `lower_link`).

Source: plugins/main/macvlan of the CNI plugins, whose sentences these are.
"""

import struct
from dataclasses import replace
from typing import Final

from nodeplug import CniAdd, CniCheck, CniResult, CniStatus, InvalidRequest
from nodeplug_net.comparison import refuse
from nodeplug_net.inner_attachment import ARP_NOTIFY, NDISC_NOTIFY, differences
from nodeplug_net.inner_link import InnerLinks
from nodeplug_net.lower_link import Upper, find_lower, links_below, require_lower
from nodeplug_net.macvlan.config import MODES, parse_macvlan
from nodeplug_net.netlink.link_messages import attribute
from nodeplug_net.netlink.links import Link, links_in
from nodeplug_net.netlink.messages import u32

KIND: Final = "macvlan"
_REFUSED: Final = "failed to create macvlan: {}"
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
        with links_below(request.netns, inside=config.inside) as outer:
            master = find_lower(outer, config.master)
            if not 0 <= config.mtu <= master.mtu:
                raise InvalidRequest(f"invalid MTU {config.mtu}, must be [0, master MTU({master.mtu})]")
            data = attribute(_IFLA_MACVLAN_MODE, u32(config.mode_number))
            if config.queue:
                data += attribute(_IFLA_MACVLAN_BC_QUEUE_LEN, u32(config.queue))
            upper = Upper(KIND, _REFUSED, data, inside=config.inside, mac=config.address, mtu=config.mtu)
            create = upper.creation(request, outer, master)
            result = self.make(request, config.ipam, create, sysctls=(ARP_NOTIFY, NDISC_NOTIFY) if config.ipam else ())
        return replace(result, dns=config.dns)

    def differences(self, request: CniCheck) -> list[str]:
        """Name what of the container's interface is not as the result says.

        Raises:
            PluginError: what it needs is not there, or the configuration is wrong.
            OSError: the kernel refuses.
        """
        config = parse_macvlan(request)
        with links_below(request.netns, inside=config.inside) as outer, links_in(request.netns) as inner:
            find_lower(outer, config.master)
            inside = inner.get(request.ifname)
            found = list(differences(request, inner, inside, KIND))
            mode = _mode_of(inside)
            if mode and mode != config.mode:
                found.append(f"container macvlan mode {mode} does not match expected value: {config.mode}")
        return found

    def check(self, request: CniCheck) -> None:
        """Serve CHECK.

        Raises:
            PluginError: with every difference.
            OSError: the kernel refuses.
        """
        refuse(request, self.differences(request))
        self.addressing.check(request, parse_macvlan(request).ipam)

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            NotReady: the interface below is missing or down, or IPAM has no address.
            LimitedConnectivity: the interface below is missing or down, and containers are attached.
            OSError: the kernel refuses.
        """
        config = parse_macvlan(request)
        if not config.inside:
            require_lower(request, lambda links: find_lower(links, config.master), self.addressing, config.ipam)
        self.addressing.status(request, config.ipam)


def _mode_of(link: Link | None) -> str:
    if link is None or link.kind != KIND:
        return ""
    number = struct.unpack_from("=I", link.kind_data.get(_IFLA_MACVLAN_MODE, bytes(4)))[0]
    return next((name for name, one in MODES.items() if one == number), "")
