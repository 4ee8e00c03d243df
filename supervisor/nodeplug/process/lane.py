"""Work that may block, one piece after another: files on a disk that can freeze, and long computations.

Owns: the one daemonic thread of each lane (made when there is work, gone after a while without any), the queue before
it, and since when the current piece has not come back.
Refuses: pools, `asyncio.to_thread` among them: a thread that a frozen filesystem holds would take a place from others
there, and keep the process from ending. Plugin code has its own threads (`nodeplug.hosting.runner`). Work that moves
its thread into a namespace moves it back, since other work of the same lane follows.

A stuck lane refuses new and queued work at once, so that nobody waits for it twice, and resumes by itself
when the work comes back. While it makes progress, a long queue is no reason to refuse: on a busy node two hundred calls
ask at once, and each of them is quick.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from nodeplug.contract.errors import TryAgain
from nodeplug.process.turns import on_the_loop

PATIENCE: Final = 2.0
"""Seconds that one piece of work may take before an answer is given without it."""
_LINE: Final = 15.0
"""Longest wait in the queue, in multiples of the patience."""
_IDLE: Final = 10.0
"""Seconds without work after which the thread ends."""
_T = TypeVar("_T")


class Unanswered(TryAgain):
    """The work of a lane has not come back in time; the message says since when."""


class Lane:
    """Pieces of work that go one after another.

    Args:
        what: who does not answer when work does not come back, for messages.
        patience: seconds that a caller waits for a piece of work, its own or the one before it; None waits without end.
    """

    def __init__(self, what: str, patience: float | None = PATIENCE) -> None:
        self.what = what
        self.patience = patience
        self._line: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._since: float | None = None
        self._serving = False
        self._changing = threading.Lock()

    async def run(self, work: Callable[[], _T], late: Callable[[_T], None] = lambda _: None) -> _T:
        """Do a piece of work beside the event loop, and wait for it.

        Args:
            work: what may block.
            late: gets, in any thread, a result that came when nobody waited any more: to close what it holds.

        Returns:
            What the work returned; what it raised is raised.

        Raises:
            Unanswered: it has not come back in time and may still be done, or an earlier one has not and it never is.
        """
        await on_the_loop()
        begun, piece = time.monotonic(), self.begin(work)
        ended = _awaitable(piece)
        try:
            await asyncio.wait({ended}, timeout=self._left)
            while not piece.done():
                self._look(piece, begun)
                await asyncio.wait({ended}, timeout=self._left)
        except BaseException:
            if not piece.cancel():  # it is under way
                piece.add_done_callback(lambda _: late(piece.result()) if piece.exception() is None else None)
            raise
        return piece.result()

    def wait(self, piece: "Future[_T]") -> _T:
        """Wait for a piece of work in a thread that may block, as `run` does on the loop."""
        begun = time.monotonic()
        while not wait({piece}, timeout=self._left).done:
            self._look(piece, begun)
        return piece.result()

    def begin(self, work: Callable[[], _T], *, whenever: bool = False) -> "Future[_T]":
        """Have a piece of work done after those before it, by a thread that does not keep the process.

        Args:
            work: what may block.
            whenever: take it also when an earlier piece has not come back in time.

        Raises:
            Unanswered: an earlier one has not, or no thread can be had.
        """
        if self._left == 0 and not whenever:
            raise Unanswered(self.stuck)
        piece: Future[_T] = Future()
        with self._changing:
            if not self._serving:
                try:
                    threading.Thread(target=self._serve, name=f"beside: {self.what}"[:100], daemon=True).start()
                except RuntimeError as error:
                    text = f"the daemon cannot start another thread ({error}); raise its task limit (TasksMax)"
                    raise Unanswered(text) from None
                self._serving = True
            self._line.put((piece, work))
        return piece

    @property
    def stuck(self) -> str:
        """Why the lane refuses work at present; empty when it does not."""
        if self.patience is None or (since := self._since) is None:
            return ""
        seconds = time.monotonic() - since
        return f"{self.what} does not answer (for {seconds:.0f} s)" if seconds >= self.patience else ""

    @property
    def _left(self) -> float | None:
        """The seconds that the work under way may still take."""
        if self.patience is None or (since := self._since) is None:
            return self.patience
        return max(since + self.patience - time.monotonic(), 0.0)

    def _look(self, piece: "Future[Any]", begun: float) -> None:
        """Refuse a piece of work whose caller waits in vain."""
        if reason := self.stuck:
            piece.cancel()
            raise Unanswered(reason)
        crowded = self.patience is not None and time.monotonic() - begun >= self.patience * _LINE
        if crowded and piece.cancel():
            raise Unanswered(f"{self.what} has too many requests at once; try again")

    def _serve(self) -> None:
        while True:
            try:
                piece, work = self._line.get(timeout=_IDLE)
            except Empty:
                with self._changing:
                    if self._line.empty():
                        self._serving = False
                        return
                continue
            if not piece.set_running_or_notify_cancel():
                continue
            self._since = time.monotonic()
            try:
                end = partial(piece.set_result, work())
            except BaseException as error:
                end = partial(piece.set_exception, error)
            self._since = None  # first: whoever is told by the end finds the lane free
            end()
            del piece, work, end  # what they hold is nobody's while the thread waits


def _awaitable(piece: "Future[Any]") -> "asyncio.Future[None]":
    """Return what is done on the loop when a piece of work is."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the daemon has ended, and nobody waits
            loop.call_soon_threadsafe(ended.set_result, None)

    piece.add_done_callback(tell)
    return ended
