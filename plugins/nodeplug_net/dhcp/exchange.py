"""One conversation with DHCP servers: what is sent when, and what an answer means.

Owns: the four messages that lead to a lease, the one that prolongs it, the one that ends it, and the waits between
repetitions: doubled each time, with jitter (RFC 2131, section 4.1).
Refuses: sockets, clocks, threads. Whoever holds the socket tells the time and passes on what was heard; the call of an
ADD and the keeper of all leases do so in the same way.
"""

import enum
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Interface
from typing import Final

from nodeplug_net.dhcp import message as dhcp
from nodeplug_net.dhcp.lease import Lease, granted
from nodeplug_net.dhcp.message import Message

LONGEST_WAIT: Final = 62.0
"""Seconds between two repetitions, as the reference's `-resendmax`."""
_FIRST_WAIT: Final = 0.5
"""Seconds: the port of a bridge may still be closed when its other end is up, and swallow the first message."""
_JITTER: Final = 1.0
_PATIENCE: Final = 4
"""REQUESTs for an offer before another offer is asked for (RFC 2131, section 3.1)."""
_MAX_SIZE: Final = 1500
_EVERYBODY: Final = IPv4Address("255.255.255.255")
_DICE: Final = secrets.SystemRandom()


class Aim(enum.Enum):
    """What a conversation is for."""

    SELECT = "ask for an address"
    RENEW = "ask the server for more time"
    REBIND = "ask every server for more time"


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks.

    Attributes:
        mac: of the interface.
        identifier: by which servers know the attachment.
        options: what it says and asks.
        broadcast: whether answers are to be broadcast.
    """

    mac: bytes
    identifier: bytes
    options: Mapping[int, bytes] = field(default_factory=dict)
    broadcast: bool = False

    def message(
        self,
        kind: int,
        xid: int,
        ciaddr: IPv4Address = dhcp.ANY,
        *,
        requested: IPv4Address | None = None,
        server: IPv4Address | None = None,
    ) -> Message:
        """Make a message; what the protocol needs comes before what a network provides."""
        own = {dhcp.MAX_SIZE: _MAX_SIZE.to_bytes(2, "big"), dhcp.CLIENT_ID: self.identifier, **self.options}
        fixed = {dhcp.MESSAGE_TYPE: bytes((kind,))}
        if requested is not None:
            fixed[dhcp.REQUESTED_ADDRESS] = requested.packed
        if server is not None:
            fixed[dhcp.SERVER_ID] = server.packed
        flags = dhcp.BROADCAST_FLAG if self.broadcast and ciaddr == dhcp.ANY else 0
        return Message(dhcp.BOOTREQUEST, xid, self.mac, flags=flags, ciaddr=ciaddr, options=own | fixed)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message and where it goes.

    Attributes:
        source: the address of the client, or 0.0.0.0.
        mac: of who gets it; None for everybody.
    """

    message: Message
    source: IPv4Address = dhcp.ANY
    destination: IPv4Address = _EVERYBODY
    mac: bytes | None = None


def release_of(client: Client, lease: Lease) -> Outgoing:
    """Make the message that gives an address back, to its server alone (RFC 2131, section 4.4.6)."""
    made = client.message(dhcp.RELEASE, _DICE.getrandbits(32), lease.address.ip, server=lease.server)
    kept = {dhcp.MESSAGE_TYPE, dhcp.SERVER_ID, dhcp.CLIENT_ID}
    made = replace(made, options={code: value for code, value in made.options.items() if code in kept})
    return Outgoing(made, lease.address.ip, lease.server, lease.server_mac or None)


