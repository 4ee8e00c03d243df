"""How many CNI calls run at once, and which goes first.

Owns: a bounded room and its bounded queue: DEL before every other verb (it frees what an ADD may be waiting for), and
GC of a network alone, without an ADD, CHECK or DEL of that network (SPEC 1.1.0, "GC").
Refuses: threads: state is touched on the event loop only.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nodeplug.errors import TryAgain


@dataclass(slots=True, eq=False)
class _Ticket:
    verb: str
    network: str
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


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
    async def enter(self, verb: str, network: str) -> AsyncIterator[None]:
        """Wait for a place, hold it, and give it back.

        Raises:
            TryAgain: too many wait already, or the wait took too long.
        """
        ticket = _Ticket(verb, network)
        self._refuse_crowd()
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

    def _refuse_crowd(self) -> None:
        if len(self._queue) >= self.waiting:
            raise TryAgain(
                f"{len(self._inside)} CNI calls run and {len(self._queue)} wait already; "
                "raise cni_concurrency or cni_waiting if that is normal on this node"
            )

    async def _wait(self, ticket: _Ticket) -> None:
        try:
            async with asyncio.timeout(self.patience):
                await ticket.turn
        except TimeoutError:
            raise TryAgain(
                f"no place for this {ticket.verb} within {self.patience:g} s: {len(self._inside)} CNI calls run; "
                "see `nodeplug status` for the slow ones"
            ) from None

    def _admit(self) -> None:
        held_back: set[str] = set()
        for ticket in sorted(self._queue, key=lambda waiting: waiting.verb != "DEL"):
            if len(self._inside) >= self.concurrency:
                return
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
