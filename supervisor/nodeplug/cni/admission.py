"""How many CNI calls run at once, and which goes first.

Owns: bounded places and a bounded queue. DEL goes before every other verb, because it frees what an ADD may be waiting
for; plugins share the places fairly; GC of a network runs without an ADD, CHECK or DEL of it (SPEC 1.1.0, "GC").
Refuses: threads: state is touched on the event loop only.

Places are shared on three levels: by plugin, by direction within a plugin (DEL, or everything else), and by network
within a direction. On each level a group may hold a fixed number of places for each free one, and the last place is for
a plugin that holds none. So of 16 places, a network that hangs fills 11, a plugin that hangs in any number of networks
13, or 14 with its DELs; every other plugin still gets its ADD and DEL through. The queue is shared by the same rule.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.errors import TryAgain
from nodeplug.process.turns import on_the_loop

_PER_FREE: Final = (6, 4, 2)
"""Places that a plugin, a direction and a network may hold for each free place."""
_LEFT: Final = (1, 2, 2)
"""Places that each leaves free unless it holds none: one for another plugin, one for the other direction."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """One call, and the three groups whose places it counts against: its plugin, direction and network."""

    verb: str
    network: str
    claim: str
    admitted: bool = False
    turn: asyncio.Future[None] | None = None
    kin: tuple[Hashable, ...] = ()

    def __post_init__(self) -> None:
        direction = self.claim, self.verb == "DEL"
        self.kin = self.claim, direction, (*direction, self.network)


class _Places(list[_Ticket]):
    """Calls in places, with a count per group: scanning a long queue at each arrival would be slow."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[Hashable, int] = {}

    def take(self, ticket: _Ticket) -> None:
        self.append(ticket)
        for kin in ticket.kin:
            self.held[kin] = self.held.get(kin, 0) + 1

    def leave(self, ticket: _Ticket) -> None:
        """Remove a call if it is here."""
        if ticket in self:
            self.remove(ticket)
            for kin in ticket.kin:
                self.held[kin] -= 1
                if not self.held[kin]:
                    del self.held[kin]

    def has_share(self, ticket: _Ticket, places: int) -> bool:
        """Return whether each group of the call may hold one more."""
        free = places - len(self)
        for kin, per, left in zip(ticket.kin, _PER_FREE, _LEFT, strict=True):
            held = self.held.get(kin, 0)
            if held >= per * free or (held and free <= left):
                return False
        return True


@dataclass(slots=True)
class Admission:
    """Admits calls: `concurrency` run at once, `waiting` may queue, each for `patience` seconds.

    The entrypoint itself gives up after 150 s.
    """

    concurrency: int = 16
    waiting: int = 512
    patience: float = 20.0
    _inside: _Places = field(default_factory=_Places)
    _queue: _Places = field(default_factory=_Places)

    @asynccontextmanager
    async def enter(self, verb: str, network: str, claim: str = "") -> AsyncIterator[None]:
        """Wait for a place, hold it, and release it.

        Raises:
            TryAgain: the queue is full, or the wait took too long.
        """
        ticket = _Ticket(verb, network, claim)
        if not self._queue.has_share(ticket, self.waiting):
            raise TryAgain(
                f"{len(self._inside)} CNI calls run and {len(self._queue)} wait already, too many of them for plugin "
                f"{claim!r} or its network {network!r}; raise cni_concurrency or cni_waiting if that is normal on this "
                "node"
            )
        self._queue.take(ticket)
        self._admit()
        try:
            await self._wait(ticket)
            yield
        finally:
            self._queue.leave(ticket)
            self._inside.leave(ticket)
            self._admit()

    async def _wait(self, ticket: _Ticket) -> None:
        if ticket.admitted:
            return
        await on_the_loop()
        ticket.turn = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self.patience):
                if not ticket.admitted:
                    await ticket.turn
        except TimeoutError:
            raise TryAgain(
                f"no place for this {ticket.verb} within {self.patience:g} s: {len(self._inside)} CNI calls run, "
                f"{self._inside.held.get(ticket.claim, 0)} of them for plugin {ticket.claim!r}, "
                f"{sum(other.network == ticket.network for other in self._inside)} for network {ticket.network!r}; "
                "see `nodeplug status` for the slow ones"
            ) from None

    def _admit(self) -> None:
        held_back: set[str] = set()
        for ticket in sorted(self._queue, key=lambda waiting: waiting.verb != "DEL"):
            if len(self._inside) >= self.concurrency:
                return
            if not self._inside.has_share(ticket, self.concurrency):
                continue
            if ticket.network in held_back or not self._fits(ticket):
                # Later calls of its network must not overtake a waiting GC, or it would never run.
                if ticket.verb == "GC":
                    held_back.add(ticket.network)
                continue
            self._queue.leave(ticket)
            self._inside.take(ticket)
            ticket.admitted = True
            if ticket.turn is not None and not ticket.turn.done():
                ticket.turn.set_result(None)

    def _fits(self, ticket: _Ticket) -> bool:
        same = [other for other in self._inside if other.network == ticket.network]
        return not same if ticket.verb == "GC" else all(other.verb != "GC" for other in same)
