"""The verbs of ipvlan: what is special about an interface that shares a hardware address.

Owns: the attributes of this kind, and addresses of the plugin before in a list.
Refuses: the order of the steps (see `inner_link`), and finding the interface below (see `lower_link`).

Source: plugins/main/ipvlan of the CNI plugins, whose sentences these are.
"""

import struct
from dataclasses import replace
from functools import partial
from typing import Final

from nodeplug import CniAdd, CniCheck, CniResult, CniStatus, InvalidRequest
from nodeplug_net.comparison import refuse
from nodeplug_net.inner_attachment import ARP_NOTIFY, NDISC_NOTIFY, differences
from nodeplug_net.inner_link import InnerLinks
from nodeplug_net.ipvlan.config import MODES, IpvlanConfig, parse_ipvlan
from nodeplug_net.lower_link import Upper, find_lower, links_below, require_lower
from nodeplug_net.netlink.link_messages import attribute
from nodeplug_net.netlink.links import Link, Links, links_in

KIND: Final = "ipvlan"
_REFUSED: Final = "failed to create ipvlan: {}"
_IFLA_IPVLAN_MODE: Final = 1
_IFLA_IPVLAN_FLAGS: Final = 2
_U16: Final = struct.Struct("=H")


class Ipvlans(InnerLinks):
    """The verbs of ipvlan."""

    def attach(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves nothing behind.

        Raises:
            PluginError: the configuration is wrong, IPAM has no address, or the interface's name is taken.
            OSError: the kernel refuses.
        """
        config = parse_ipvlan(request)
        with links_below(request.netns, inside=config.inside) as outer:
            data = attribute(_IFLA_IPVLAN_MODE, _U16.pack(config.mode_number))
            data += attribute(_IFLA_IPVLAN_FLAGS, _U16.pack(0))
            upper = Upper(KIND, _REFUSED, data, inside=config.inside, mtu=config.mtu)
            create = upper.creation(request, outer, _find(outer, config))
            given = request.prev_result
            if not config.ipam and (given is None or not given.ips):
                raise InvalidRequest("no plugin name provided", details="there is no key 'ipam.type'")
            result = self.make(request, config.ipam, create, sysctls=(ARP_NOTIFY, NDISC_NOTIFY), given=given)
        return replace(result, dns=config.dns)

    def differences(self, request: CniCheck) -> list[str]:
        """Name what of the container's interface is not as the result says.

        Raises:
            PluginError: what it needs is not there, or the configuration is wrong.
            OSError: the kernel refuses.
        """
        config = parse_ipvlan(request)
        number = config.mode_number
        with links_below(request.netns, inside=config.inside) as outer, links_in(request.netns) as inner:
            if config.master:
                _find(outer, config)
            link = inner.get(request.ifname)
            found = list(differences(request, inner, link, KIND))
        now = mode_of(link)
        if now not in {"", list(MODES)[number]}:
            found.append(f"Container IPVlan mode {now} does not match expected value: {config.mode}")
        return found

    def check(self, request: CniCheck) -> None:
        """Serve CHECK.

        Raises:
            PluginError: with every difference.
            OSError: the kernel refuses.
        """
        refuse(request, self.differences(request))
        self.addressing.check(request, parse_ipvlan(request).ipam)

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            NotReady: the interface below is missing or down, or IPAM has no address.
            LimitedConnectivity: the interface below is missing or down, and containers are attached.
            InvalidRequest: a key is wrong.
        """
        config = parse_ipvlan(request)
        if config.master and not config.inside:
            require_lower(request, partial(_find, config=config), self.addressing, config.ipam)
        self.addressing.status(request, config.ipam)


def _find(links: Links, config: IpvlanConfig) -> Link:
    return find_lower(links, config.master, words=f'failed to lookup master "{config.master}": Link not found')


def mode_of(link: Link | None) -> str:
    """Return the mode of an interface by name; empty if it is of another kind."""
    if link is None or link.kind != KIND:
        return ""
    number = _U16.unpack_from(link.kind_data.get(_IFLA_IPVLAN_MODE, bytes(2)))[0]
    return next((name for name, one in MODES.items() if one == number), "")
