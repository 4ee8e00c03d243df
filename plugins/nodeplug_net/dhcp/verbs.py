"""The verbs of dhcp: getting a lease, giving it back, and saying whether there is one.

Owns: the conversation of an ADD within its time, the order of records and messages, and the way back.
Refuses: prolonging (see `keeper`). What a server was asked for is recorded before it may be granted, so that a daemon
which is killed at any step gives it back when it starts again.

Source: plugins/ipam/dhcp of the CNI plugins, whose sentences these are.
"""

import logging
import select
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from nodeplug import (
    CniAdd,
    CniAttachmentRequest,
    CniCheck,
    CniDel,
    CniGc,
    CniResult,
    CniStatus,
    LimitedConnectivity,
    Netns,
    NotFound,
    NotReady,
    PluginError,
    TryAgain,
)
from nodeplug_net.attachment import Attachment
from nodeplug_net.dhcp import message as dhcp
from nodeplug_net.dhcp.config import ALLOCATE, DhcpConfig, client_id, parse_dhcp
from nodeplug_net.dhcp.exchange import Client, Exchange, release_of
from nodeplug_net.dhcp.keeper import Keeper
from nodeplug_net.dhcp.lease import Lease
from nodeplug_net.dhcp.leases import ASKING, BOUND, EXPIRED, Holding, Leases, now
from nodeplug_net.dhcp.wire import Wire, bring_up, can_open, send_from_host

