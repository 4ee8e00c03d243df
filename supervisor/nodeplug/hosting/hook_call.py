"""One hook call, and the thread that it runs in.

Owns: which plugins the thread is inside, its name while the hook runs, what the call holds until it has really ended,
and reporting its end to the loop.
Refuses: decisions: who may be called, and for how long, is the runner's.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, Protocol

from nodeplug.contract.errors import PluginError, TryAgain, bounded
from nodeplug.hosting.call import CURRENT, Call
from nodeplug.hosting.overdue import CallSubject
from nodeplug.hosting.strays import Strays
from nodeplug.process.turns import ThreadTask, loop_of_caller

if TYPE_CHECKING:
    import asyncio


class Entered(Protocol):
    """An instance of a plugin that a thread is inside of."""

    @property
    def hooks(self) -> frozenset[str]:
        """What it implements."""

    @property
    def callers(self) -> Mapping[str, Callable[..., Any]]:
        """By hook name; calls the plugin and all wrappers."""


class HookCall:
    """Created on the loop; `run` belongs to the thread.

    Attributes:
        name: of the thread while the hook runs, so that a hanging one can be found.
        key: what it is about; the request's own key may change with its next hook.
        seconds: its deadline.
        subject: what it works on; while it calls a delegate, what that works on.
        admit: raises TryAgain if too many calls for a subject hang.
        inside: the plugins that the thread is inside, by section.
        outcome: done, on the loop, when the hook has really ended.
        leave: called when the outcome is done.
        work: what `run` does; a hook in another process may have begun already, and is waited for.
    """

    def __init__(
        self,
        plugin: str,
        hook: str,
        call: Call,
        seconds: float,
        work: Callable[[], Any],
        done: Callable[[], None],
        strays: Strays,
        subject: CallSubject = CallSubject(),  # noqa: B008 - frozen
    ) -> None:
        self.name = f"{plugin}:{hook}:{call.key}"[:120]
        self.plugin = plugin
        self.hook = hook
        self.call = call
        self.key = call.key
        self.seconds = seconds
        self.subject = subject
        self.admit: Callable[[CallSubject], None] = lambda _: None
        self.inside: dict[str, Entered] = {}
        self.loop = loop_of_caller()
        self.outcome: asyncio.Future[Any] = self.loop.create_future()
        self.leave: Callable[[], None] = lambda: None
        self._strays = strays
        self.work = work
        self._done = done
        self._context = copy_context()
        self._begun = time.monotonic()
        self._ended: tuple[Any, PluginError | None] = None, None

    @property
    def age(self) -> float:
        """Seconds since it began; the request may have waited before, or have had other hooks called."""
        return time.monotonic() - self._begun

    def begin(self, start: "Callable[[HookCall], None] | None") -> None:
        """Have `run` called by `start`, or in a new daemonic thread: a hanging hook must not keep the process alive.

        If no thread can be started, the call ends here and its key is free again.
        """
        try:
            if start is not None:
                start(self)
            else:
                threading.Thread(target=self._context.run, args=(self.run,), name=self.name, daemon=True).start()
        except RuntimeError as error:
            self._done()
            text = f"the daemon cannot start another thread ({error}); raise its TasksMax, or call less at once"
            self.loop.call_soon(self._resolve, None, TryAgain(text))

    async def run_in(self, task: ThreadTask) -> Any:
        """Run the hook in the thread of a task, whose coroutine calls this, and return its answer.

        Raises:
            TimeoutError: it takes longer than it may.
            PluginError: what it raised.
        """
        await task.away(lambda: self._context.run(self._run_named), lambda: self._resolve(*self._ended), self.seconds)
        return self.outcome.result()

    def run(self) -> tuple[Any, PluginError | None]:
        """Run the hook in this thread, which has the name of the call meanwhile; return its answer or its error."""
        self._run_named()
        with suppress(RuntimeError):  # the loop is closed: the daemon is ending and nobody waits
            self.loop.call_soon_threadsafe(self._resolve, *self._ended)
        return self._ended

    def _run_named(self) -> None:
        thread = threading.current_thread()
        before, thread.name = thread.name, self.name
        self._ended = self._worked()
        thread.name = before

    def finish(self, work: Callable[[], Any], *, at_once: bool) -> None:
        """End a call that runs elsewhere with what `work` returns or raises: on the loop, or in a new thread."""
        self.work = work
        if at_once:
            self._resolve(*self._worked())
        else:
            self.begin(None)

    def _worked(self) -> tuple[Any, PluginError | None]:
        """Do the work, and return its answer or its error."""
        current, outside = CURRENT.set(self.call), INSIDE.set(self)
        try:
            try:
                return self.work(), None
            finally:
                self._done()
        except PluginError as raised:
            return None, bounded(raised)
        except BaseException as raised:
            return None, self._strays.told(self.plugin, self.hook, self.call, raised)
        finally:
            INSIDE.reset(outside)
            CURRENT.reset(current)

    def _resolve(self, answer: Any, error: PluginError | None) -> None:
        if error is None:
            self.outcome.set_result(answer)
        else:
            self.outcome.set_exception(error)
        self.leave()


INSIDE: Final[ContextVar[HookCall | None]] = ContextVar("nodeplug_inside", default=None)
"""The call whose hook runs in this thread."""


@contextmanager
def working_on(subject: CallSubject) -> Iterator[None]:
    """Change the subject of this thread's call for a `with` block, such as to the network of a delegate.

    Raises:
        TryAgain: too many calls for that hang.
    """
    call = INSIDE.get()
    if call is None:
        yield
        return
    call.admit(subject)
    before, call.subject = call.subject, subject
    try:
        yield
    finally:
        call.subject = before


def time_left() -> float:
    """Return how many seconds the call of this thread has until its caller is answered; infinite outside of a call."""
    call = INSIDE.get()
    return math.inf if call is None else max(0.0, call.seconds - call.age)
