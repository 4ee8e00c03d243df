"""What the containers of a network need on their host, and whether it exists.

Owns: one record per network with containers of what its newest ADD made (bridge, gateway addresses, masqueraded
subnets) and by which configuration, and the comparison of it, and of what each of its containers needs on the host
(`level.host_ends`), with the kernel while any is attached. STATUS and `health` use it, so that a deleted bridge or a
flushed ruleset is noticed before a pod fails.
Refuses: repair (the plugin's, by a STATUS that is composed of the record), networks without a container, and other
namespaces than the daemon's own.
"""

import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any, Final, Protocol

from nodeplug import CniAdd, CniRequest, CniResult, CniStatus, Host, Netns, PluginError
from nodeplug_net.attachment import network_label
from nodeplug_net.forwarding import not_forwarding, unconnected
from nodeplug_net.level.events import Interest
from nodeplug_net.level.host_ends import Lack, lacking, restore, told
from nodeplug_net.level.pairs import Pairs
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.nftables.masquerade import Masquerade, Masquerading
from nodeplug_net.nftables.masquerade_messages import TABLE
from nodeplug_net.nftables.sockets import Identity, open_nft
from nodeplug_net.nftables.spoof_messages import CHAIN_PREFIX

_PHASE: Final = "network"
_OF_CONTAINERS: Final = frozenset({"args", "prevResult", "runtimeConfig"})
_PATIENCE: Final = 5.0
"""Seconds that restoring a network may take when no runtime waits for it."""
_AGAIN: Final = "the next ADD, STATUS or GC of the network repairs it"
_ANEW: Final = "recreate their containers"
KEPT: Final = 600.0
"""Seconds for which the record of a network without containers stays: where they come one after another, it is not
written for each of them."""


class NetworkConfig(Protocol):
    """What is read of the configuration of a network; without a bridge each container has a link to the host."""

    @property
    def bridge(self) -> str:
        """The bridge, or empty."""

    @property
    def is_gateway(self) -> bool:
        """Whether the host is the gateway."""

    @property
    def masquerading(self) -> Masquerading:
        """What is masqueraded, if anything is."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What one network needs.

    Attributes:
        bridge: the bridge of its ports; empty if each container has a link of its own to the host.
        gateways: addresses that the host has for it, without a prefix.
        subnets: those that are masqueraded.
        made_for: the configuration; a changed one voids these needs.
        addresses: the gateways with the prefixes of their subnets.
        mac: the hardware address of a bridge that is a gateway, which containers have in their ARP caches.
        config: of the network, without what belongs to one container; empty in a record of an older version.
        strict: the subnets from which nothing leaves that belongs to no connection.
    """

    bridge: str
    gateways: frozenset[str] = frozenset()
    subnets: frozenset[str] = frozenset()
    made_for: str = ""
    addresses: frozenset[str] = frozenset()
    mac: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    strict: frozenset[str] = frozenset()

    def covers(self, other: "Needs") -> bool:
        """Whether these include another's needs."""
        same = (self.bridge, self.made_for, self.mac) == (other.bridge, other.made_for, other.mac)
        more = other.gateways <= self.gateways and other.subnets <= self.subnets and other.addresses <= self.addresses
        more = more and other.strict <= self.strict
        return same and more and other.config == self.config

    def with_those(self, other: "Needs") -> "Needs":
        """Return the needs after one more ADD."""
        if (self.bridge, self.made_for) != (other.bridge, other.made_for):
            return other
        return replace(
            other,
            gateways=self.gateways | other.gateways,
            subnets=self.subnets | other.subnets,
            addresses=self.addresses | other.addresses,
            strict=self.strict | other.strict,
        )