_ANSWERING: Final = 0.2
"""Seconds before the deadline of a call at which it gives up, so that its error arrives in time."""
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Verbs:
    """What the verbs share. Any thread may use it.

    Attributes:
        timeout: of an ADD, in seconds.
        longest_wait: between two messages.
        broadcast: whether servers are asked to broadcast their answers.
    """

    leases: Leases
    keeper: Keeper
    log: logging.LoggerAdapter[logging.Logger]
    timeout: float
    longest_wait: float
    broadcast: bool

    def recover(self) -> None:
        """Read the records, and give back what an ADD asked for that the end of the daemon cut off."""
        self.leases.recover()
        for one in self.leases.all():
            if one.phase == ASKING:
                self._end(one.key)

    def add(self, request: CniAdd) -> CniResult:
        """Serve ADD; a repeated one returns the same lease.

        Raises:
            InvalidRequest: a key is wrong.
            NotFound: there is no such interface.
            TryAgain: no server grants an address in time.
            OSError: the kernel refuses.
        """
        config = parse_dhcp(request)
        known = self.leases.get(Attachment.of(request).label)
        if known is not None:
            if known.phase == BOUND and known.netns == request.netns.identity and now() < known.lease.expires:
                return known.lease.result(config.priority)
            self.leases.take(known.key)  # the server knows the client, and overwrites the lease
        self._refuse_unreachable(request)
        with _wire(request) as wire:
            lease = self._acquire(request, config, wire)
        self.keeper.wake()
        return lease.result(config.priority)

    def _refuse_unreachable(self, request: CniAdd) -> None:
        """Refuse a namespace that could not be opened again when the lease is to be prolonged."""
        path = request.netns.path
        found = Netns.open(path)
        same = found.identity == request.netns.identity
        found.close()
        if not same:
            raise PluginError(
                f"{ALLOCATE}{path} is another network namespace for the daemon than for the runtime",
                details="a lease could not be prolonged; give the daemon the host's /run/netns and /proc",
            )

    def _acquire(self, request: CniAdd, config: DhcpConfig, wire: Wire) -> Lease:
        """Get a lease and record it, or leave nothing behind, at the server neither."""
        client = Client(wire.mac, client_id(request), config.options, self.broadcast)
        exchange = Exchange(client, now(), longest_wait=self.longest_wait)
        try:
            lease = self._converse(request, config, wire, exchange)
            self.leases.note(self._holding(request, config, wire, lease, BOUND))
        except BaseException:
            self._end(Attachment.of(request).label, request.netns)
            raise
        return lease

    def _holding(self, request: CniAdd, config: DhcpConfig, wire: Wire, lease: Lease, phase: str) -> Holding:
        return replace(Holding.of(request, config, wire.mac, lease, broadcast=self.broadcast), phase=phase)

    def _converse(self, request: CniAdd, config: DhcpConfig, wire: Wire, exchange: Exchange) -> Lease:
        seconds = min(self.timeout, max(0.0, request.remaining - _ANSWERING))
        until, noted = exchange.now + seconds, None
        poll = select.poll()
        poll.register(wire, select.POLLIN)
        while (at := now()) < until:
            if at >= exchange.due:
                wire.send(exchange.next(at))
            poll.poll(max(0.0, min(exchange.due, until) - now()) * 1000)
            for message, mac in wire.received():
                lease = exchange.hear(message, mac, now())
                if lease is not None:
                    return lease
                if exchange.offer is not None and exchange.offer != noted:  # before it is asked for
                    noted = exchange.offer
                    self.leases.note(self._holding(request, config, wire, noted, ASKING))
        raise self._silence(request, exchange, seconds)

    def _silence(self, request: CniAdd, exchange: Exchange, seconds: float) -> TryAgain:
        asked, requested = (exchange.sent.get(kind, 0) for kind in (dhcp.DISCOVER, dhcp.REQUEST))
        where = f"on {request.ifname} ({exchange.client.mac.hex(':')}) of {request.netns.path}"
        if exchange.refusals:
            found = f"{len(exchange.refusals)} requests were refused, last by {exchange.refusals[-1]}"
        elif exchange.offer is not None:
            found = f"server {exchange.offer.server} offered {exchange.offer.address.ip}, and then was silent"
        else:
            found = "no DHCP server answered" if not requested else "servers offered, but granted nothing"
        return TryAgain(
            f"{ALLOCATE}no more tries",
            details=f"{found}: {asked} DISCOVER and {requested} REQUEST were sent {where} within {seconds:.3g} s; "
            "see whether a server runs in that network, and has addresses left",
        )

    def delete(self, request: CniDel) -> None:
        """Serve DEL: give the address back; without a way to the server, its lease ends there by itself."""
        self._end(Attachment.of(request).label, request.netns)

    def collect(self, request: CniGc) -> None:
        """Serve GC: give back what belongs to no valid attachment."""
        if request.valid is None:
            return
        valid = {(one.container_id, one.ifname) for one in request.valid}
        for one in list(self.leases.of(request.network)):
            if (one.attachment.container_id, one.attachment.ifname) not in valid:
                self._end(one.key)

    def _end(self, key: str, netns: Netns | None = None) -> None:
        holding = self.leases.take(key)
        if holding is not None:
            self.keeper.wake()
            if holding.phase != EXPIRED:
                self._give_back(holding, netns)
        self.leases.forget(key)

    def _give_back(self, holding: Holding, netns: Netns | None) -> None:
        if netns is not None and netns.is_open and netns.identity == holding.netns:
            done = self._from_inside(holding, netns)
        else:
            opened = holding.open()
            done = False
            if opened is not None:
                done = self._from_inside(holding, opened)
                opened.close()
        if done:
            return
        try:
            send_from_host(release_of(holding.client, holding.lease), holding.via)
        except OSError as error:
            address = holding.lease.address.ip
            self.log.warning(
                "%s: %s is not given back, and stays reserved at its server: %s", holding.key, address, error
            )

    def _from_inside(self, holding: Holding, netns: Netns) -> bool:
        try:
            with netns.entered():
                wire = Wire(holding.attachment.ifname)
            with wire:
                wire.send(release_of(replace(holding.client, mac=wire.mac), holding.lease))
        except OSError:
            return False
        return True

    def check(self, request: CniCheck) -> None:
        """Serve CHECK: the attachment has a lease, of the address of the result, that has not ended.

        Raises:
            PluginError: it has not.
        """
        parse_dhcp(request)
        holding = self.leases.get(Attachment.of(request).label)
        found = self._difference(request, holding)
        if found:
            raise PluginError(f"dhcp: {found}; recreate the container {request.container_id}")

    def _difference(self, request: CniCheck, holding: Holding | None) -> str:
        if holding is None or holding.phase == ASKING:
            return f"no lease is known for {_name(request)}"
        address = holding.lease.address
        if holding.phase == EXPIRED or now() >= holding.lease.expires:
            return f"the lease of {address.ip} for {_name(request)} has ended"
        if holding.netns != request.netns.identity:
            return f"the lease of {address.ip} is for another namespace than {request.netns.path}"
        if all(ip.address != address for ip in request.prev_result.ips):
            return f"{_name(request)} has a lease of {address}, which the result does not contain"
        return ""

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            NotReady: an ADD would fail.
            LimitedConnectivity: servers do not prolong the leases of this network.
        """
        parse_dhcp(request)
        try:
            can_open()
        except OSError as error:
            raise NotReady(
                f"network {request.network}: no packet socket: {error}; give the daemon CAP_NET_RAW"
            ) from error
        if not self.keeper.is_alive:
            raise NotReady("the keeper of the leases does not run; restart the daemon")
        # A server that granted something since one asked is there: then it is that container which is not.
        granted = self.leases.granted.get(request.network, 0.0)
        silent = [one for one in self.leases.of(request.network) if _is_overdue(one) and one.lease.renew_at > granted]
        if silent:
            raise LimitedConnectivity(f"network {request.network}: {self._summary(silent)}")

    def missing(self) -> str:
        """Return what the containers of this node lack, or an empty text."""
        return self._summary([one for one in self.leases.all() if _is_overdue(one)])

    def _summary(self, holdings: list[Holding]) -> str:
        if not holdings:
            return ""
        names = ", ".join(f"{one.lease.address.ip} ({one.attachment.container_id})" for one in holdings[:_SHOWN])
        return f"no DHCP server prolongs {len(holdings)} leases, such as {names}: see whether the server runs"


def _is_overdue(holding: Holding) -> bool:
    """Whether a lease has ended, or only another server could prolong it."""
    return holding.phase == EXPIRED or (holding.phase == BOUND and now() > holding.lease.rebind_at)


def _name(request: CniAttachmentRequest) -> str:
    return f"{request.container_id}/{request.network}/{request.ifname}"


@contextmanager
def _wire(request: CniAdd) -> Iterator[Wire]:
    """Open a socket of the container's interface, which is brought up."""
    with request.netns.entered():
        if not bring_up(request.ifname):
            raise NotFound(
                f'{ALLOCATE}error looking up "{request.ifname}": Link not found',
                details=f"looked for in {request.netns.path}; the plugin that makes it calls dhcp afterwards",
            )
        wire = Wire(request.ifname)
    with wire:
        yield wire
