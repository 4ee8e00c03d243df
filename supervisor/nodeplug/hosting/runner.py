"""The only caller of plugin code.

Owns: one fresh daemon thread per call, the deadline, one call at a time per key, the wait while a plugin is being
exchanged, quarantine of a plugin whose calls do not come back, the check of what a hook returns, and the turn of every
stray exception into a PluginError.
Refuses: pools (a thread in D state or in a foreign namespace must never be reused), plugin code on the event loop,
wire formats.

A fresh thread makes namespace hygiene structural: it starts in the caller's network namespace and ends with the call.
A call that outlasts its deadline is answered DeadlineExceeded; its thread is left behind, visible by name, its key
stays busy and its descriptors stay open until it really ends, so their numbers cannot be reused under it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nodeplug.contract.errors import DeadlineExceeded, PluginError, TryAgain
from nodeplug.contract.hookspecs import ANSWERS
from nodeplug.contract.netns import Netns
from nodeplug.hosting.call import Call
from nodeplug.hosting.hook_call import INSIDE, HookCall, in_fresh_thread
from nodeplug.hosting.registry import PluginRoute, Route
from nodeplug.hosting.strays import Strays

LOG: Final = logging.getLogger(__name__)
OVERDUE_LIMIT: Final = 4
"""How many overdue calls quarantine a plugin; the first that returns sets it free."""
ASIDES: Final = frozenset({"inspect", "metrics"})
"""Hooks whose overdue calls quarantine nothing: each has one key, and no caller of a plugin needs them."""
DEFAULT_DEADLINES: Final[Mapping[str, float]] = {
    "claims": 60,  # loading as a whole: the import, the constructor and claims()
    "prepare": 60,
    "start": 60,
    "stop": 10,
    "health": 5,
    "inspect": 5,
    "metrics": 5,
    "device_list": 30,
    "device_allocate": 10,
    "device_prefer": 5,
    "device_prestart": 25,
    "device_released": 30,
    "cni_add": 60,
    "cni_del": 60,
    "cni_check": 30,
    "cni_gc": 60,
    "cni_status": 5,
    "volume_wait_attached": 600,
}
"""Seconds per hook; every other hook has 120. A plugin's section may say otherwise."""
_OTHER_DEADLINE: Final = 120.0
Hook = Callable[..., Any]


def check_answer(route: PluginRoute, hook: str, answer: Any) -> Any:
    """Return the answer of a hook if it has a type that the contract allows.

    Raises:
        PluginError: it has not; an ADD without a result must become error 999, not an empty stdout.
    """
    allowed = ANSWERS[hook]
    names = " or ".join("a list or tuple" if kind is Sequence else kind.__name__ for kind in allowed.types)
    if not isinstance(answer, allowed.types) or (isinstance(answer, str) and str not in allowed.types):
        raise PluginError(f"plugin {route.plugin!r} returned {type(answer).__name__} from {hook}; {names} is due")
    if allowed.items is not None and answer is not None:
        for item in answer:
            if not isinstance(item, allowed.items):
                raise PluginError(
                    f"plugin {route.plugin!r} returned a {type(item).__name__} among the items of {hook}; "
                    f"{allowed.items.__name__} is due"
                )
    return answer


@dataclass(slots=True)
class Overdue:
    """A call whose answer was given without it."""

    call: Call
    plugin: str
    hook: str
    thread: str