@dataclass(slots=True)
class Networks:
    """The networks of the daemon's own namespace. Any thread may call it: one entry per network."""

    host: Host
    home: Identity | None = None
    pairs: Pairs = field(default_factory=Pairs)
    _known: dict[str, Needs] = field(default_factory=dict)
    _indices: dict[str, int] = field(default_factory=dict)
    _idle: dict[str, float] = field(default_factory=dict)
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
        *,
        outside: Link,
    ) -> None:
        """Record what an ADD made, unless that is known.

        Args:
            request: the ADD.
            config: of its network.
            result: its own.
            outside: the host end.
        """
        if request.host_netns.identity != self.home:
            return
        self.pairs.keep_pair(request, result, outside)
        needs = _of(request, config, result)
        with self._lock:
            self._idle.pop(request.network, None)
            known = self._known.get(request.network, needs)
            if known.covers(needs) and request.network in self._known:
                return
            self._known[request.network] = known = known.with_those(needs)
            try:
                self.host.journal.write(f"network {request.network}", phase=_PHASE, data=_encode(known))
            except PluginError as error:
                self.host.log.warning("what network %s needs is not recorded: %s", request.network, error)
        self.host.refresh_health()  # which learns what events are to be about

    @contextmanager
    def asked(self, network: str) -> Iterator[CniStatus]:
        """Compose the STATUS of a network as its runtime would; the calling thread is in the daemon's own namespace.

        Raises:
            PluginError: no ADD has recorded the configuration.
        """
        known = self._known.get(network)
        if known is None or not known.config:
            raise PluginError(f"the configuration of network {network} is not known; the next ADD records it")
        config, home = known.config, Netns.current()
        try:
            claim, version = (str(config.get(key, "")) for key in ("type", "cniVersion"))
            asked = CniStatus(claim=claim, network=network, version=version, config=config, host_netns=home)
            yield replace(asked, deadline=time.monotonic() + _PATIENCE)
        finally:
            home.close()

    def recorded(self, request: CniRequest, bridge: str) -> Needs | None:
        """Return what is recorded of a request's network, if its host is the daemon's and its bridge is still this."""
        known = self._known.get(request.network) if request.host_netns.identity == self.home else None
        return known if known is not None and known.bridge == bridge else None

    def interest(self) -> Interest:
        """Return which events are about these networks."""
        with self._lock:
            known = dict(self._known)
        return Interest(
            interfaces=tuple((one.bridge, self._indices.get(one.bridge, 0)) for one in known.values() if one.bridge),
            ports=tuple(network_label(name) for name, one in known.items() if one.bridge),
            ends=tuple(network_label(name) for name, one in known.items() if not one.bridge),
            rules=(TABLE, CHAIN_PREFIX) if any(one.subnets or one.bridge for one in known.values()) else (),
            forwarding=any(one.gateways for one in known.values()),
            pairs=self.pairs.labels(),
            ended=self.pairs.ended(),
            ports_by_index=self.pairs.flags() if any(one.bridge for one in known.values()) else {},
            indices=self.pairs.gateways() if any(not one.bridge for one in known.values()) else frozenset(),
            containers=self.pairs.concerned,
            changed=self.pairs.asked(),
        )

    def missing(self, request: CniRequest, config: NetworkConfig) -> list[str]:
        """Return what a network lacks; the calling thread is in the request's host namespace."""
        known = self.recorded(request, config.bridge)
        found = _look({request.network: known or Needs(config.bridge)})
        texts = found.texts.get(request.network, [])
        return texts + (told(self._lacking(found)).get(request.network, []) if known is not None else [])

    def restore(self, request: CniRequest, config: NetworkConfig) -> None:
        """Give back what containers of a network lack on the host; the calling thread is in its namespace.

        Raises:
            PluginError: others keep changing the rules.
            OSError: the kernel refuses.
        """
        if self.recorded(request, config.bridge) is not None:
            with Netlink() as netlink:
                links = Links(netlink)
                lacks = lacking(self.pairs.host_ends(), links.all(), links)
                own = [one for one in lacks if one.end.attachment.network == request.network]
                if own:
                    self.host.log.warning("%s; restored", "; ".join(told(own)[request.network]))
                    restore(own, links)

    def _lacking(self, found: "Found") -> list[Lack]:
        with Netlink() as netlink:
            return lacking(self.pairs.host_ends(), found.there, Links(netlink))

    def look(self) -> dict[str, list[str]]:
        """Return what networks lack, by name, and containers, by label, in the daemon's own namespace.

        A network whose last container is gone needs nothing more. Its record goes after `KEPT`; its next ADD makes
        another.
        """
        with self._lock:
            known, before = dict(self._known), dict(self._idle)
        found = _look(known)
        texts, self._indices = found.texts, found.indices
        for network, sentences in told(self._lacking(found)).items():
            texts[network] = [*texts.get(network, ()), *sentences]
        self._expire(found.idle, before)
        return texts | self.pairs.look_at(found.there)

    def _expire(self, idle: Collection[str], before: Mapping[str, float]) -> None:
        """Forget networks that have had no container for long."""
        now = time.monotonic()
        with self._lock:
            for network in before.keys() - idle:
                self._idle.pop(network, None)
            for network in idle:
                since = self._idle.setdefault(network, now)
                if network in before and now - since >= KEPT:  # none of its ADDs has ended since before the look
                    del self._known[network], self._idle[network]
                    self._forget(network)

    def _forget(self, network: str) -> None:
        try:
            self.host.journal.remove(f"network {network}")
        except PluginError as error:
            self.host.log.warning("the record of network %s, which has no container, stays: %s", network, error)


@dataclass(frozen=True, slots=True)
class Found:
    """What a look at networks has found.

    Attributes:
        texts: what is missing, by network.
        idle: the networks without a container.
        indices: of bridges, by name.
        there: the host's links.
    """

    texts: dict[str, list[str]]
    idle: list[str]
    indices: dict[str, int]
    there: list[Link]


