"""One request that takes several hooks and steps of the daemon's own, all in one thread.

Owns: that thread, the way of its hooks through the runner and back into it, the early answer when a hook or a step is
overdue, and the work that continues after it.
Refuses: to abandon half-done work: an overdue hook counts by how it ends, and a caller that hangs up changes nothing.

Each hook is an ordinary call of the runner: admitted on its own, with its own deadline, counted for quarantine. So two
hooks of one request may reach two instances of a plugin, but never half of one.
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

from nodeplug.contract.errors import DeadlineExceeded, Ending, PluginError
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
    """No hook can be called any more: half-done work is left for the next start, as after a kill.

    Not an Exception, so that nothing is rolled back: without its plugin that would be half a way back.
    """


class Composition:
    """One request while its hooks and steps run. `run` belongs to the event loop, the rest to the thread.

    A route without callers has no hooks that can be called. The deadline, in seconds, is for each step of the host.
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
        """Do the work in a thread of its own; return when it ends, or raise early when something is overdue.

        Raises:
            DeadlineExceeded: a hook or a step is overdue; the work goes on.
            TryAgain: no thread can be started.
            PluginError: what the work raised, or an OSError of the daemon's own.
        """
        self.step("the beginning")
        context = copy_context()
        context.run(CURRENT.set, self.call)
        outcome = aside(lambda: context.run(work, self), f"{self.call.claim}:{self.call.verb}:{self.call.id}")
        ends: set[asyncio.Future[Any]] = {outcome, self._early}
        try:
            while not (outcome.done() or self._early.done()):
                # Every step has at least `deadline` seconds, so looking again by then misses none.
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
        except DaemonEnds:
            raise Ending("the daemon is ending; ask again in a moment") from None
        except OSError as error:
            raise PluginError(f"{type(error).__name__}: {error}") from error

    def _overdue(self) -> DeadlineExceeded:
        step, _ = self._now
        return DeadlineExceeded(f"{step} for {self.call.key!r} did not end within {self.deadline:g} s; it still runs")

    def _answer(self, error: PluginError) -> None:
        if not self._early.done():
            self._early.set_result(error)

    def _tell(self, outcome: "asyncio.Future[Any]") -> None:
        """Log the end of work whose caller was answered early."""
        error = None if outcome.cancelled() else outcome.exception()
        how = "well" if error is None else f"with {type(error).__name__}"
        call = self.call
        LOG.warning("%s of %s ended %s, after its answer (request %s)", call.verb, call.claim, how, call.id)

    async def _called(self, hook: str, hand_over: Callable[[HookCall], None], **values: Any) -> Any:
        begun: list[HookCall] = []

        def start(call: HookCall) -> None:
            begun.append(call)
            hand_over(call)

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
        """Whether the plugin of the claim is not running, so that none of its hooks can be called."""
        return not self.route.callers

    def step(self, name: str, seconds: float | None = None) -> None:
        """Enter a step of the host; it ends where the next one or a hook begins.

        It is overdue after `seconds`: at least `deadline`, the default; math.inf for a wait with a bound of its own.
        """
        self._now = (name, time.monotonic() + (self.deadline if seconds is None else seconds))

    def hook(self, name: str, **arguments: Any) -> Any:
        """Call a hook in this thread, to its real end; the caller is answered early when its deadline passes first.

        It raises what `Runner.call` raises, but DeadlineExceeded only from the plugin itself.
        """
        if (worker := self.route.elsewhere(name)) is not None:
            worker.announce()  # it takes as long to wake as the way over the loop
        turn: SimpleQueue[HookCall | None] = SimpleQueue()
        self._now = (name, math.inf)
        called = self._called(name, turn.put, **arguments)
        try:
            ended = asyncio.run_coroutine_threadsafe(called, self._loop)
        except RuntimeError:
            called.close()
            raise DaemonEnds from None
        ended.add_done_callback(lambda _: turn.put(None))  # refused before its turn, or the loop ends
        begun = turn.get()
        try:
            if begun is None:
                return _refused(ended)
            answer, error = begun.run()
            if ended.cancelled() or self._loop.is_closed():
                raise DaemonEnds
            if error is not None:
                raise error
            return answer
        except concurrent.futures.CancelledError:
            raise DaemonEnds from None
        finally:
            self.step(f"what follows {name}")


def _refused(ended: "concurrent.futures.Future[Any]") -> Any:
    """Raise why a hook was not called; DaemonEnds if its plugin is stopped because the daemon ends."""
    try:
        return ended.result()
    except Ending:
        raise DaemonEnds from None
