"""What the containers of a network need on their host, and whether it exists.

Owns: one record per network with containers of what its newest ADD made (bridge, gateway addresses, masqueraded
subnets), and the comparison of it with the kernel while any container of the network is attached. STATUS and `health`
use it, so that a deleted bridge or a flushed ruleset is reported before the next pod fails.
Refuses: repair, networks without a container, and other namespaces than the daemon's own.
"""

import json
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, Final, Protocol

from nodeplug import CniAdd, CniRequest, CniResult, Host, Netns, NotReady, PluginError
from nodeplug_net.attachment import network_label
from nodeplug_net.forwarding import not_forwarding
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.nftables.masquerade import Masquerade, network_of
from nodeplug_net.nftables.sockets import Identity, open_nft

_PHASE: Final = "network"
_AGAIN: Final = "the next ADD, STATUS or GC of the network repairs it"
_ANEW: Final = "recreate their containers"


class NetworkConfig(Protocol):
    """What is read of the configuration of a network; without a bridge each container has a link to the host."""

    @property
    def bridge(self) -> str:
        """The bridge, or empty."""

    @property
    def is_gateway(self) -> bool:
        """Whether the host is the gateway."""

    @property
    def ip_masq(self) -> bool:
        """Whether addresses are masqueraded."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What one network needs.

    Attributes:
        bridge: the bridge of its ports; empty if each container has a link of its own to the host.
        gateways: addresses that the host has for it, without a prefix.
        subnets: those that are masqueraded.
        made_for: the configuration; a changed one voids these needs.
    """

    bridge: str
    gateways: frozenset[str] = frozenset()
    subnets: frozenset[str] = frozenset()
    made_for: str = ""

    def covers(self, other: "Needs") -> bool:
        """Whether these include another's needs."""
        same = (self.bridge, self.made_for) == (other.bridge, other.made_for)
        return same and other.gateways <= self.gateways and other.subnets <= self.subnets

    def with_those(self, other: "Needs") -> "Needs":
        """Return the needs after one more ADD."""
        if (self.bridge, self.made_for) != (other.bridge, other.made_for):
            return other
        return Needs(self.bridge, self.gateways | other.gateways, self.subnets | other.subnets, self.made_for)


@dataclass(slots=True)
class Networks:
    """The networks of the daemon's own namespace. Any thread may call it: one entry per network."""

    host: Host
    home: Identity | None = None
    _known: dict[str, Needs] = field(default_factory=dict)
    _noted: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def recover(self) -> None:
        """Read what was recorded in this boot; the calling thread is in the daemon's own namespace."""
        current = Netns.current()
        self.home = current.identity
        current.close()
        for entry in self.host.journal.entries():
            if entry.phase != _PHASE:
                continue
            if self.host.journal.is_stale(entry):
                self.host.journal.remove(entry.key)
            elif (needs := _decode(entry.data)) is not None:
                self._known[entry.key.removeprefix("network ")] = needs

    def note(
        self,
        request: CniAdd,
        config: NetworkConfig,
        result: CniResult,
        versions: Collection[int] = (4, 6),
        *,
        same_subnet: bool = False,
    ) -> None:
        """Record what an ADD made, unless that is known.

        Args:
            request: the ADD.
            config: of its network.
            result: its own.
            versions: of IP, that are masqueraded if any is.
            same_subnet: whether they are within the subnet, too.
        """
        if request.host_netns.identity != self.home:
            return
        needs = _of(request, config, result, versions, same_subnet=same_subnet)
        with self._lock:
            self._noted[request.network] += 1
            known = self._known.get(request.network, needs)
            if known.covers(needs) and request.network in self._known:
                return
            self._known[request.network] = known = known.with_those(needs)
            try:
                self.host.journal.write(f"network {request.network}", phase=_PHASE, data=_encode(known))
            except PluginError as error:
                self.host.log.warning("what network %s needs is not recorded: %s", request.network, error)

    def missing(self, request: CniRequest, config: NetworkConfig) -> list[str]:
        """Return what a network lacks; the calling thread is in the request's host namespace."""
        known = self._known.get(request.network) if request.host_netns.identity == self.home else None
        if known is None or known.bridge != config.bridge:
            known = Needs(config.bridge)
        return _missing({request.network: known})[0]

    def check(self) -> None:
        """Report what any network lacks; the calling thread is in the daemon's own namespace.

        Raises:
            NotReady: with everything that is missing.
            OSError: the kernel refuses.
        """
        if missing := self._all_missing():
            raise NotReady("; ".join(missing))

    def _all_missing(self) -> list[str]:
        """Return what any network lacks; the calling thread is in the daemon's own namespace.

        A network whose last container is gone needs nothing more, and its record goes; its next ADD makes another.
        """
        with self._lock:
            known, noted = dict(self._known), Counter(self._noted)
        if not known:
            return []
        texts, idle = _missing(known)
        for network in idle:
            with self._lock:
                if self._noted[network] == noted[network]:  # no ADD since before the look
                    self._known.pop(network, None)
                    del self._noted[network]
                    self._forget(network)
        return texts

    def _forget(self, network: str) -> None:
        try:
            self.host.journal.remove(f"network {network}")
        except PluginError as error:
            self.host.log.warning("the record of network %s, which has no container, stays: %s", network, error)


