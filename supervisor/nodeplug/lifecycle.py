"""The life of every configured plugin: load, start, retry, health, stop, and reload by difference.

Owns: one `PluginState` per `[plugins.<name>]` section, and the steps that lead from one state to the next.
Refuses: to touch a plugin whose section did not change, and to let one plugin's failure reach another. A start that
raises disables this plugin alone and is tried again, each time later.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from nodeplug.call import Call
from nodeplug.config import PluginSection
from nodeplug.errors import PluginError, TryAgain, text_of
from nodeplug.host import Host
from nodeplug.registry import Loaded, PluginRefused, Registry, examine, find, validate_config
from nodeplug.runner import Runner

LOG: Final = logging.getLogger(__name__)
State = Literal["starting", "running", "failed", "refused"]
FIRST_RETRY: Final = 1.0
LAST_RETRY: Final = 60.0
LOAD_PATIENCE: Final = 3.0
"""Seconds after which plugins start without waiting for one that still loads."""


@dataclass(slots=True)
class PluginState:
    """Where one section stands.

    Attributes:
        name: the section's name.
        section: the configuration that led here.
        state: "refused" cannot be loaded; "failed" its start raised or its loading hangs; "starting"; "running".
        reason: why it is refused, failed or not healthy; empty when all is well.
        retry_at: `time.monotonic()` of the next start, when failed.
        retry_after: seconds of the present backoff.
    """

    name: str
    section: PluginSection
    distribution: str = ""
    state: State = "refused"
    reason: str = ""
    loaded: Loaded | None = None
    retry_at: float = 0.0
    retry_after: float = FIRST_RETRY

    @property
    def uses(self) -> str:
        """The entry-point name or `module:Class` of the plugin."""
        return self.section.uses or self.name


@dataclass(frozen=True, slots=True)
class Difference:
    """What a new configuration changes, by section name."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]

    def __str__(self) -> str:
        parts = ("removed", self.removed), ("added", self.added), ("changed", self.changed)
        return "; ".join(f"{word} {', '.join(names)}" for word, names in parts if names) or "nothing changed"


def difference(now: Mapping[str, PluginSection], wanted: Mapping[str, PluginSection]) -> Difference:
    """Compare two sets of enabled sections. A changed deadline alone changes no plugin."""
    undated = {name: section.model_copy(update={"deadline": {}}) for name, section in wanted.items()}
    return Difference(
        tuple(name for name in now if name not in wanted),
        tuple(name for name in wanted if name not in now),
        tuple(
            name
            for name, section in now.items()
            if name in undated and section.model_copy(update={"deadline": {}}) != undated[name]
        ),
    )


async def _nothing(_: str) -> None:
    return


