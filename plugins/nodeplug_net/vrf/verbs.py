"""The verbs of vrf.

Owns: the order of the steps, the reference's sentences, and the way back.
Refuses: hooks, and how an interface is moved (see `domain`).

Nothing is recorded. What a daemon that was killed had not given back yet, a repeated ADD gives by the previous result.

Source: plugins/meta/vrf of the CNI plugins.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from nodeplug import CniAdd, CniCheck, CniDel, CniGc, CniIp, CniResult, CniStatus, InvalidRequest, Netns, PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.comparison import belongs, refuse
from nodeplug_net.container_interface import routed
from nodeplug_net.level.containers import Containers
from nodeplug_net.lower_link import creating
from nodeplug_net.netlink import policy
from nodeplug_net.netlink.links import Link, Links, address_request, links_in, route_request
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.undo import Undo
from nodeplug_net.vrf.config import VrfConfig, parse_vrf
from nodeplug_net.vrf.domain import KIND, create_vrf, find_vrf, keep, move, ports, table_of


@dataclass(frozen=True, slots=True)
class Vrfs:
    """What the verbs share. Any thread may use it.

    Attributes:
        containers: those with an interface in a VRF.
    """

    log: logging.LoggerAdapter[logging.Logger]
    reaper: Reaper = field(default_factory=Reaper)
    containers: Containers = field(default_factory=Containers)

    def add(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves the interface where it was, and no VRF that was not there.

        Raises:
            PluginError: the configuration is wrong, there is no interface, or the kernel refuses.
            OSError: the namespace cannot be entered.
        """
        config, before = parse_vrf(request), _previous(request)
        with _said("cmdAdd failed: "), _staying_in(request.netns) as links, Undo(self.log) as undo:
            vrf = self._ensure(links, config, undo)
            link = links.get(request.ifname)
            if link is None:
                raise PluginError(f"could not get link by name {request.ifname}")
            if link.master not in {0, vrf.index}:
                _refuse_master(links, link)
            if not link.master:
                kept = keep(links, link, policy.MAIN)
                undo.push(f"take interface {link.name} out of {vrf.name}", lambda: move(links, link, None, kept))
                move(links, link, vrf, kept)
            _give_result(links, request, link, table_of(vrf))
        self.containers.keep(request, before)
        return before

    def _ensure(self, links: Links, config: VrfConfig, undo: Undo) -> Link:
        """Find the VRF, or make it."""
        vrf = find_vrf(links, config.name)
        if vrf is None:
            undo.push(f"delete the VRF {config.name}", lambda: self._delete_empty(links, config.name))
            vrf = create_vrf(links, config.name, config.table)
        if config.table not in {0, table_of(vrf)}:
            raise InvalidRequest(f"VRF {config.name} already exist with different routing table {table_of(vrf)}")
        return vrf

    def _delete_empty(self, links: Links, name: str) -> None:
        vrf = find_vrf(links, name)
        if vrf is not None and not ports(links, vrf):
            self.reaper.delete(vrf).wait(links)

    def delete(self, request: CniDel) -> None:
        """Serve DEL: take the interface out, and delete the VRF when nothing is in it.

        Raises:
            PluginError: the kernel refuses.
            OSError: the namespace cannot be entered.
        """
        self.containers.forget(Attachment.of(request).label)
        if request.netns is None:
            return
        try:
            config = parse_vrf(request)
        except InvalidRequest as error:  # no ADD has succeeded with it
            self.log.warning("%s; nothing is taken out of a VRF", error)
            return
        with _staying_in(request.netns) as links:
            vrf, link = links.get(config.name), links.get(request.ifname)
            if vrf is None or vrf.kind != KIND:
                return
            if link is not None and link.master == vrf.index:
                move(links, link, None, keep(links, link, table_of(vrf)))
            self._delete_empty(links, config.name)

    def differences(self, request: CniCheck) -> list[str]:
        """Name what is not as ADD left it.

        Raises:
            PluginError: there is nothing to compare, or the configuration is wrong.
            OSError: the namespace cannot be entered.
        """
        config, _ = parse_vrf(request), _previous(request)
        with links_in(request.netns) as links:
            vrf, link = find_vrf(links, config.name), links.get(request.ifname)
            if vrf is None:
                raise PluginError(
                    "Link not found", details=f"there is no VRF {config.name}; DEL and ADD the attachment"
                )
            if link is None or link.master != vrf.index:
                raise PluginError(
                    f"failed to find {request.ifname} associated to vrf {config.name}",
                    details="DEL and ADD the attachment",
                )
            return [*_differences(config, vrf), *_losses(links, request, link, vrf)]

    def check(self, request: CniCheck) -> None:
        """Serve CHECK.

        Raises:
            PluginError: with every difference.
            OSError: the namespace cannot be entered.
        """
        refuse(request, self.differences(request))

    def collect(self, request: CniGc) -> None:
        """Serve GC: a VRF ends with the container's namespace."""
        self.containers.forget_invalid(request)

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            InvalidRequest: a key is wrong.
        """
        parse_vrf(request)


def _previous(request: CniAdd | CniCheck) -> CniResult:
    if request.prev_result is None:
        raise InvalidRequest(
            "missing prevResult from earlier plugin", details="put it after the plugin that makes the interface"
        )
    return request.prev_result


def _differences(config: VrfConfig, vrf: Link) -> Iterator[str]:
    if config.table not in {0, table_of(vrf)}:
        yield f"VRF {config.name} has routing table {table_of(vrf)}, not {config.table}"
    if not vrf.is_up:
        yield f"VRF {config.name} is down"


def _losses(links: Links, request: CniCheck, link: Link, vrf: Link) -> Iterator[str]:
    """Find addresses and routes of the result that the interface has no more."""
    addresses = links.addresses(link)
    for ip in request.prev_result.ips:
        if belongs(request, ip.interface) and ip.address not in addresses:
            yield f"interface {link.name} lost its address {ip.address}"
    there = {(route.dst, route.table) for route in links.routes(link)}
    own = [ip for ip in request.prev_result.ips if belongs(request, ip.interface)]
    for route in routed(request.prev_result):
        if route.table is None and _reachable(route.gw, own) and (route.dst, table_of(vrf)) not in there:
            yield f"route {route.dst} of VRF {vrf.name} is missing"


def _refuse_master(links: Links, link: Link) -> None:
    master = links.at(link.master)
    name = f"index {link.master}" if master is None else master.name
    raise PluginError(f"interface {link.name} has already a master set: {name}")


def _give_result(links: Links, request: CniAdd, link: Link, table: int) -> None:
    """Give the interface what the previous result says, if an earlier ADD was killed before it did."""
    before = _previous(request)
    own: list[CniIp] = [ip for ip in before.ips if belongs(request, ip.interface)]
    with creating(f"could not restore the addresses of {link.name}: {{}}"):
        links.netlink.ask(*(address_request(link.index, link.name, ip.address) for ip in own))
    there = {one.dst for one in policy.routes(links.netlink, link.index) if one.table == table}
    wanted = [replace(one, table=table) for one in routed(before) if one.table is None and _reachable(one.gw, own)]
    wanted = [one for one in wanted if policy.name_of(one.dst) not in there]
    with creating("could not add route: {}"):
        links.netlink.ask(*(route_request(link.index, link.name, one) for one in wanted))


def _reachable(gateway: object, own: list[CniIp]) -> bool:
    return gateway is None or any(gateway in ip.address.network for ip in own)


@contextmanager
def _staying_in(netns: Netns) -> Iterator[Links]:
    """Open the links of a namespace, and stay there: the reaper opens a socket where it is called."""
    with netns.entered(), links_in(netns) as links:
        yield links


@contextmanager
def _said(before: str) -> Iterator[None]:
    """Put the reference's words before a failure."""
    try:
        yield
    except PluginError as error:
        error.message = f"{before}{error.message}"
        raise
