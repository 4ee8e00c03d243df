"""Whose turn it is to use the state of the host: the event loop's, or that of a thread while the loop waits.

Owns: the turn, the loop that lends it while it waits for events, and tasks whose steps a thread makes in its turns.
Refuses: to let anybody wait in a turn that is lent: what has to wait goes on as a task of the loop (`on_the_loop`).

A short request that is handed from a thread to the loop, from there to another thread and back costs three wakes of an
idle processor and the scheduling of both sides, more than all that is done for it. So the thread that has accepted it
makes the steps of its coroutine by itself, each in a turn, which is what the loop would do. Between two steps it does
what blocks (`ThreadTask.away`), and nobody waits for it.
"""

import asyncio
import contextvars
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Final, Self, TypeVarTuple

__all__ = ["ThreadTask", "Turn", "TurnLoop", "loop_of_caller", "on_the_loop", "stepping"]


_Ts = TypeVarTuple("_Ts")
_LOOK: Final = 0.5
"""Seconds after which the loop looks what was left to it, and which deadlines are over that were set in lent turns."""
_MANY: Final = 32
"""Pieces of work that are left to the loop before it is woken for them."""


class Turn:
    """A lock that goes to whoever has waited longest: the loop takes it again and again, others would starve."""

    __slots__ = ("_changing", "_line", "_taken")

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._line: deque[threading.Lock] = deque()
        self._taken = False

    def acquire(self) -> None:
        """Wait for the turn."""
        with self._changing:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._line.append(mine)
        mine.acquire()

    def release(self) -> None:
        """Hand the turn on."""
        with self._changing:
            if self._line:
                self._line.popleft().release()
            else:
                self._taken = False

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.release()


class _Lending(selectors.DefaultSelector):
    """The selector of a loop whose turn is free while it waits for events."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turn.release()
        try:
            return super().select(_LOOK if timeout is None else min(timeout, _LOOK))
        finally:
            self._turn.acquire()


class TurnLoop(asyncio.SelectorEventLoop):
    """An event loop whose state threads may use in their turns.

    In a turn that is lent all that does not wait may be called, `call_soon` too: it wakes the loop.
    """

    def __init__(self) -> None:
        self.turn: Final = Turn()
        self._left = 0
        super().__init__(_Lending(self.turn))

    def run_forever(self) -> None:
        """Run until it is stopped; before and afterwards nobody has the turn."""
        with self.turn:
            super().run_forever()

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Call back at the next turn of the loop, which is at once."""
        if stepping() is not None:
            return self.call_soon_threadsafe(callback, *args, context=context)
        return super().call_soon(callback, *args, context=context)

    def leave(self, callback: Callable[..., object], *args: Any) -> None:
        """Have something done at the next turn of the loop, which is not woken for a few of them."""
        self._left += 1
        if self._left % _MANY == 0:
            self.call_soon_threadsafe(callback, *args)
        else:
            super().call_soon(callback, *args)


class _Away:
    """What a thread does between two steps, as the coroutine waits for it."""

    __slots__ = ("settle", "unfinished", "work")

    def __init__(self, work: Callable[[], object], settle: Callable[[], object]) -> None:
        self.work = work
        self.settle = settle
        self.unfinished: BaseException | None = None

    def __await__(self) -> "Generator[_Away, None, None]":
        yield self
        if self.unfinished is not None:
            raise self.unfinished


class _Moving:
    """What a coroutine waits for that wants to go on on the loop."""

    def __await__(self) -> "Generator[_Moving, None, None]":
        yield self


class ThreadTask:
    """A coroutine whose steps a thread makes, until it has to wait for something: then it is a task of the loop.

    Made in a turn. Whoever has the turn may look at it and cancel it.

    Attributes:
        ended: done when it has ended, wherever it was.
        used_up: whether its thread has been away: it may be in another network namespace now.
    """

    def __init__(self, loop: TurnLoop, coroutine: Coroutine[Any, None, None]) -> None:
        self.loop = loop
        self.ended: asyncio.Future[None] = loop.create_future()
        self.used_up = False
        self._coroutine = coroutine
        self._context = contextvars.copy_context()
        self._away: _Away | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_current(self) -> bool:
        """Whether it is on the loop, and asks."""
        return self._task is not None and self._task is asyncio.current_task()

    def run(self, before_away: Callable[[], object]) -> None:
        """Make the steps, in a thread that has no turn yet.

        Args:
            before_away: called once, before the thread is away for the first time, or when there is no more to do.
        """
        try:
            while (away := self._turned()) is not None:
                if not self.used_up:
                    self.used_up = True
                    before_away()
                away.work()
        finally:
            if not self.used_up:
                before_away()

    async def away(self, work: Callable[[], object], settle: Callable[[], object], seconds: float) -> None:
        """Do in the thread of this task, outside of its turn, what may block; called by its own coroutine.

        Args:
            work: what may block; it raises nothing.
            settle: called in a turn when the work has ended, however late.
            seconds: how long the coroutine waits; up to half a second longer if nothing else wakes the loop.

        Raises:
            TimeoutError: the work takes longer. The coroutine is a task of the loop now, and the thread left behind.
        """
        away = _Away(work, settle)
        timer = self.loop.call_later(seconds, self._take_over, away, TimeoutError())
        try:
            await away
        finally:
            timer.cancel()

    def cancel(self) -> None:
        """Cancel it; the thread is left to what it does."""
        if self._task is not None:
            self._task.cancel()
        elif self._away is not None:
            self._take_over(self._away, asyncio.CancelledError())
        elif not self.ended.done():  # it has not begun
            self._coroutine.close()
            self.ended.set_result(None)

    def _turned(self) -> _Away | None:
        """Take a turn: settle what was done, and make the next step; return what is to be done then, if anything."""
        with self.loop.turn:
            _LOCAL.task = self
            try:
                away, self._away = self._away, None
                if away is not None:
                    away.settle()
                if self._task is None and not self.ended.done():
                    self._away = self._stepped()
                return self._away
            finally:
                _LOCAL.task = None

    def _stepped(self) -> _Away | None:
        try:
            asked = self._context.run(self._coroutine.send, None)
        except StopIteration:
            self.ended.set_result(None)
            return None
        if isinstance(asked, _Away):
            return asked
        self.move()
        return None

    def move(self) -> None:
        """Go on on the loop; called in a turn, between two steps."""
        self._task = self.loop.create_task(self._rest(), context=self._context)

    def _take_over(self, away: _Away, unfinished: BaseException) -> None:
        """Go on on the loop although the thread has not come back."""
        if away is self._away and self._task is None:
            away.unfinished = unfinished
            self.move()

    async def _rest(self) -> None:
        try:
            await _Rest(self._coroutine)
        finally:
            if not self.ended.done():
                self.ended.set_result(None)


class _Rest:
    """A coroutine that has begun; `await` takes one that has not."""

    def __init__(self, coroutine: Coroutine[Any, None, None]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._coroutine.__await__()


class _Local(threading.local):
    task: ThreadTask | None = None


_LOCAL: Final = _Local()


def stepping() -> ThreadTask | None:
    """Return the task whose step the calling thread makes; None on the loop."""
    return _LOCAL.task


def loop_of_caller() -> asyncio.AbstractEventLoop:
    """Return the loop of whose state the caller has the turn: the running one, or that of its thread's task."""
    task = _LOCAL.task
    return asyncio.get_running_loop() if task is None else task.loop


async def on_the_loop() -> None:
    """Go on on the loop, where one can wait; to be awaited before anything else that may take its time."""
    if _LOCAL.task is not None:
        await _Moving()
