"""The verbs of sbr: packets from an address of the interface leave by the interface's own routes.

Owns: which table an address gets, which routes are carried there, and the way back.
Refuses: messages (see `netlink.policy`), and anything on the host: rules and tables are the container's.

A rule says which table an address has, so a repeated ADD, and one after a daemon that was killed, goes on with that.
"""

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_interface
from typing import Final

from nodeplug import CniAdd, CniCheck, CniDel, CniGc, CniIp, CniResult, CniRoute, CniStatus, InvalidRequest, PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.comparison import refuse
from nodeplug_net.level.containers import Containers
from nodeplug_net.lower_link import creating
from nodeplug_net.netlink import policy
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links, route_request
from nodeplug_net.netlink.policy import KernelRoute, SourceRule
from nodeplug_net.sbr.config import chained, own_addresses, parse_table
from nodeplug_net.undo import Undo

FIRST_TABLE: Final = 100
_EVERYWHERE: Final = {4: "0.0.0.0/0", 6: "::/0"}


@dataclass(slots=True)
class SourceRouting:
    """What the verbs share. Any thread may use it: tables are chosen one after the other.

    Attributes:
        containers: those whose addresses have rules.
    """

    log: logging.LoggerAdapter[logging.Logger]
    containers: Containers = field(default_factory=Containers)
    _choosing: threading.Lock = field(default_factory=threading.Lock)

    def add(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves rules and routes as they were.

        Raises:
            PluginError: the configuration is wrong, or the kernel refuses.
            OSError: the namespace cannot be entered.
        """
        table, before, own = parse_table(request), chained(request), own_addresses(request)
        with self._choosing, request.netns.entered(), Netlink() as netlink, Undo(self.log) as undo:
            if table is None:
                self._move(request, netlink, own, undo)
            else:
                wanted = [SourceRule(ip.address.ip, table) for ip in own]
                present, _ = policy.rules(netlink)
                _add_rules(netlink, [rule for rule in wanted if rule not in present], undo, "failed to add rule: {}")
        self.containers.keep(request, before)
        return before

    def _move(self, request: CniAdd, netlink: Netlink, own: list[CniIp], undo: Undo) -> None:
        link = Links(netlink).get(request.ifname)
        if link is None:
            raise PluginError(f"Cannot find network interface {request.ifname}: Link not found")
        present, named = policy.rules(netlink)
        every, through = policy.routes(netlink), policy.routes(netlink, link.index)
        left = [one for one in through if one.table >= FIRST_TABLE and one.table not in named | policy.RESERVED]
        through = [one for one in through if one.table == policy.MAIN]
        tables = dict(_tables(own, present, left, named | {route.table for route in every}))
        wanted = [SourceRule(ip.address.ip, tables[ip]) for ip in own]
        _add_rules(netlink, [one for one in wanted if one not in present], undo, "Failed to add rule: {}")
        filled = set(tables.values()) - {route.table for route in every}
        undo.push(f"empty tables {filled}", lambda: _empty(netlink, filled))
        moved: dict[KernelRoute, None] = {}
        for ip, number in tables.items():
            if ip.gateway is not None:
                _restore_subnet(netlink, link, ip, number, every)
                _default(netlink, link, ip, number)
            copied = [one for one in through if _belongs(one, ip, own)]
            with creating("Failed to readd route: {}"):
                netlink.ask(*(policy.copy_route(one, number) for one in copied))
            moved |= dict.fromkeys(one for one in copied if not one.is_link_local)
        undo.push(
            f"restore the routes of interface {link.name}",
            lambda: netlink.ask(*(policy.copy_route(one, one.table) for one in moved)),
        )
        with creating("Failed to delete route: {}"):
            netlink.ask(*map(policy.delete_route, reversed(moved)))

    def delete(self, request: CniDel) -> None:
        """Serve DEL: delete the rules of the interface's addresses. Routes end with the interface.

        Raises:
            PluginError: the kernel refuses.
            OSError: the namespace cannot be entered.
        """
        self.containers.forget(Attachment.of(request).label)
        if request.netns is None:
            return
        try:
            table = parse_table(request)
        except InvalidRequest:  # no ADD has succeeded with it
            table = None
        with request.netns.entered(), Netlink() as netlink:
            links = Links(netlink)
            link = links.get(request.ifname)
            if link is None:
                return
            own = {address.ip for address in links.addresses(link)}
            found, _ = policy.rules(netlink)
            with creating("Failed to delete rule {}"):
                netlink.ask(*(policy.delete_rule(rule) for rule in found if _is_of(rule, own, table)))

    def differences(self, request: CniCheck) -> list[str]:
        """Name what is not as ADD left it.

        Raises:
            PluginError: there is nothing to compare, or the configuration is wrong.
            OSError: the namespace cannot be entered.
        """
        table, own = parse_table(request), own_addresses(request)
        with request.netns.entered(), Netlink() as netlink:
            present, _ = policy.rules(netlink)
            filled = policy.routes(netlink)
        return list(_differences(own, table, present, filled))

    def check(self, request: CniCheck) -> None:
        """Serve CHECK: every address has a rule, and its table a way.

        Raises:
            PluginError: with every difference.
            OSError: the namespace cannot be entered.
        """
        refuse(request, self.differences(request))

    def collect(self, request: CniGc) -> None:
        """Serve GC: rules end with the container's namespace."""
        self.containers.forget_invalid(request)

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            InvalidRequest: a key is wrong.
        """
        parse_table(request)


def _tables(
    own: Iterable[CniIp], present: Iterable[SourceRule], left: Iterable[KernelRoute], taken: set[int]
) -> Iterator[tuple[CniIp, int]]:
    """Yield each address with the table that its rule names, or with a free one.

    A table without a rule that has the address's subnet through the interface (`left`) is the address's, too: somebody
    deleted the rule, and the main table has the routes no more.
    """
    known = {
        rule.address: rule.table for rule in present if rule.table >= FIRST_TABLE and rule.table not in policy.RESERVED
    }
    table, used = FIRST_TABLE, set[int]()
    for ip in own:
        again = {one.table for one in left if one.dst == str(ip.address.network)} - used
        if ip.address.ip in known or again:
            used.add(known.get(ip.address.ip) or min(again))
            yield ip, known.get(ip.address.ip) or min(again)
            continue
        while table in taken:
            table += 1
        taken.add(table)
        yield ip, table


def _is_of(rule: SourceRule, own: set[policy.Address], table: int | None) -> bool:
    return rule.address in own and table in {None, rule.table}


def _add_rules(netlink: Netlink, wanted: list[SourceRule], undo: Undo, refused: str) -> None:
    undo.push("delete the rules", lambda: netlink.ask(*map(policy.delete_rule, wanted)))
    with creating(refused):
        netlink.ask(*map(policy.add_rule, wanted))


def _restore_subnet(netlink: Netlink, link: Link, ip: CniIp, table: int, every: Iterable[KernelRoute]) -> None:
    """Give an address's table the way to its gateway if nobody has one: somebody emptied the table."""
    subnet = policy.name_of(ip.address.network)
    if ip.address.network.prefixlen < ip.address.max_prefixlen and not any(one.dst == subnet for one in every):
        route = CniRoute(ip.address.network, table=table, scope=253 if ip.address.version == 4 else None)
        with creating(f"Failed to add a route to {subnet}: {{}}"):
            netlink.ask(route_request(link.index, link.name, route))


def _default(netlink: Netlink, link: Link, ip: CniIp, table: int) -> None:
    route = CniRoute(ip_interface(_EVERYWHERE[ip.address.version]).network, gw=ip.gateway, table=table)
    with creating(f"Failed to add default route to {ip.gateway}: {{}}"):
        netlink.ask(route_request(link.index, link.name, route))


def _belongs(route: KernelRoute, ip: CniIp, own: list[CniIp]) -> bool:
    """Whether a route is copied to an address's table: one of its subnet, or one that is nobody's."""
    if route.version != ip.address.version:
        return False
    points = [one for one in (route.gateway, route.source) if one is not None]
    if any(point in ip.address.network or point == ip.gateway for point in points):
        return True
    return not any(
        point in one.address.network or point == one.gateway
        for one in own
        if one.address.version == route.version
        for point in points
    )


def _empty(netlink: Netlink, tables: set[int]) -> None:
    netlink.ask(*(policy.delete_route(one) for one in policy.routes(netlink) if one.table in tables))


def _differences(
    own: Iterable[CniIp], table: int | None, present: list[SourceRule], filled: list[KernelRoute]
) -> Iterator[str]:
    for ip in own:
        address = ip.address.ip
        tables = {rule.table for rule in present if rule.address == address and table in {None, rule.table}}
        routes = [one for one in filled if one.version == address.version and one.table in tables]
        which = f"table {' and '.join(map(str, sorted(tables)))} of address {address}"
        if not tables:
            yield f"address {address} has no rule{'' if table is None else f' for table {table}'}"
        elif not routes:
            yield f"{which} has no route"
        elif table is None and not _has_default(ip, routes):
            yield f"{which} has no default route via {ip.gateway}"


def _has_default(ip: CniIp, routes: Iterable[KernelRoute]) -> bool:
    return ip.gateway is None or any((one.dst, one.gateway) == ("default", ip.gateway) for one in routes)
