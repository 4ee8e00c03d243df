"""Work that may block, beside the event loop: files of a disk that can freeze, and what takes long to compute.

Owns: one fresh daemon thread for each piece of work, one piece at a time on each lane, and since when the one that is
under way has not come back.
Refuses: pools, `asyncio.to_thread` among them: a thread that a frozen filesystem holds would take a place from others
there, and keep the process from ending. Plugin code has its own threads (`nodeplug.hosting.runner`).

A lane that is stuck refuses what comes next, and whoever waits in line, at once, so that nobody waits for it twice, and
goes on by itself when the work comes back. While it goes on, a long line is no reason to refuse anybody: on a busy node
two hundred calls ask at once, and each of them is quick.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from nodeplug.contract.errors import TryAgain

PATIENCE: Final = 2.0
"""Seconds that one piece of work may take before an answer is given without it."""
_LINE: Final = 15.0
"""How many times that anybody waits in line at most."""
_T = TypeVar("_T")


class Unanswered(TryAgain):
    """The work of a lane has not come back in time; the message says since when."""


def _forget(_: object) -> None:
    pass


@dataclass(slots=True)
class Lane:
    """Pieces of work that go one after another. Used from the event loop alone.

    Attributes:
        what: who does not answer when work does not come back, for messages.
        patience: seconds that a caller waits for a piece of work, its own or the one before it; None waits without end.
    """

    what: str
    patience: float | None = PATIENCE
    _running: "asyncio.Future[Any] | None" = field(default=None)
    _since: float = 0.0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def stuck(self) -> str:
        """Why the lane refuses work at present; empty when it does not."""
        if self._running is None or self.patience is None:
            return ""
        seconds = time.monotonic() - self._since
        return f"{self.what} does not answer (for {seconds:.0f} s)" if seconds >= self.patience else ""

    async def run(self, work: Callable[[], _T], late: Callable[[_T], None] = _forget) -> _T:
        """Do a piece of work in a thread of its own, and wait for it.

        Args:
            work: what may block.
            late: gets a result that came when nobody waited any more, on the loop: to close what it holds.

        Returns:
            What the work returned; what it raised is raised.

        Raises:
            Unanswered: it has not come back in time, or an earlier piece has not.
        """
        if self.stuck:
            raise Unanswered(self.stuck)
        await self._stand_in_line()
        outcome = self._begin(work)
        try:
            async with asyncio.timeout(self.patience):
                # shield: who stops waiting must not mark the work as ended.
                return await asyncio.shield(outcome)
        except TimeoutError:
            _leave(outcome, late)
            raise Unanswered(self.stuck or f"{self.what} does not answer; try again") from None
        except asyncio.CancelledError:
            _leave(outcome, late)
            raise

    async def _stand_in_line(self) -> None:
        """Wait until the work of those who asked before has ended, for as long as it goes on."""
        turn = asyncio.create_task(self._turn.acquire(), name=f"in line: {self.what}")
        asked = time.monotonic()
        try:
            while not turn.done():
                await asyncio.wait({turn}, timeout=self._left)
                if turn.done():
                    return
                if self.stuck:
                    raise Unanswered(self.stuck)
                if self.patience is not None and time.monotonic() - asked >= self.patience * _LINE:
                    raise Unanswered(f"{self.what} has too many requests at once; try again")
        except BaseException:
            if not turn.cancel():  # it came in the same moment
                self._turn.release()
            raise

    @property
    def _left(self) -> float | None:
        """The seconds that the work under way may still take."""
        if self.patience is None or self._running is None:
            return self.patience
        return max(self._since + self.patience - time.monotonic(), 0.0)

    def _begin(self, work: Callable[[], _T]) -> "asyncio.Future[_T]":
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_T] = loop.create_future()
        thread = threading.Thread(target=_carry, args=(loop, outcome, work), name=f"beside: {self.what}"[:100])
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError as error:
            self._turn.release()
            raise Unanswered(
                f"the daemon cannot start another thread ({error}); raise its task limit (TasksMax)"
            ) from None
        self._running, self._since = outcome, time.monotonic()
        outcome.add_done_callback(self._ended)
        return outcome

    def _ended(self, outcome: "asyncio.Future[Any]") -> None:
        self._running = None
        self._turn.release()
        if not outcome.cancelled():
            outcome.exception()  # seen: whoever waited has it


def _leave(outcome: "asyncio.Future[_T]", late: Callable[[_T], None]) -> None:
    """Give the result to `late` once it is there."""

    def pass_on(done: "asyncio.Future[_T]") -> None:
        if not done.cancelled() and done.exception() is None:
            late(done.result())

    outcome.add_done_callback(pass_on)


def _carry(loop: asyncio.AbstractEventLoop, outcome: "asyncio.Future[_T]", work: Callable[[], _T]) -> None:
    """Do the work in this thread and hand its end to the loop."""
    try:
        result = work()
    except Exception as error:
        end: Callable[[], None] = _raising(outcome, error)
    else:

        def end() -> None:
            if not outcome.done():
                outcome.set_result(result)

    try:
        loop.call_soon_threadsafe(end)
    except RuntimeError:  # the loop is closed: the daemon has ended, and nobody waits
        return


def _raising(outcome: "asyncio.Future[Any]", error: Exception) -> Callable[[], None]:
    def end() -> None:
        if not outcome.done():
            outcome.set_exception(error)

    return end