def _missing(networks: Mapping[str, Needs]) -> tuple[list[str], list[str]]:
    """Return what networks with containers lack, and the names of those without."""
    with Netlink() as netlink:
        links = Links(netlink)
        there = links.all()
        attached = {name: _ports_of(name, there) for name in networks}
        found = [
            text
            for name, needs in networks.items()
            if attached[name]
            for text in _differences(name, needs, attached[name], links, there)
        ]
    subnets = {subnet for name, needs in networks.items() if attached[name] for subnet in needs.subnets}
    return found + list(_without_rules(subnets)), [name for name in networks if not attached[name]]


def _ports_of(network: str, there: list[Link]) -> list[Link]:
    return [link for link in there if link.alias.startswith(network_label(network))]


def _differences(network: str, needs: Needs, attached: list[Link], links: Links, there: list[Link]) -> Iterator[str]:
    bridge = next((link for link in there if link.name == needs.bridge and link.kind == "bridge"), None)
    if bridge is None and needs.bridge:
        yield f"bridge {needs.bridge} of network {network} is gone: recreate its {len(attached)} containers"
        return
    if bridge is not None and not bridge.is_up:
        yield f"bridge {needs.bridge} of network {network} is down: {_AGAIN}"
    still = [link.name for link in attached if not link.is_up]
    if still:
        yield f"{len(still)} interfaces of network {network}, such as {still[0]}, are down: set them up, or {_ANEW}"
    if bridge is not None:
        yield from _bridge_differences(network, needs, attached, links, bridge)
    for setting in not_forwarding(ip_address(gateway).version for gateway in needs.gateways):
        yield f"the host forwards nothing for network {network}, net/{setting} is not 1: {_AGAIN}"


def _bridge_differences(network: str, needs: Needs, attached: list[Link], links: Links, bridge: Link) -> Iterator[str]:
    loose = [link.name for link in attached if link.master != bridge.index]
    if loose:
        yield f"{len(loose)} interfaces of network {network}, such as {loose[0]}, left bridge {bridge.name}: {_ANEW}"
    present = {address.ip for address in links.addresses(bridge)}
    lost = sorted(gateway for gateway in needs.gateways if ip_address(gateway) not in present)
    if lost:
        yield f"bridge {bridge.name} lost {', '.join(lost)}, the gateway of network {network}: {_AGAIN}"


def _without_rules(subnets: set[str]) -> Iterator[str]:
    if not subnets:
        return
    with open_nft() as netlink:
        lost = Masquerade(netlink).lacking(ip_network(subnet) for subnet in sorted(subnets))
    for network in lost:
        yield f"subnet {network} has no rule that masquerades it: {_AGAIN}"


def _of(
    request: CniAdd, config: NetworkConfig, result: CniResult, versions: Collection[int], *, same_subnet: bool
) -> Needs:
    # The whole of `ipam`, not parsed: it may be another plugin's, and any change of it voids what is recorded.
    asked = [config.is_gateway, config.ip_masq, request.config.get("ipam")]
    masqueraded = [ip for ip in result.ips if ip.address.version in versions] if config.ip_masq else []
    if config.ip_masq and (len(versions) == 1 or same_subnet):
        asked += [list(versions), same_subnet]
    return Needs(
        config.bridge,
        frozenset(str(ip.gateway) for ip in result.ips if ip.gateway is not None) if config.is_gateway else frozenset(),
        frozenset(str(network_of(ip.address, same_subnet=same_subnet)) for ip in masqueraded),
        json.dumps(asked, sort_keys=True, default=str),
    )


def _encode(needs: Needs) -> dict[str, Any]:
    return {
        "bridge": needs.bridge,
        "gateways": sorted(needs.gateways),
        "subnets": sorted(needs.subnets),
        "made_for": needs.made_for,
    }


def _decode(data: Mapping[str, Any]) -> Needs | None:
    try:
        gateways = frozenset(str(ip_address(one)) for one in data["gateways"])
        subnets = frozenset(str(ip_network(one)) for one in data["subnets"])
        return Needs(str(data["bridge"]), gateways, subnets, str(data["made_for"]))
    except (KeyError, TypeError, ValueError):
        return None
