"""Work that outlives its answer: hooks and host steps whose deadline passes are answered, and still finished.

Owns: one composition of hooks and host steps as a task of its own, the early answer when a step is overdue, and one
composition at a time per target and per volume.
Refuses: to abandon a half-made mount. FlexVolume's callers have no deadline of their own and repeat a failed call, so a
hook that ends late is taken as its outcome says: completed, or rolled back. A caller that goes away changes nothing.

Host steps (mount, unmount, reading records) run in fresh daemon threads: an unmount that hangs on a dead server must
not use up a shared pool, nor keep the process alive.
"""

import asyncio
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from nodeplug.contract.errors import DeadlineExceeded, InvalidRequest, NotSupported, PluginError, TryAgain
from nodeplug.contract.values import Secrets
from nodeplug.hosting.call import Call
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.volumes.ledger import Target, Volume
from nodeplug.volumes.masking import Known, redact

LOG: Final = logging.getLogger(__name__)
HOST_DEADLINE: Final = 120.0
"""Seconds after which a host step is answered as overdue."""
ROOM_DEADLINE: Final = 300.0
"""Seconds that a call waits for an earlier call about the same target or volume."""
NOBODY: Final = ""
"""The plugin of a route to a driver that nobody claims; its hooks are those that one may have had."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: Any = None
    error: BaseException | None = None

    def get(self) -> Any:
        if self.error is None:
            return self.value
        if isinstance(self.error, PluginError):
            raise self.error
        raise PluginError(f"{type(self.error).__name__}: {self.error}") from self.error


def _caught(function: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(function())
    except BaseException as error:
        return _Outcome(error=error)


def _masked(hook: str, plugin: str, error: BaseException, secrets: Secrets) -> PluginError:
    """Turn a stray exception into an error without secrets, logged with its traceback.

    Many an exception carries what it was about: a failed subprocess.run, its whole argv. Where it came from is told by
    lines of code alone, and what led to it (`__cause__`) is left out: it would bring its text along.
    """
    text = redact("".join(traceback.format_exception_only(error)).strip(), secrets)
    masked = PluginError(f"{hook} of plugin {plugin!r} raised {text}; the daemon's log has the traceback")
    place = (PluginError, masked, error.__traceback__)
    LOG.error("%s of plugin %s raised %s", hook, plugin, type(error).__name__, exc_info=place)
    return masked


def _tell(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[_Outcome]", outcome: _Outcome) -> None:
    with suppress(RuntimeError):  # the loop is closed: the daemon is ending and nobody waits
        loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(outcome))


def _in_thread(name: str, function: Callable[[], Any]) -> "asyncio.Future[_Outcome]":
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Outcome] = loop.create_future()
    context = copy_context()
    thread = threading.Thread(
        target=lambda: _tell(loop, future, context.run(_caught, function)), name=name[:120], daemon=True
    )
    thread.start()
    return future


@dataclass(slots=True)
class Work:
    """One request while its steps run.

    Attributes:
        runner: calls the hooks.
        route: the driver.
        call: the request; its key names what the hooks are about.
        early: the answer that was given before the work ended.
        known: what must not stand in an error.
    """

    runner: Runner
    route: Route
    call: Call
    early: "asyncio.Future[PluginError]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    abandoned: bool = False
    known: Known = field(default_factory=Known)

    def has(self, hook: str) -> bool:
        """Whether the driver implements a hook."""
        return hook in self.route.hooks

    @property
    def at_rest(self) -> bool:
        """Whether the driver's plugin does not run, so that none of its hooks can be called."""
        return not self.route.callers

    @property
    def is_unclaimed(self) -> bool:
        """Whether no plugin is loaded for the driver."""
        return self.route.plugin == NOBODY

    async def hook(self, name: str, **arguments: Any) -> Any:
        """Call a hook to its real end; the caller is answered early when the deadline passes first.

        Raises:
            InvalidRequest: the hook said NotSupported: kubelet would remember that for every volume of the driver,
                while a driver that has the hook can only mean this request.
            PluginError: see `Runner.call`.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[_Outcome] = loop.create_future()
        secrets = self.known.of(self.route.claim.name)

        def observed(own: Callable[..., Any]) -> Callable[..., Any]:
            def run(**values: Any) -> Any:
                outcome = _caught(lambda: own(**values))
                if secrets and outcome.error is not None and not isinstance(outcome.error, PluginError):
                    outcome = _Outcome(error=_masked(name, self.route.plugin, outcome.error, secrets))
                _tell(loop, ended, outcome)
                if outcome.error is not None:
                    raise outcome.error
                return outcome.value

            return run

        try:
            return await self.runner.call(self.route, name, self.call, arguments, around=observed)
        except NotSupported as error:
            raise InvalidRequest(error.message, details=error.details) from error
        except DeadlineExceeded as error:
            if ended.done():  # the plugin raised it itself
                raise
            self._answer(error)
            return (await ended).get()

    async def host(self, function: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
        """Run a host step in a thread of its own, to its end.

        Raises:
            PluginError: what the step raised.
        """
        what = getattr(function, "__name__", "step")
        future = _in_thread(f"flex:{what}:{self.call.key}", lambda: function(*arguments, **named))
        done, _ = await asyncio.wait({future}, timeout=HOST_DEADLINE)
        if not done:
            self._answer(
                DeadlineExceeded(f"{what} for {self.call.key!r} did not end within {HOST_DEADLINE:g} s; it still runs")
            )
        answer: _T = (await future).get()
        return answer

    def _answer(self, error: PluginError) -> None:
        if not self.early.done():
            self.early.set_result(error)


@dataclass(slots=True)
class Workshop:
    """The work in progress. Used from the event loop alone, hence no locks.

    Attributes:
        runner: calls the hooks.
        left: by driver, what could not be undone wholly without its plugin: volumes that no pod uses, and targets that
            the host has unmounted.
        known: the secrets of what is mounted.
    """

    runner: Runner
    left: dict[str, set[Volume | Target]] = field(default_factory=dict)
    known: Known = field(default_factory=Known)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _rooms: "dict[tuple[str, ...], asyncio.Future[None]]" = field(default_factory=dict)

    async def run(self, route: Route, call: Call, steps: Callable[[Work], Coroutine[Any, Any, None]]) -> None:
        """Run the steps in a task of their own; return when they end or when an early answer is given.

        Raises:
            DeadlineExceeded: a step is overdue; the work goes on.
            PluginError: what the steps raised.
        """
        work = Work(self.runner, route, call, known=self.known)
        task = asyncio.get_running_loop().create_task(steps(work), name=f"flex:{call.verb}:{call.id}")
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(work, ended))
        try:
            ends: set[asyncio.Future[Any]] = {task, work.early}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            work.abandoned = True
            raise
        if task.done():
            return task.result()
        work.abandoned = True
        raise work.early.result()

    def leave(self, remainder: Volume | Target) -> None:
        """Keep something for the time when its driver's plugin runs."""
        volume = remainder.volume if isinstance(remainder, Target) else remainder
        self.left.setdefault(volume.driver, set()).add(remainder)

    async def host(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run a host step that belongs to no request."""
        answer: _T = (await _in_thread("flex:recover", lambda: function(*arguments))).get()
        return answer

    def _ended(self, work: Work, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not work.abandoned or task.cancelled():
            return
        error = task.exception()
        call = work.call
        if error is None:
            LOG.warning("%s of %s ended well, after its answer (request %s)", call.verb, call.claim, call.id)
        else:
            kind = type(error).__name__
            LOG.warning("%s of %s ended with %s, after its answer (request %s)", call.verb, call.claim, kind, call.id)

    @asynccontextmanager
    async def room(self, *key: str) -> AsyncIterator[None]:
        """Wait until nobody else works on a key, and keep others out. Rooms are entered target first, volume second.

        Raises:
            TryAgain: an earlier call does not end.
        """
        try:
            async with asyncio.timeout(ROOM_DEADLINE):
                while (earlier := self._rooms.get(key)) is not None:
                    await asyncio.wait([earlier])
        except TimeoutError:
            raise TryAgain(
                f"an earlier call for {' '.join(key)} is still running after {ROOM_DEADLINE:g} s; "
                "see `nodeplug status` for it"
            ) from None
        mine = self._rooms[key] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._rooms[key]
            mine.set_result(None)