@dataclass(slots=True)
class Lifecycle:
    """All configured plugins. Used from the event loop alone.

    Attributes:
        running: called with a plugin that has just started, to serve its devices.
        ending: called with the name of a plugin that is about to stop; awaited before its `stop`.
    """

    registry: Registry
    runner: Runner
    make_host: Callable[[str], Host]
    running: Callable[[Loaded], None] = lambda _: None
    ending: Callable[[str], Awaitable[None]] = _nothing
    states: dict[str, PluginState] = field(default_factory=dict)
    _retries: set["asyncio.Task[None]"] = field(default_factory=set)

    def load_all(self, sections: Mapping[str, PluginSection]) -> None:
        """Load sections in the calling thread, without starting them: to look at a configuration, not to serve it."""
        for name, section in sections.items():
            state = self.states[name] = PluginState(name, section)
            try:
                self._take_in(state, self._prepare(state))
            except PluginError as error:
                self._refuse(state, error)

    async def apply(self, sections: Mapping[str, PluginSection]) -> Difference:
        """Make the loaded plugins match the sections; unchanged ones are not touched.

        Returns:
            What changed.
        """
        wanted = {name: section for name, section in sections.items() if section.enabled}
        self.runner.deadlines = {name: section.deadline for name, section in wanted.items()}
        changes = difference({name: state.section for name, state in self.states.items()}, wanted)
        await asyncio.gather(*(self._end(name) for name in (*changes.removed, *changes.changed)))
        # What was refused is loaded again too: the owner of a doubly claimed name may be gone now.
        refused = self.refused
        await self._bring_up([PluginState(name, wanted[name]) for name in (*refused, *changes.changed, *changes.added)])
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
        """The sections whose plugins cannot be loaded as things are."""
        return [name for name, state in self.states.items() if state.state == "refused"]

    async def check_health(self) -> Mapping[str, str]:
        """Ask every running plugin for its health.

        Returns:
            The reason of each plugin that is not well, by section name.
        """
        await asyncio.gather(*(self._check(state) for state in self.states.values() if state.state == "running"))
        return {
            name: state.reason or state.state
            for name, state in self.states.items()
            if state.state != "running" or state.reason
        }

    async def stop_all(self) -> None:
        """Stop every plugin; one that hangs is left behind at its deadline."""
        await asyncio.gather(*(self._end(name) for name in list(self.states)))

    async def _bring_up(self, states: Sequence[PluginState]) -> None:
        """Load and start, each plugin in its own time.

        Those that load promptly are taken in by their order in the configuration, so that of two owners of one claim
        it is always the same that serves.
        """
        for state in states:
            state.state = "starting"
            self.states[state.name] = state
        loads = [(state, asyncio.create_task(self._load(state), name=f"load {state.name}")) for state in states]
        if loads:
            await asyncio.wait([load for _, load in loads], timeout=LOAD_PATIENCE)
        prompt = [(state, load) for state, load in loads if load.done()]
        for state, load in prompt:
            self._settle(state, load)
        late = [(state, load) for state, load in loads if (state, load) not in prompt]
        await asyncio.gather(
            *(self._start(state) for state, _ in prompt), *(self._start_late(state, load) for state, load in late)
        )

    async def _start_late(self, state: PluginState, load: "asyncio.Task[Loaded]") -> None:
        await asyncio.wait({load})
        self._settle(state, load)
        await self._start(state)

    async def _load(self, state: PluginState) -> Loaded:
        candidate: Loaded = await self.runner.load(state.name, lambda: self._prepare(state))
        return candidate

    def _prepare(self, state: PluginState) -> Loaded:
        """Import, configure, construct and examine a plugin: its own code, in a thread with a deadline."""
        found = find(state.uses)
        state.distribution = found.distribution
        config = validate_config(state.name, found, state.section.config)
        plugin = _construct(state.name, found.cls, config, self.make_host(state.name))
        return examine(state.name, plugin, found.distribution)

    def _settle(self, state: PluginState, load: "asyncio.Task[Loaded]") -> None:
        """Take a plugin in whose loading has ended."""
        if self.states.get(state.name) is not state:
            return  # removed or changed meanwhile
        try:
            self._take_in(state, load.result())
        except TryAgain as error:  # it hangs, or an earlier attempt still does
            self._postpone(state, error)
        except PluginError as error:
            self._refuse(state, error)

    def _take_in(self, state: PluginState, candidate: Loaded) -> None:
        state.loaded = self.registry.adopt(candidate)
        state.state = "starting"
        self.registry.disabled[state.name] = "it is starting"

    def _refuse(self, state: PluginState, error: PluginError) -> None:
        state.state, state.reason = "refused", str(error)
        LOG.error("plugin %s is refused: %s", state.name, str(error).replace("\n", "; "))

    async def _start(self, state: PluginState) -> None:
        loaded = state.loaded
        if loaded is None:
            return
        state.state = "starting"
        try:
            if "start" in loaded.hooks:
                call = Call("start", f"plugin:{state.name}", key=f"life cycle of {state.name}")
                await self.runner.call(loaded.route, "start", call, {})
        except PluginError as error:
            self._postpone(state, error)
            return
        if self.states.get(state.name) is not state:
            return  # removed or changed meanwhile
        state.state, state.reason, state.retry_after = "running", "", FIRST_RETRY
        self.registry.disabled.pop(state.name, None)
        LOG.info("plugin %s runs: %s", state.name, ", ".join(map(str, loaded.claims)) or "no claims")
        self.running(loaded)

    def _postpone(self, state: PluginState, error: PluginError) -> None:
        if state.reason != str(error):
            LOG.error("plugin %s does not start: %s", state.name, error)
        state.state, state.reason = "failed", str(error)
        state.retry_at = time.monotonic() + state.retry_after
        state.retry_after = min(state.retry_after * 2, LAST_RETRY)
        self.registry.disabled[state.name] = f"its start failed: {error}"

    async def _check(self, state: PluginState) -> None:
        loaded = state.loaded
        if loaded is None or "health" not in loaded.hooks:
            return
        try:
            await self.runner.call(
                loaded.route, "health", Call("health", f"plugin:{state.name}", f"health of {state.name}"), {}
            )
        except PluginError as error:
            if state.reason != str(error):
                LOG.warning("plugin %s is not well: %s", state.name, error)
            state.reason = str(error)
        else:
            state.reason = ""

    async def _end(self, name: str) -> None:
        state = self.states.pop(name)
        await self.ending(name)
        loaded = state.loaded
        if loaded is None:
            return
        if "stop" in loaded.hooks and state.state == "running":
            call = Call("stop", f"plugin:{name}", key=f"life cycle of {name}")
            try:
                await self.runner.call(loaded.route, "stop", call, {})
            except PluginError as error:
                LOG.error("plugin %s did not stop: %s", name, error)
        self.registry.unload(name)
        self.registry.disabled.pop(name, None)
        LOG.info("plugin %s is unloaded", name)


def _construct(name: str, cls: Callable[..., object], config: object, host: Host) -> object:
    try:
        return cls(config, host)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        LOG.error("plugin %s cannot be constructed", name, exc_info=error)
        text = f"plugin {name!r} cannot be constructed: {type(error).__name__}: {text_of(error)}"
        raise PluginRefused(text) from error