@dataclass(slots=True)
class Exchange:
    """A conversation in progress.

    Attributes:
        client: who asks.
        now: when it begins.
        aim: what for.
        held: the lease that is to be prolonged; with `Aim.SELECT`, only its address is taken.
        longest_wait: between two repetitions, in seconds.
        due: when the next message is to be sent.
        offer: provisional until an ACK: whose address was offered, by whom.
        refusals: what servers said when they refused.
        sent: how many messages of each kind.
    """

    client: Client
    now: float
    aim: Aim = Aim.SELECT
    held: Lease | None = None
    longest_wait: float = LONGEST_WAIT
    due: float = field(init=False)
    offer: Lease | None = None
    refusals: list[str] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)
    _xid: int = field(default_factory=lambda: _DICE.getrandbits(32))
    _repeated: int = 0
    _asked_at: float = 0.0

    def __post_init__(self) -> None:
        self.due = self.now

    def next(self, now: float) -> Outgoing:
        """Return what is to be sent now, and set when the next message is due."""
        if self.offer is not None and self._repeated >= _PATIENCE:
            self._start_again()
        kind = dhcp.DISCOVER if self.aim is Aim.SELECT and self.offer is None else dhcp.REQUEST
        self.sent[kind] = self.sent.get(kind, 0) + 1
        if self._repeated == 0:
            self._asked_at = now
        self.due = now + self._wait()
        self._repeated += 1
        if self.aim is not Aim.SELECT and self.held is not None:
            return self._prolonging(self.held)
        if self.offer is not None:
            asked, server = self.offer.address.ip, self.offer.server
            return Outgoing(self.client.message(kind, self._xid, requested=asked, server=server))
        wish = None if self.held is None else self.held.address.ip
        return Outgoing(self.client.message(kind, self._xid, requested=wish))

    def _prolonging(self, held: Lease) -> Outgoing:
        address = held.address.ip
        request = self.client.message(dhcp.REQUEST, self._xid, address)
        if self.aim is Aim.RENEW:
            return Outgoing(request, address, held.server, held.server_mac or None)
        return Outgoing(request, address)

    def _wait(self) -> float:
        base: float = min(_FIRST_WAIT * 2**self._repeated, self.longest_wait)
        spread = min(_JITTER, base / 2)
        return base + _DICE.uniform(-spread, spread)

    def _start_again(self) -> None:
        self.offer, self._repeated, self._xid = None, 0, _DICE.getrandbits(32)

    def hear(self, message: Message, mac: bytes, now: float) -> Lease | None:
        """Take what was received; return the lease if this is it.

        Raises:
            PluginError: a server grants an address without a subnet mask.
        """
        if (message.op, message.xid, message.chaddr) != (dhcp.BOOTREPLY, self._xid, self.client.mac):
            return None
        server = message.server
        if server is None:
            return None
        if message.type == dhcp.OFFER:
            self._hear_offer(message, server, mac, now)
        elif message.type in {dhcp.ACK, dhcp.NAK} and self._awaits(server):
            if message.type == dhcp.NAK:
                self._hear_refusal(message, server, now)
            elif self._fits(message.yiaddr):
                held = None if self.aim is Aim.SELECT else self.held
                return granted(message, server, mac, self._asked_at, held)
        return None

    def _hear_offer(self, message: Message, server: IPv4Address, mac: bytes, now: float) -> None:
        if self.aim is Aim.SELECT and self.offer is None and self._fits(message.yiaddr):
            self.offer = Lease(IPv4Interface(message.yiaddr), server, mac, None, (), now, now, now)
            self._repeated, self.due = 0, now

    def _hear_refusal(self, message: Message, server: IPv4Address, now: float) -> None:
        words = message.options.get(dhcp.TEXT, b"").decode("utf-8", "replace").strip("\0")
        self.refusals.append(f"{server}: {words}" if words else str(server))
        self._start_again()
        self._repeated = min(len(self.refusals), 6)
        self.due = now + self._wait()

    def _awaits(self, server: IPv4Address) -> bool:
        """Whether an answer of a server is one to our question."""
        if self.aim is Aim.SELECT:
            return self.offer is not None and self.offer.server == server
        return self.aim is Aim.REBIND or (self.held is not None and self.held.server == server)

    def _fits(self, address: IPv4Address) -> bool:
        return int(address) != 0 and (self.held is None or self.held.address.ip == address)
