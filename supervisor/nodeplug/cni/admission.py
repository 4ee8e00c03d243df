"""How many CNI calls run at once, and which goes first.

Owns: a bounded room and its bounded queue: DEL before every other verb (it frees what an ADD may be waiting for), a
fair share for every flow, and GC of a network alone, without an ADD, CHECK or DEL of that network (SPEC 1.1.0, "GC").
Refuses: threads: state is touched on the event loop only.

A flow is what one network of one plugin asks for, its DELs apart from the rest. It gets a place only while it holds
fewer than twice as many as are free, so a plugin that hangs fills two thirds of the room (11 places of 16), two that
hang leave one of 16, and its own DELs still come in. The last place is for a flow that holds none, however small the
room. The queue is shared out by the same rule.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from nodeplug.errors import TryAgain

_PER_FREE: Final = 2
"""Places that one flow may hold for each that is free."""


@dataclass(slots=True, eq=False)
class _Ticket:
    verb: str
    network: str
    claim: str
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def flow(self) -> tuple[str, str, bool]:
        """What shares its places with this call."""
        return self.claim, self.network, self.verb == "DEL"


def _has_share(ticket: _Ticket, among: list[_Ticket], places: int) -> bool:
    held = sum(other.flow == ticket.flow for other in among)
    free = places - len(among)
    return held < _PER_FREE * free and (free > 1 or held == 0)


@dataclass(slots=True)
class Admission:
    """The room.

    Attributes:
        concurrency: calls that run at once.
        waiting: calls that may wait for their turn.
        patience: seconds that one may wait; the entrypoint script gives up on its own after 150 s.
    """

    concurrency: int = 16
    waiting: int = 512
    patience: float = 20.0
    _inside: list[_Ticket] = field(default_factory=list)
    _queue: list[_Ticket] = field(default_factory=list)

    @property
    def running(self) -> int:
        """How many calls are inside."""
        return len(self._inside)

    @property
    def queued(self) -> int:
        """How many calls wait."""
        return len(self._queue)

    @asynccontextmanager
    async def enter(self, verb: str, network: str, claim: str = "") -> AsyncIterator[None]:
        """Wait for a place, hold it, and give it back.

        Args:
            verb: CNI_COMMAND.
            network: the name of the network.
            claim: the plugin's, as it is executed.

        Raises:
            TryAgain: too many wait already, or the wait took too long.
        """
        ticket = _Ticket(verb, network, claim)
        self._refuse_crowd(ticket)
        self._queue.append(ticket)
        self._admit()
        try:
            await self._wait(ticket)
            yield
        finally:
            for place in (self._queue, self._inside):
                if ticket in place:
                    place.remove(ticket)
            self._admit()

    def _refuse_crowd(self, ticket: _Ticket) -> None:
        if not _has_share(ticket, self._queue, self.waiting):
            raise TryAgain(
                f"{len(self._inside)} CNI calls run and {len(self._queue)} wait already, too many of them for network "
                f"{ticket.network!r}; raise cni_concurrency or cni_waiting if that is normal on this node"
            )

    async def _wait(self, ticket: _Ticket) -> None:
        try:
            async with asyncio.timeout(self.patience):
                await ticket.turn
        except TimeoutError:
            raise TryAgain(
                f"no place for this {ticket.verb} within {self.patience:g} s: {len(self._inside)} CNI calls run, "
                f"{sum(other.flow == ticket.flow for other in self._inside)} of them for network {ticket.network!r}; "
                "see `nodeplug status` for the slow ones"
            ) from None

    def _admit(self) -> None:
        held_back: set[str] = set()
        for ticket in sorted(self._queue, key=lambda waiting: waiting.verb != "DEL"):
            if len(self._inside) >= self.concurrency:
                return
            if not _has_share(ticket, self._inside, self.concurrency):
                continue
            if ticket.network in held_back or not self._fits(ticket):
                # A waiting GC is not overtaken by later calls of its network: it would never have its turn.
                if ticket.verb == "GC":
                    held_back.add(ticket.network)
                continue
            self._queue.remove(ticket)
            self._inside.append(ticket)
            if not ticket.turn.done():
                ticket.turn.set_result(None)

    def _fits(self, ticket: _Ticket) -> bool:
        same = [other for other in self._inside if other.network == ticket.network]
        return not same if ticket.verb == "GC" else all(other.verb != "GC" for other in same)