def _look(networks: Mapping[str, Needs]) -> Found:
    """Compare networks with the host."""
    with Netlink() as netlink:
        links = Links(netlink)
        there = links.all()
        attached = {name: _ports_of(name, there) for name in networks}
        found = {
            name: list(_differences(name, needs, attached[name], links, there))
            for name, needs in networks.items()
            if attached[name]
        }
    needed = [networks[name] for name in found]
    without, passing = _without_rules(
        {subnet for needs in needed for subnet in needs.subnets},
        {subnet for needs in needed for subnet in needs.strict},
    )
    for name, texts in found.items():
        lost = [subnet for subnet in without if subnet in networks[name].subnets]
        texts += [f"subnet {subnet} has no rule that masquerades it: {_AGAIN}" for subnet in lost]
        lost = [subnet for subnet in passing if subnet in networks[name].strict]
        texts += [f"subnet {subnet} has no rule that drops what belongs to no connection: {_AGAIN}" for subnet in lost]
    bridges = {needs.bridge for needs in networks.values()}
    return Found(
        {name: texts for name, texts in found.items() if texts},
        [one for one in networks if one not in found],
        {link.name: link.index for link in there if link.name in bridges},
        there,
    )


def _ports_of(network: str, there: list[Link]) -> list[Link]:
    return [link for link in there if link.alias.startswith(network_label(network))]


def _differences(network: str, needs: Needs, attached: list[Link], links: Links, there: list[Link]) -> Iterator[str]:
    bridge = next((link for link in there if link.name == needs.bridge and link.kind == "bridge"), None)
    if bridge is None and needs.bridge:
        yield f"bridge {needs.bridge} of network {network} is gone: {_AGAIN if needs.config else _ANEW}"
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
    own = [address for address in map(ip_interface, sorted(needs.addresses)) if address.ip in present]
    for address in unconnected(links, bridge, own) if bridge.is_up else ():
        yield f"the host has no route to {address.network}, the subnet of network {network}: {_AGAIN}"


def _without_rules(subnets: set[str], strict: set[str]) -> tuple[list[str], list[str]]:
    """Return the subnets that nothing masquerades, and those from which anything leaves."""
    if not subnets:
        return [], []
    with open_nft() as netlink:
        masquerade = Masquerade(netlink)
        without = masquerade.lacking(map(ip_network, sorted(subnets)))
        passing = masquerade.lacking((), map(ip_network, sorted(strict))) if strict else []
    return list(map(str, without)), [str(one) for one in passing if one not in without]


def _of(request: CniAdd, config: NetworkConfig, result: CniResult) -> Needs:
    masquerading = config.masquerading
    # The whole of `ipam`, not parsed: it may be another plugin's, and any change of it voids what is recorded.
    asked = [config.is_gateway, bool(masquerading.versions), request.config.get("ipam")]
    versions, same_subnet, strict = masquerading.versions, masquerading.same_subnet, masquerading.strict
    subnets = frozenset(str(one.network) for one in masquerading.elements([ip.address for ip in result.ips], ""))
    if versions and (len(versions) == 1 or same_subnet or strict):
        asked += [list(versions), same_subnet, *([strict] if strict else [])]
    return Needs(
        config.bridge,
        frozenset(str(ip.gateway) for ip in result.ips if ip.gateway is not None) if config.is_gateway else frozenset(),
        subnets,
        json.dumps(asked, sort_keys=True, default=str),
        frozenset(f"{ip.gateway}/{ip.address.network.prefixlen}" for ip in result.ips if ip.gateway is not None)
        if config.is_gateway and config.bridge
        else frozenset(),
        next((one.mac for one in result.interfaces if one.name == config.bridge), "") if config.is_gateway else "",
        {key: value for key, value in request.config.items() if key not in _OF_CONTAINERS},
        subnets if strict else frozenset(),
    )


def _encode(needs: Needs) -> dict[str, Any]:
    return {
        "bridge": needs.bridge,
        "gateways": sorted(needs.gateways),
        "subnets": sorted(needs.subnets),
        "made_for": needs.made_for,
        "addresses": sorted(needs.addresses),
        "mac": needs.mac,
        "config": needs.config,
        **({"strict": sorted(needs.strict)} if needs.strict else {}),  # else the form of an older version
    }


def _decode(data: Mapping[str, Any]) -> Needs | None:
    try:
        gateways = frozenset(str(ip_address(one)) for one in data["gateways"])
        subnets = frozenset(str(ip_network(one)) for one in data["subnets"])
        addresses = frozenset(str(ip_interface(one)) for one in data.get("addresses", ()))
        mac, config = str(data.get("mac", "")), dict(data.get("config", {}))
        strict = frozenset(str(ip_network(one)) for one in data.get("strict", ()))
        return Needs(str(data["bridge"]), gateways, subnets, str(data["made_for"]), addresses, mac, config, strict)
    except (KeyError, TypeError, ValueError):
        return None