@dataclass(slots=True)
class Runner:
    """Calls hooks. Used from the event loop alone, hence no locks.

    Attributes:
        deadlines: seconds by plugin and hook, where they differ from the defaults.
        finished: told of each call once, when its caller is answered, with its error if it has one. For requests of
            the exec protocols their front does the telling: one request may take several hooks, or none.
        in_flight: calls whose hook runs, by request id.
        overdue: those of them that were answered without their hook.
        strays: tells of exceptions that are no PluginError.
        renew: the way to a claim as it is now; a route that somebody holds may be older than a reload.
    """

    deadlines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    finished: Callable[[Call, PluginError | None], None] = lambda _call, _error: None
    in_flight: dict[str, Call] = field(default_factory=dict)
    overdue: dict[str, Overdue] = field(default_factory=dict)
    strays: Strays = field(default_factory=Strays)
    renew: Callable[[PluginRoute], PluginRoute] = lambda route: route
    _busy: dict[tuple[str, str], asyncio.Future[Any]] = field(default_factory=dict)
    _held: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    _visits: dict[str, set[asyncio.Future[None]]] = field(default_factory=dict)

    def deadline(self, plugin: str, hook: str) -> float:
        """Return how many seconds a hook of a plugin may take."""
        own = self.deadlines.get(plugin, {}).get(hook)
        return own if own is not None else DEFAULT_DEADLINES.get(hook, _OTHER_DEADLINE)

    def quarantined(self, plugin: str) -> bool:
        """Whether so many calls of a plugin hang that new ones are refused."""
        hanging = (entry for entry in self.overdue.values() if entry.plugin == plugin and entry.hook not in ASIDES)
        return sum(1 for _ in hanging) >= OVERDUE_LIMIT

    def hold(self, plugin: str) -> None:
        """Let calls of a plugin's claims wait, within their deadlines, until `release`."""
        self._held.setdefault(plugin, asyncio.get_running_loop().create_future())

    def release(self, plugin: str) -> None:
        """Let the calls that wait for a plugin go on; succeed when it is not held."""
        held = self._held.pop(plugin, None)
        if held is not None and not held.done():
            held.set_result(None)

    def working(self, plugin: str) -> set["asyncio.Future[Any]"]:
        """Return the calls that are inside a plugin now and may still end in time; each is done when it has ended."""
        lost = {(entry.plugin, entry.call.key) for entry in self.overdue.values()}
        calls = {done for key, done in self._busy.items() if key[0] == plugin and key not in lost}
        return calls | self._visits.get(plugin, set())

    @contextmanager
    def visiting(self, route: Route) -> Iterator[Route]:
        """Enter another plugin in the thread of a call, as delegation does; waits while that plugin is being exchanged.

        The plugin is not stopped for an exchange before the `with` block ends. A plugin that the thread is in already
        is entered at once, and in the same instance: its exchange waits for this very call.

        Raises:
            TryAgain: the plugin is not ready within the deadline of the call.
            NotFound: nobody has the claim any more.
        """
        thread = INSIDE.get()
        if thread is None:
            yield route
            return
        known = thread.inside.get(route.plugin)
        if known is not None:
            yield replace(route, hooks=known.hooks, callers=known.callers)
            return
        arrival = self._arrive(route, self.deadline(thread.plugin, thread.hook))
        entered, left = asyncio.run_coroutine_threadsafe(arrival, thread.loop).result()
        thread.inside[entered.plugin] = entered
        try:
            yield entered
        finally:
            del thread.inside[entered.plugin]
            with suppress(RuntimeError):  # the loop is closed: the daemon is ending
                thread.loop.call_soon_threadsafe(left.set_result, None)

    async def _arrive(self, route: Route, seconds: float) -> "tuple[Route, asyncio.Future[None]]":
        entered = await self._admitted(route, None, seconds)
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        visits = self._visits.setdefault(entered.plugin, set())
        visits.add(left)
        left.add_done_callback(visits.discard)
        return replace(route, plugin=entered.plugin, hooks=entered.hooks, callers=entered.callers), left

    async def call(
        self,
        route: PluginRoute,
        hook: str,
        call: Call,
        arguments: Mapping[str, Any],
        *,
        enter: Netns | None = None,
        done: Callable[[], None] = lambda: None,
        around: Callable[[Hook], Hook] = lambda hook: hook,
        start: Callable[[HookCall], None] = in_fresh_thread,
    ) -> Any:
        """Call one hook in a thread of its own and wait for its answer.

        Args:
            route: the plugin that owns the claim; after a reload the call goes to the one that owns it then.
            hook: a hook that `route.hooks` names.
            call: the request that is being served; `call.key` serialises calls of one plugin.
            arguments: the hook's arguments by name.
            enter: the network namespace in which the thread starts.
            done: called once, in the thread, when the hook has really ended (closes what the call owns); also called
                when the hook is never reached.
            around: what is called instead of the hook, made from the hook of the instance that gets the call.
            start: sees to it that the call runs, in a thread where nothing else runs meanwhile.

        Returns:
            What the hook returned, checked against the contract.

        Raises:
            DeadlineExceeded: the hook did not end in time; it is still running.
            TryAgain: the plugin is quarantined, or at the deadline an earlier call for the key is still running or the
                plugin still being exchanged.
            PluginError: what the plugin raised, or a wrapping of anything else that it raised.
        """

        def work(route: PluginRoute) -> Any:
            if enter is not None:
                enter.enter()
            return check_answer(route, hook, around(route.callers[hook])(**arguments))

        try:
            answer = await self._call(route, hook, call, work, done, start)
        except PluginError as error:
            if not call.whole:
                self.finished(call, error)
            raise
        if not call.whole:
            self.finished(call, None)
        return answer

    async def load(self, plugin: str, work: Callable[[], Any]) -> Any:
        """Run the code of a plugin that is not loaded yet: its module, its constructor, its claims.

        Raises:
            DeadlineExceeded: it did not end in time; it is still running.
            TryAgain: an earlier load of the same plugin is still running.
            PluginError: what it raised, or a wrapping of anything else that it raised.
        """
        call = Call("load", f"plugin:{plugin}", key=f"loading of {plugin}")
        seconds = self.deadline(plugin, "claims")
        itself = PluginRoute(plugin, frozenset(), {})
        await self._admitted(itself, call.key, seconds)
        return await self._run(HookCall(itself, "load", call, work, lambda: None, self.strays), seconds)

    async def _call(
        self,
        route: PluginRoute,
        hook: str,
        call: Call,
        work: Callable[[PluginRoute], Any],
        done: Callable[[], None],
        start: Callable[[HookCall], None],
    ) -> Any:
        try:
            self._refuse_quarantined(route.plugin)
            admitted = await self._admitted(route, call.key, self.deadline(route.plugin, hook))
            if hook not in admitted.hooks:
                raise TryAgain(f"plugin {admitted.plugin!r} has no {hook} since it was reloaded; ask again")
        except BaseException:
            done()
            raise
        thread = HookCall(admitted, hook, call, lambda: work(admitted), done, self.strays)
        return await self._run(thread, self.deadline(admitted.plugin, hook), start)

    async def _admitted(self, route: PluginRoute, key: str | None, seconds: float) -> PluginRoute:
        """Wait until the plugin is not held and nobody else works on the key; return the way as it is then.

        The caller must not wait before it uses the answer: what was looked at last holds until then.
        """
        what = ""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    route = self.renew(route)
                    held = self._held.get(route.plugin) if isinstance(route, Route) else None
                    earlier = self._busy.get((route.plugin, key)) if key is not None else None
                    if held is not None:
                        what = f"plugin {route.plugin!r} is being reloaded and does not run"
                        await asyncio.wait([held])
                    elif earlier is not None:
                        what = f"an earlier call for {key!r} of plugin {route.plugin!r} is still running"
                        await asyncio.wait([earlier])
                    else:
                        return route
        except TimeoutError:
            raise TryAgain(f"{what} after {seconds:g} s") from None

    def _refuse_quarantined(self, plugin: str) -> None:
        if self.quarantined(plugin):
            raise TryAgain(
                f"plugin {plugin!r} is quarantined: {OVERDUE_LIMIT} of its calls have not come back; "
                "see `nodeplug status` for the calls, and restart the daemon if they never end"
            )

    async def _run(self, thread: HookCall, seconds: float, start: Callable[[HookCall], None] = in_fresh_thread) -> Any:
        self.in_flight[thread.call.id] = thread.call
        self._busy[thread.key] = thread.outcome
        thread.outcome.add_done_callback(lambda _: self._ended(thread))
        thread.begin(start)
        # shield: neither the deadline nor a cancelled caller may mark the hook as ended while its thread runs.
        # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the answer.
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(thread.outcome)
        except TimeoutError:
            self._leave_behind(thread)
            raise DeadlineExceeded(
                f"{thread.hook} of plugin {thread.plugin!r} did not end within {seconds:g} s "
                f"(request {thread.call.id}); it is still running"
            ) from None
        except asyncio.CancelledError:
            self._leave_behind(thread)
            raise

    def _leave_behind(self, thread: HookCall) -> None:
        if not thread.outcome.done():
            plugin = thread.plugin
            self.overdue[thread.call.id] = Overdue(thread.call, plugin, thread.hook, thread.name)
            LOG.warning("%s of plugin %s is overdue in thread %s", thread.hook, plugin, thread.name)

    def _ended(self, thread: HookCall) -> None:
        call = thread.call
        self.in_flight.pop(call.id, None)
        del self._busy[thread.key]
        if self.overdue.pop(call.id, None) is not None:
            LOG.warning("the overdue %s of plugin %s ended after %.1f s", thread.hook, thread.plugin, call.age)
        if not thread.outcome.cancelled():
            thread.outcome.exception()  # seen: an overdue call's error has nobody left to tell but the log


def invoke(route: PluginRoute, hook: str, arguments: Mapping[str, Any]) -> Any:
    """Call a hook in the calling thread and check its answer: for a hook that runs inside another one's call.

    Raises:
        PluginError: see `Runner.call`.
    """
    return check_answer(route, hook, route.callers[hook](**arguments))


def close_all(namespaces: Iterable[Netns]) -> None:
    """Close the namespaces that a call owned."""
    for namespace in namespaces:
        namespace.close()
