"""The life of every configured plugin: load, start, retry, health, stop, and reload by difference.

Owns: which `PluginState` stands for a `[plugins.<name>]` section, and the steps that lead from one state to the next.
Refuses: to touch a plugin whose section did not change, and to let one plugin's failure reach another. A start that
raises disables this plugin alone and is tried again, each time later.

A plugin whose section changed is exchanged: the new instance is constructed beside the one that runs. If that fails,
nothing else happens. Otherwise, in one step on the loop, every claim leads to its new owner and calls for it wait;
the calls that are inside the former instance end, then it is stopped, then the new one starts and the calls go on. If
its start fails, an instance with the former section is started instead.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nodeplug.config import PluginSection
from nodeplug.config.mistakes import Location, one_line, told
from nodeplug.contract.errors import PluginError, TryAgain
from nodeplug.contract.host import Host
from nodeplug.hosting import plugin_health
from nodeplug.hosting.call import Call
from nodeplug.hosting.claimants import Verdict
from nodeplug.hosting.discovery import PluginRefused, find
from nodeplug.hosting.dispatch import LIFE_CYCLE, callers
from nodeplug.hosting.loading import Difference, difference, prepare
from nodeplug.hosting.plugin_state import FIRST_RETRY, Load, PluginState
from nodeplug.hosting.registry import Loaded, Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.served_devices import NoDevices, ServedDevices
from nodeplug.process.waiting import until

LOG: Final = logging.getLogger(__name__)
LAST_RETRY: Final = 60.0
LOAD_PATIENCE: Final = 3.0
"""Seconds after which plugins start without waiting for one that still loads."""
CALL_PATIENCE: Final = 30.0
"""Seconds that calls inside a plugin get to end before it is stopped by a reload; those for its successor wait."""
LAST_PATIENCE: Final = 10.0
"""Seconds that the end of the daemon waits for plugins that a reload is just stopping."""


@dataclass(slots=True)
class Lifecycle:
    """All configured plugins. Used from the event loop alone.

    Attributes:
        devices: what serves the plugins' resources.
        tell: writes a mistake in a section with its file and line.
    """

    registry: Registry
    runner: Runner
    make_host: Callable[[str], Host]
    devices: ServedDevices = field(default_factory=NoDevices)
    states: dict[str, PluginState] = field(default_factory=dict)
    tell: Callable[[Location, str], str] = told
    _retries: set["asyncio.Task[None]"] = field(default_factory=set)
    _retiring: set["asyncio.Task[None]"] = field(default_factory=set)
    _ending: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.runner.renew = self.registry.renewed

    async def load_all(self, sections: Mapping[str, PluginSection]) -> None:
        """Load sections without starting them: to look at a configuration, not to serve it."""
        self.runner.deadlines = {name: section.deadline for name, section in sections.items()}
        self.registry.order = tuple(sections)
        self.states.update({name: PluginState(name, section) for name, section in sections.items()})
        loads = [asyncio.create_task(self._load(state)) for state in self.states.values()]
        for state, result in zip(
            self.states.values(), await asyncio.gather(*loads, return_exceptions=True), strict=True
        ):
            try:
                if isinstance(result, BaseException):
                    raise result
                state.loaded = self.registry.adopt(result)
                state.state = "starting"
            except PluginError as error:
                self._refuse(state, error)

    async def apply(self, sections: Mapping[str, PluginSection]) -> Difference:
        """Make the loaded plugins match the sections; unchanged ones are not touched.

        Returns:
            What changed.
        """
        wanted = {name: section for name, section in sections.items() if section.enabled}
        self.runner.deadlines = {name: section.deadline for name, section in wanted.items()}
        self.registry.order = tuple(wanted)
        changes = difference({name: state.section for name, state in self.states.items()}, wanted)
        renewed = {*changes.added, *changes.changed}
        for name in wanted.keys() & self.states.keys() - renewed:
            self.states[name].rejected = ""  # the section is the one that is in force, again
            if self.states[name].state == "refused":
                renewed.add(name)  # the owner of a doubly claimed name may be gone now
        await self._bring_up([PluginState(name, wanted[name]) for name in wanted if name in renewed], changes.removed)
        return changes

    async def retry_failed(self) -> None:
        """Begin to start again every failed plugin whose time has come; one that hangs holds up no other."""
        for state in list(self.states.values()):
            if state.state == "failed" and state.retry_at <= time.monotonic():
                state.state = "starting"
                again = self._bring_up([state]) if state.loaded is None else self._start(state)
                retry = asyncio.create_task(again, name=f"retry {state.name}")
                self._retries.add(retry)
                retry.add_done_callback(self._retries.discard)

    @property
    def refused(self) -> list[str]:
        """The sections that are not in force, since their plugins cannot be loaded or started as things are."""
        return [name for name, state in self.states.items() if state.state == "refused" or state.rejected]

    async def check_health(self) -> Mapping[str, str]:
        """Ask every running plugin for its health; return what is wrong, by section name."""
        return await plugin_health.check(self.states.values(), self.runner)

    async def stop_all(self, grace: float = 5.0) -> None:
        """Stop every plugin, once the calls inside have had `grace` seconds; nobody waits for one that is starting."""
        self._ending.set()
        self.registry.ending = True
        await asyncio.gather(*(self._end(name, grace) for name in list(self.states)))
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=LAST_PATIENCE)

    async def _bring_up(self, states: Sequence[PluginState], leaving: Collection[str] = ()) -> None:
        """Load and start, each plugin in its own time.

        Of two that claim one name the first in the configuration serves, also when it is the last to load: then the
        other is refused while it runs, and those that were refused because of that one get their chance.
        """
        for state in states:
            state.state = "starting"
            if self._former(state) is None:
                self.states[state.name] = state
                if not state.fault:  # a load that failed before may fail for ever
                    self.registry.loading.add(state.name)
        loads = [
            Load(state, asyncio.create_task(self._load_beside(state), name=f"load {state.name}")) for state in states
        ]
        if loads:
            await asyncio.wait([load.task for load in loads], timeout=LOAD_PATIENCE)
        prompt = [load for load in loads if load.task.done()]
        late = [load for load in loads if load not in prompt]
        stays = {load.state.name: self._awaited(load, leaving) for load in late}
        displaced = await asyncio.gather(
            self._exchange(prompt, set(leaving).difference(*stays.values())),
            *(self._bring_up_late(load, stays[load.state.name]) for load in late),
        )
        gone = set().union(*displaced)
        again = [PluginState(one.name, one.section) for one in self.states.values() if one.outdone_by in gone]
        if again:
            await self._bring_up(again)

    async def _bring_up_late(self, load: Load, leaving: Collection[str]) -> set[str]:
        await asyncio.wait({load.task})
        return await self._exchange([load], leaving)

    def _awaited(self, load: Load, leaving: Collection[str]) -> set[str]:
        """Return the plugins that serve on until one that is getting ready takes their claims over."""
        prepared = load.state.prepared
        return self._donors(prepared) & set(leaving) if prepared is not None else set()

    def _former(self, state: PluginState) -> PluginState | None:
        """Return the state that this one is to replace, if there is a plugin behind it."""
        present = self.states.get(state.name)
        return None if present is state or present is None or present.loaded is None else present

    async def _exchange(self, loads: Iterable[Load], leaving: Collection[str]) -> set[str]:
        """Let loaded plugins take the places of their predecessors, and others go; return who was displaced."""
        loads = list(loads)
        self.registry.loading.difference_update(load.state.name for load in loads)
        candidates = self._candidates(load for load in loads if load.state.name in self.states)
        verdict = self.registry.admissible([loaded for _, loaded in candidates.values()], leaving)
        accepted, leaving = verdict.accepted, {*leaving, *verdict.displaced}
        for name, reason in verdict.refused.items():
            candidates[name][0].outdone_by = verdict.owners[name]
            self._refuse(candidates[name][0], PluginRefused(reason))
        self._discard(load.state for load in loads if load.state.name not in {loaded.name for loaded in accepted})
        donors = {loaded.name: self._donors(loaded) for loaded in accepted}
        entering = {loaded.name: candidates[loaded.name][0] for loaded in accepted}
        old = {name: self.states.pop(name) for name in leaving if name in self.states}
        self._displace(verdict, {**old, **{name: state for name, (state, _) in candidates.items()}})
        old |= {name: former for name, state in entering.items() if (former := self._former(state)) is not None}
        inside = {name: self.runner.working(name) for name in old}
        for name in old:
            self.devices.hold(name)
            self.registry.disabled.pop(name, None)
        for loaded in accepted:
            self.states[loaded.name], entering[loaded.name].loaded = entering[loaded.name], loaded
            self._close(
                loaded.name, hold=any(old[name].state == "running" for name in donors[loaded.name] & old.keys())
            )
        # Nothing was awaited since the plugins were chosen: no call sees half of the exchange.
        self.registry.exchange(leaving, accepted)
        retiring = {name: asyncio.create_task(self._retire(state, inside[name])) for name, state in old.items()}
        self._retiring.update(retiring.values())
        await asyncio.gather(
            *retiring.values(),
            *(
                self._take_over(state, old.get(name), [retiring[donor] for donor in donors[name] & retiring.keys()])
                for name, state in entering.items()
            ),
        )
        self._retiring.difference_update(retiring.values())
        return set(verdict.displaced)

    def _displace(self, verdict: Verdict[Loaded], newest: Mapping[str, PluginState]) -> None:
        """Let sections stand as refused whose plugins another takes a claim from, unless they are removed anyway."""
        for name in verdict.displaced.keys() & set(self.registry.order):
            state = self.states[name] = PluginState(name, newest[name].section, newest[name].distribution)
            state.outdone_by = verdict.owners[name]
            self._refuse(state, PluginRefused(verdict.displaced[name]))

    def _candidates(self, loads: Iterable[Load]) -> dict[str, tuple[PluginState, Loaded]]:
        candidates = {}
        for load in loads:
            try:
                candidates[load.state.name] = load.state, load.task.result()
            except TryAgain as error:  # it hangs, or an earlier attempt still does
                self._postpone(load.state, error)
            except PluginError as error:
                self._refuse(load.state, error)
        return candidates

    def _donors(self, loaded: Loaded) -> set[str]:
        """Return the plugins that must have stopped before one starts: its predecessor, and owners of its claims."""
        known = self.registry.plugins.items()
        return {name for name, other in known if name == loaded.name or set(other.claims) & set(loaded.claims)}

    def _close(self, name: str, *, hold: bool) -> None:
        """Keep calls off a plugin that does not run yet: they wait if they were served before, or are refused."""
        if hold:
            self.runner.hold(name)
        else:
            self.registry.disabled[name] = "it is starting"

    async def _retire(self, old: PluginState, inside: "set[asyncio.Future[Any]]") -> None:
        """Stop an instance once the calls inside it have ended."""
        successor = self.states.get(old.name)
        if successor is None or successor.loaded is None:
            await self.devices.end(old.name)
        if inside:
            _, late = await asyncio.wait(inside, timeout=CALL_PATIENCE)
            if late:
                LOG.warning("plugin %s is stopped with %d calls inside it", old.name, len(late))
        await self._stop(old)
        LOG.info("plugin %s is unloaded", old.name)

    async def _take_over(
        self, state: PluginState, former: PluginState | None, retiring: Sequence["asyncio.Task[None]"]
    ) -> None:
        try:
            if retiring:
                await asyncio.wait(retiring)
            if self.states.get(state.name) is not state:
                return  # removed meanwhile, or the daemon is ending
            error = await self._begin(state)
            if error is not None and former is not None and former.state == "running":
                state, error = await self._fall_back(state, former, error)
            self._begun(state, error)
        finally:
            self.runner.release(state.name)

    async def _fall_back(
        self, state: PluginState, former: PluginState, error: PluginError
    ) -> tuple[PluginState, PluginError | None]:
        """Start the former configuration in a new instance: a stopped one is never started again.

        Returns:
            The state that holds now, and why it does not run.
        """
        LOG.error("plugin %s does not start with its new configuration: %s", state.name, error)
        again = PluginState(former.name, former.section)
        again.rejected = f"its new configuration does not start, the former one serves: {error}"
        try:
            candidate = await self._load(again)
            if self.states.get(state.name) is not state:
                return state, error  # removed meanwhile
            again.loaded = self.registry.adopt(candidate)
        except PluginError as failure:
            LOG.error("plugin %s cannot go back to its former configuration: %s", state.name, failure)
            return state, error
        self.states[state.name] = again
        failed = await self._begin(again)
        if failed is None or self.states.get(state.name) is not again or state.loaded is None:
            return again, failed
        try:
            self.registry.adopt(state.loaded)
        except PluginError:  # what only the new configuration claims has found another owner
            return again, failed
        self.states[state.name] = state
        return state, error

    async def _load(self, state: PluginState) -> Loaded:
        def work() -> Loaded:
            found = find(state.uses)
            state.distribution = found.distribution
            return prepare(state.name, found, state.section.config, self.make_host, self.tell)

        candidate: Loaded = await self.runner.load(state.name, work)
        return candidate

    async def _load_beside(self, state: PluginState) -> Loaded:
        """Load a plugin; where others serve what it claims, let it get ready beside them, in its own time."""
        loaded = await self._load(state)
        if "prepare" in loaded.hooks and self._donors(loaded):
            state.prepared = replace(loaded, callers=callers(loaded.plugin, loaded.hooks & LIFE_CYCLE, ()))
            await self._call_own(state, "prepare")
        return loaded

    def _discard(self, states: Iterable[PluginState]) -> None:
        """Stop instances that got ready, or tried to, and are not wanted."""
        for state in states:
            if state.prepared is not None:
                state.begun = True
                stopping = asyncio.create_task(self._stop(state), name=f"stop {state.name}")
                self._retiring.add(stopping)
                stopping.add_done_callback(self._retiring.discard)

    def _refuse(self, state: PluginState, error: PluginError) -> None:
        LOG.error("plugin %s is refused: %s", state.name, one_line(str(error)))
        if not self._kept(state, error):
            state.state, state.fault = "refused", str(error)

    def _kept(self, state: PluginState, error: PluginError) -> bool:
        """Stay with the former section, if there is a plugin behind it, when the new one cannot be loaded."""
        former = self._former(state)
        if former is None:
            return False
        former.rejected = f"its new configuration cannot be loaded, the former one serves: {error}"
        return True

    async def _start(self, state: PluginState) -> None:
        self._begun(state, await self._begin(state))

    async def _begin(self, state: PluginState) -> PluginError | None:
        """Call `start`; return its error."""
        state.state, state.beginning = "starting", asyncio.get_running_loop().create_future()
        try:
            await self._call_own(state, "start")
        except PluginError as error:
            return error
        else:
            state.begun = True
            return None
        finally:
            state.beginning.set_result(None)

    async def _call_own(self, state: PluginState, hook: str) -> None:
        """Call a hook of the life cycle, if the plugin has it."""
        loaded = state.loaded or state.prepared
        if loaded is not None and hook in loaded.hooks:
            # A key per instance: one that hangs is left behind, and must not keep later instances from starting.
            call = Call(hook, f"plugin:{state.name}", key=f"instance {state.number} of {state.name}")
            await self.runner.call(loaded.route, hook, call, {})

    def _begun(self, state: PluginState, error: PluginError | None) -> None:
        """Serve a plugin whose start has ended, or try again later."""
        if self.states.get(state.name) is not state or state.loaded is None:
            return  # removed or changed meanwhile
        if error is not None:
            self._postpone(state, error)
            return
        state.state, state.fault, state.retry_after = "running", "", FIRST_RETRY
        self.registry.disabled.pop(state.name, None)
        LOG.info("plugin %s runs: %s", state.name, ", ".join(map(str, state.loaded.claims)) or "no claims")
        self.devices.serve(state.name)

    def _postpone(self, state: PluginState, error: PluginError) -> None:
        if state.fault != str(error):
            LOG.error("plugin %s does not start: %s", state.name, error)
        if self._kept(state, error):
            return
        state.state, state.fault = "failed", str(error)
        state.retry_at = time.monotonic() + state.retry_after
        state.retry_after = min(state.retry_after * 2, LAST_RETRY)
        self.registry.disabled[state.name] = f"its start failed: {error}"
        self.devices.withdraw(state.name, str(error))

    async def _end(self, name: str, grace: float) -> None:
        state, inside = self.states.pop(name), self.runner.working(name)
        await self.devices.end(name)
        if state.begun and inside:
            await asyncio.wait(inside, timeout=grace)
        await self._stop(state)
        LOG.info("plugin %s is unloaded", name)

    async def _stop(self, state: PluginState) -> None:
        """Stop an instance that was started, or is being started just now unless the daemon ends."""
        if state.beginning is not None:
            await until(state.beginning, self._ending)
        if not state.begun:
            return
        state.begun = False
        try:
            await self._call_own(state, "stop")
        except PluginError as error:
            LOG.error("plugin %s did not stop: %s", state.name, error)
