"""The only caller of plugin code.

Owns: a thread for each call, admission (a call waits until its slot admits it, and goes to the claim's owner at that
time), the answer in time, the check of what a hook returns, and turning stray exceptions into a PluginError.
Refuses: pools (a thread in D state or in a foreign namespace must never be reused), plugin code on the event loop,
wire formats, and deciding who may be called (the slot's).

The thread is new, or that of the request (`nodeplug.process.turns`), which has called nobody before. This makes
namespace hygiene structural: it enters the caller's network namespace and ends with the call.
A call past its deadline is answered DeadlineExceeded. Its thread is left behind, visible by name; until it really ends,
its key stays busy and its descriptors stay open, so that their numbers cannot be reused under it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from nodeplug.contract.errors import DeadlineExceeded, PluginError, TryAgain
from nodeplug.contract.netns import Netns
from nodeplug.hosting import remote
from nodeplug.hosting.call import Call, addressed
from nodeplug.hosting.hook_call import INSIDE, HookCall, time_left
from nodeplug.hosting.in_flight import InFlight
from nodeplug.hosting.overdue import BEGINNINGS, subject_of
from nodeplug.hosting.slot import Instance, Route
from nodeplug.hosting.strays import Strays
from nodeplug.loading.answers import check_answer
from nodeplug.process.descriptor_reserve import DescriptorReserve
from nodeplug.process.few_at_once import FewAtOnce
from nodeplug.process.turns import on_the_loop, stepping

ROUTINES: Final = frozenset({"start", "stop", "health", "inspect", "metrics", "cluster_report", "device_list"})
"""Hooks that the daemon calls by itself, of every plugin at once."""
AT_ONCE: Final = 8
"""Calls of these at a time: with hundreds, each in a thread, no caller has a turn."""
_PATIENCE: Final = 1.0
"""Seconds after which a running one no longer counts against the limit."""
Hook = Callable[..., Any]
Way = Route | Instance
"""To the owner of a claim at the time of admission; or to one instance, for its own life."""


@dataclass(slots=True)
class Runner:
    """Calls hooks. Used only from the event loop, hence no locks.

    Attributes:
        finished: called once per call when its caller is answered, with its error if any. For requests of the exec
            protocols their front does it: one request may take several hooks, or none.
        strays: logs exceptions that are not a PluginError.
        in_flight: has the request of each hook that is called, until the hook has ended.
        reserve: while it is used, what begins something is refused.
    """

    finished: Callable[[Call, PluginError | None], None] = lambda _call, _error: None
    strays: Strays = field(default_factory=Strays)
    in_flight: InFlight = field(default_factory=InFlight)
    reserve: DescriptorReserve = field(default_factory=DescriptorReserve)
    _few: FewAtOnce = field(default_factory=lambda: FewAtOnce(AT_ONCE, _PATIENCE))

    @contextmanager
    def visiting(self, route: Route) -> Iterator[Route]:
        """Enter another plugin in the thread of a call, as delegation does; wait while that plugin is being exchanged.

        An exchange does not stop the plugin before the `with` block ends. A plugin that the thread is already inside is
        entered at once, and in the same instance: its exchange waits for this very call.

        Raises:
            TryAgain: the plugin is not ready within the deadline of the call.
            NotFound: nobody has the claim any more.
        """
        visitor = INSIDE.get()
        if visitor is None:
            yield route
            return
        known = visitor.inside.get(route.slot.name)
        if known is not None:
            yield replace(route, hooks=known.hooks, callers=known.callers)
            return
        arrival = self._arrive(route, time_left())
        entered, left = asyncio.run_coroutine_threadsafe(arrival, visitor.loop).result()
        visitor.inside[entered.slot.name] = entered
        try:
            yield entered
        finally:
            del visitor.inside[entered.slot.name]
            with suppress(RuntimeError):  # the loop is closed: the daemon is ending
                visitor.loop.call_soon_threadsafe(left.set_result, None)

    async def _arrive(self, route: Route, seconds: float) -> "tuple[Route, asyncio.Future[None]]":
        entered = await self._admitted(route, None, seconds)
        assert isinstance(entered, Route)  # noqa: S101 - what a route leads to now is one
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entered.slot.visits.add(left)
        left.add_done_callback(entered.slot.visits.discard)
        return entered, left

    async def call(
        self,
        route: Way,
        hook: str,
        call: Call,
        arguments: Mapping[str, Any],
        *,
        enter: Netns | None = None,
        done: Callable[[], None] = lambda: None,
        around: Callable[[Hook], Hook] | None = None,
        start: Callable[[HookCall], None] | None = None,
    ) -> Any:
        """Call one hook in a thread, wait for its answer, and check it against the contract.

        Args:
            route: the plugin that owns the claim; after a reload the call goes to the new owner.
            hook: a hook that `route.hooks` names.
            call: the request; `call.key` serialises calls of one plugin.
            arguments: the hook's arguments by name.
            enter: the network namespace in which the thread starts.
            done: closes what the call owns: called once, in the thread, when the hook has ended or is not reached.
            around: makes what is called instead of the hook, from the hook of the instance that gets the call; in its
                thread.
            start: has `run` called in a thread where nothing else runs meanwhile; None: in that of the request if it
                has one, else in a new one, if one is needed.

        Raises:
            DeadlineExceeded: the hook did not end in time; it is still running.
            TryAgain: the plugin is quarantined, or at the deadline it is still being exchanged or an earlier call for
                the key is still running.
            PluginError: what the plugin raised, or a wrapping of anything else that it raised.
        """

        def work(route: Way) -> Any:
            if enter is not None:
                enter.enter()
            asked = addressed(arguments, call, route.slot.deadline(hook))
            called = route.callers[hook] if around is None else around(route.callers[hook])
            return check_answer(route.slot.name, hook, called(**asked))

        def elsewhere(route: Way, begun: HookCall) -> bool:
            worker = route.elsewhere(hook)
            if worker is None:
                return False
            if around is not None:
                worker.announce()  # it takes as long to wake as its thread here to start and do what comes before
                return False
            asked = addressed(arguments, call, begun.seconds)
            return remote.begin(worker, hook, asked.get("request"), begun, waited_for=start is not None)

        try:
            own = hook in ROUTINES and stepping() is None  # STATUS asks for health, too, in the thread of its call
            async with self._few.place() if own else nullcontext():
                answer = await self._call(route, hook, call, arguments.get("request"), work, elsewhere, done, start)
        except PluginError as error:
            if not call.whole:
                self.finished(call, error)
            raise
        if not call.whole:
            self.finished(call, None)
        return answer

    async def load(self, instance: Instance, work: Callable[[], Any]) -> Any:
        """Run the code of a plugin that is not loaded yet: its module, its constructor, its claims.

        It raises what `call` raises; TryAgain while an earlier load of the same plugin is still running.
        """
        call = Call("load", f"plugin:{instance.name}", key=f"loading of {instance.name}")
        seconds = instance.slot.deadline("claims")
        await self._admitted(instance, call.key, seconds)
        begun = HookCall(instance.name, "load", call, seconds, work, lambda: None, self.strays)
        return await self._run(instance, begun)

    async def _call(
        self,
        route: Way,
        hook: str,
        call: Call,
        request: Any,
        work: Callable[[Way], Any],
        elsewhere: Callable[[Way, HookCall], bool],
        done: Callable[[], None],
        start: Callable[[HookCall], None] | None,
    ) -> Any:
        try:
            if (task := stepping()) is not None and task.used_up:
                await on_the_loop()
            if self.reserve.used and hook in BEGINNINGS:
                raise TryAgain(f"the daemon has no descriptors for more: {self.reserve.used}")
            subject = subject_of(request)
            if route.slot.overdue:
                route.slot.check_quarantine(hook, subject)
            admitted = await self._admitted(route, call.key, route.slot.deadline(hook))
            if hook not in admitted.hooks:
                raise TryAgain(f"plugin {admitted.slot.name!r} has no {hook} any more: it was reloaded; ask again")
        except BaseException:
            done()
            raise
        name, seconds = admitted.slot.name, admitted.slot.deadline(hook)

        def ended() -> None:
            self.in_flight.leave(name, call.id, request)
            done()

        self.in_flight.enter(name, call.id, request)
        begun = HookCall(name, hook, call, seconds, lambda: work(admitted), ended, self.strays, subject)
        begun.admit = partial(admitted.slot.check_quarantine, hook)
        return await self._run(admitted, begun, start, elsewhere)

    async def _admitted(self, route: Way, key: str | None, seconds: float) -> Way:
        """Wait until the slot admits a call and no other works on the key; return the route as it is then.

        The caller must use the route before it awaits anything: what was checked holds only until then.
        """
        what = ""
        now = route.now()
        if now.slot.obstacle(key, gated=isinstance(now, Route)) is None:
            return now
        await on_the_loop()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    route = route.now()
                    obstacle = route.slot.obstacle(key, gated=isinstance(route, Route))
                    if obstacle is None:
                        return route
                    what, gone = obstacle
                    await asyncio.wait([gone])
        except TimeoutError:
            raise TryAgain(f"{what} after {seconds:g} s") from None

    async def _run(
        self,
        route: Way,
        begun: HookCall,
        start: Callable[[HookCall], None] | None = None,
        elsewhere: Callable[[Way, HookCall], bool] = lambda _route, _begun: False,
    ) -> Any:
        begun.inside[begun.plugin] = route
        route.slot.let_in(begun)
        task = stepping()
        if task is None and not elsewhere(route, begun):
            begun.begin(start)
        elif task is not None and (worker := route.elsewhere(begun.hook)) is not None:
            worker.announce()  # its thread is here already, and talks to it
        # shield: neither the deadline nor a cancelled caller may mark the hook as ended while its thread runs.
        # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the answer.
        try:
            if task is not None:
                return await begun.run_in(task)
            async with asyncio.timeout(begun.seconds):
                return await asyncio.shield(begun.outcome)
        except TimeoutError:
            route.slot.leave_behind(begun)
            raise DeadlineExceeded(
                f"{begun.hook} of plugin {begun.plugin!r} did not end within {begun.seconds:g} s "
                f"(request {begun.call.id}); it is still running"
            ) from None
        except asyncio.CancelledError:
            route.slot.leave_behind(begun)
            raise


def invoke(route: Way, hook: str, arguments: Mapping[str, Any]) -> Any:
    """Call a hook in the calling thread, inside another hook's call, and check its answer."""
    return check_answer(route.slot.name, hook, route.callers[hook](**arguments))


def close_all(namespaces: Iterable[Netns]) -> None:
    """Close the namespaces that a call owned."""
    for namespace in namespaces:
        namespace.close()
