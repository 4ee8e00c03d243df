"""Host code that composes one request of several hooks and steps of its own, in one thread.

Owns: that thread, the road of its hooks through the runner and back into the same thread, the answer that is given
early when a hook or a step of the host is overdue, and the work that goes on behind it.
Refuses: to abandon half-done work. An overdue hook is taken as its outcome says when it ends at last; a caller that
goes away changes nothing.

Each hook is a call of the runner's like any other: admitted on its own, with its own deadline, counted for quarantine.
Only its thread is the composition's, so two hooks of one request may meet two instances of a plugin, never half of one.
"""

import asyncio
import concurrent.futures
import logging
import math
import time
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from nodeplug.contract.errors import DeadlineExceeded, PluginError
from nodeplug.hosting.call import CURRENT, Call
from nodeplug.hosting.hook_call import HookCall
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.process.aside import aside

LOG: Final = logging.getLogger(__name__)
HOST_DEADLINE: Final = 120.0
"""Seconds after which a step of the host is answered as overdue."""
_T = TypeVar("_T")


class DaemonEnds(BaseException):
    """The loop is gone: what is half done now is for the next start, as after a kill.

    No Exception, so that nothing is rolled back on its account.
    """


class Composition:
    """One request while its hooks and steps run. `run` belongs to the event loop, the rest to the thread.

    Attributes:
        route: the claim that is asked; one without callers has no hooks that can be called.
        call: the request; its key names what the hooks are about.
        deadline: seconds for each step of the host.
    """

    def __init__(self, runner: Runner, route: Route, call: Call, *, deadline: float = HOST_DEADLINE) -> None:
        self.route = route
        self.call = call
        self.deadline = deadline
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self._early: asyncio.Future[PluginError] = self._loop.create_future()
        self._now = ("the beginning", math.inf)

    # --- on the loop

    async def run(self, work: Callable[["Composition"], _T]) -> _T:
        """Do the work in a thread of its own; return when it ends, or when an early answer is due.

        Raises:
            DeadlineExceeded: a hook or a step is overdue; the work goes on.
            TryAgain: no further thread can be had.
            PluginError: what the work raised; an OSError of the host's own becomes one.
        """
        self.step("the beginning")
        context = copy_context()
        context.run(CURRENT.set, self.call)
        outcome = aside(lambda: context.run(work, self), f"{self.call.claim}:{self.call.verb}:{self.call.id}")
        ends: set[asyncio.Future[Any]] = {outcome, self._early}
        try:
            while not (outcome.done() or self._early.done()):
                # No step has less than `deadline` seconds, so that to look again by then misses none.
                left = min(self._now[1] - time.monotonic(), self.deadline)
                if left <= 0:
                    self._answer(self._overdue())
                await asyncio.wait(ends, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not outcome.done():
                raise self._early.result()
        except BaseException:
            outcome.add_done_callback(self._tell)
            raise
        try:
            return outcome.result()
        except OSError as error:
            raise PluginError(f"{type(error).__name__}: {error}") from error

    def _overdue(self) -> DeadlineExceeded:
        step, _ = self._now
        return DeadlineExceeded(f"{step} for {self.call.key!r} did not end within {self.deadline:g} s; it still runs")

    def _answer(self, error: PluginError) -> None:
        if not self._early.done():
            self._early.set_result(error)

    def _tell(self, outcome: "asyncio.Future[Any]") -> None:
        """Log how work ended that was answered before."""
        error = None if outcome.cancelled() else outcome.exception()
        how = "well" if error is None else f"with {type(error).__name__}"
        call = self.call
        LOG.warning("%s of %s ended %s, after its answer (request %s)", call.verb, call.claim, how, call.id)

    async def _called(self, hook: str, hand_over: Callable[[Callable[[], None]], None], **values: Any) -> Any:
        begun: list[HookCall] = []

        def start(call: HookCall) -> None:
            begun.append(call)
            hand_over(call.run)

        try:
            return await self._runner.call(self.route, hook, self.call, values, start=start)
        except DeadlineExceeded as error:
            if begun[0].outcome.done():  # the plugin raised it itself
                raise
            self._answer(error)
            return await begun[0].outcome

    # --- in the thread

    def has(self, hook: str) -> bool:
        """Whether the plugin of the claim implements a hook."""
        return hook in self.route.hooks

    @property
    def at_rest(self) -> bool:
        """Whether the plugin of the claim does not run, so that none of its hooks can be called."""
        return not self.route.callers

    def step(self, name: str, seconds: float | None = None) -> None:
        """Enter a step of the host; it ends where the next one or a hook begins.

        Args:
            name: for the answer when it is overdue.
            seconds: when that is; None: `deadline`. Not less, and math.inf for a wait that has a bound of its own.
        """
        self._now = (name, time.monotonic() + (self.deadline if seconds is None else seconds))

    def hook(self, name: str, **arguments: Any) -> Any:
        """Call a hook in this thread, to its real end; the caller is answered early when its deadline passes first.

        Raises:
            PluginError: see `Runner.call`; never DeadlineExceeded but from the plugin itself.
        """
        turn: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._now = (name, math.inf)
        called = self._called(name, turn.put, **arguments)
        try:
            ended = asyncio.run_coroutine_threadsafe(called, self._loop)
        except RuntimeError:
            called.close()
            raise DaemonEnds from None
        ended.add_done_callback(lambda _: turn.put(None))  # refused before its turn, or the loop ends
        run = turn.get()
        if run is not None:
            run()
        try:
            return ended.result()
        except concurrent.futures.CancelledError:
            raise DaemonEnds from None
        finally:
            self.step(f"what follows {name}")
