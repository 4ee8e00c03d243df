"""The exchange: how instances of plugins come, take the places of others, and go, and no call fails for it.

Owns: the order of its steps, and what becomes of a slot when one of them fails.
1. A new instance is loaded beside the one that serves, and gets ready there (`prepare`), however long that takes. If
   that fails, the former one serves on and nothing else happens.
2. In one step on the loop every claim leads to its new owner, and calls for it wait at the gate of its slot.
3. The calls inside the former instance end, in a bounded time; delegated ones count. It is stopped.
4. The new instance starts and the gate opens. If it does not start, a new instance of the former section does; if that
   fails too, calls are refused and the start is tried again, each time later.
Refuses: to choose which sections are brought up (`lifecycle`) and who gets a claim (`registry`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from nodeplug.config import PluginSection
from nodeplug.config.mistakes import Location, one_line, told
from nodeplug.contract.errors import PluginError, TryAgain, text_of
from nodeplug.contract.hookspecs import RESERVED
from nodeplug.contract.host import Host
from nodeplug.hosting.call import Call
from nodeplug.hosting.claimants import Verdict
from nodeplug.hosting.discovery import PluginRefused, find, validate_config
from nodeplug.hosting.dispatch import LIFE_CYCLE, callers
from nodeplug.hosting.registry import Registry, examine, unmarked
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.served_devices import ServedDevices
from nodeplug.hosting.slot import FIRST_RETRY, Instance, Loaded
from nodeplug.process.waiting import until

LOG: Final = logging.getLogger(__name__)
LAST_RETRY: Final = 60.0
LOAD_PATIENCE: Final = 3.0
"""Seconds after which plugins start without waiting for one that still loads."""
CALL_PATIENCE: Final = 30.0
"""Seconds that calls inside a plugin get to end before it is stopped by a reload; those for its successor wait."""
_Loads = Mapping[Instance, "asyncio.Task[None]"]


def construct(instance: Instance, make_host: Callable[[str], Host], tell: Callable[[Location, str], str]) -> Loaded:
    """Make the plugin of an instance, which can be called for its own life, and note whose class it is.

    Raises:
        PluginRefused: it cannot be loaded; the message says at which step.
    """
    name, found = instance.name, find(instance.uses)
    instance.distribution = found.distribution
    config = validate_config(name, found, instance.section.config, tell)
    plugin = _construct(name, found.cls, config, make_host(name))
    if forgotten := unmarked(found.cls):
        LOG.warning("plugin %s: %s without @hookimpl: nobody calls it", name, ", ".join(forgotten))
    loaded = examine(name, plugin, found.distribution)
    if early := sorted(loaded.hooks & RESERVED):
        LOG.info("plugin %s has %s: nothing calls it yet", name, " and ".join(early))
    loaded.callers.update(callers(plugin, loaded.hooks & LIFE_CYCLE, ()))
    return loaded


def _construct(name: str, cls: Callable[..., object], config: object, host: Host) -> object:
    try:
        return cls(config, host)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        LOG.error("plugin %s cannot be constructed", name, exc_info=error)
        text = f"plugin {name!r} cannot be constructed: {type(error).__name__}: {text_of(error)}"
        raise PluginRefused(text) from error


@dataclass(slots=True)
class Exchange:
    """The steps of every instance. Used from the event loop alone.

    Attributes:
        devices: what serves the plugins' resources.
        tell: writes a mistake in a section with its file and line.
        ending: the daemon ends: nobody waits for what is starting.
        stopping: instances that are being stopped, which the end of the daemon waits for.
    """

    registry: Registry
    runner: Runner
    make_host: Callable[[str], Host]
    devices: ServedDevices = field(default_factory=ServedDevices)
    tell: Callable[[Location, str], str] = told
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: set["asyncio.Task[None]"] = field(default_factory=set)

    async def bring_up(self, instances: Sequence[Instance], leaving: Collection[str] = ()) -> None:
        """Load and start instances, each in its own time, and let the plugins `leaving` go.

        Of two that claim one name the first in the configuration serves, also when it is the last to load: then the
        other is refused while it runs, and those that were refused because of that one get their chance.
        """
        for one in instances:
            if one.slot.loaded is None:
                self.registry.expect(one)
        loads = {one: asyncio.create_task(self._load_beside(one), name=f"load {one.name}") for one in instances}
        if loads:
            await asyncio.wait(loads.values(), timeout=LOAD_PATIENCE)
        prompt = {one: load for one, load in loads.items() if load.done()}
        # Those that get ready take their time, and whose claims they take over serve on until then.
        late = {one: self._donors(one) & set(leaving) if one.begun else set() for one in loads if one not in prompt}
        displaced = await asyncio.gather(
            self._exchange(prompt, set(leaving).difference(*late.values())),
            *(self._exchange({one: loads[one]}, stays) for one, stays in late.items()),
        )
        gone = set().union(*displaced)
        again = [slot for slot in self.registry.slots.values() if slot.outdone_by in gone]
        if again:
            await self.bring_up([Instance(slot, slot.instance.section) for slot in again])

    async def load(self, instance: Instance) -> None:
        """Construct the plugin of an instance.

        Raises:
            PluginError: it cannot be loaded, or hangs.
        """
        instance.loaded = await self.runner.load(instance, lambda: construct(instance, self.make_host, self.tell))

    async def _load_beside(self, instance: Instance) -> None:
        await self.load(instance)
        if "prepare" in instance.hooks and self._donors(instance):
            instance.begun = True
            await self._call(instance, "prepare")

    def _donors(self, instance: Instance) -> set[str]:
        """Return the plugins that must have stopped before one starts: its predecessor, and owners of its claims."""
        claims = set(instance.loaded.claims) if instance.loaded is not None else set()
        known = self.registry.plugins.items()
        return {name for name, other in known if name == instance.name or claims & set(other.claims)}

    async def _exchange(self, loads: _Loads, leaving: Collection[str]) -> set[str]:
        """Once they are loaded, let plugins take their places, and others go; return who was displaced."""
        if loads:
            await asyncio.wait(loads.values())
        candidates = {one.name: one for one in self._loaded(loads)}
        verdict = self.registry.admissible(candidates.values(), leaving)
        for name, reason in verdict.refused.items():
            self.refuse(candidates[name], PluginRefused(reason), verdict.owners[name])
        entering = {candidates[loaded.name]: self._donors(candidates[loaded.name]) for loaded in verdict.accepted}
        for one in loads:
            if one not in entering:
                self._discard(one)
        newest = {name: slot.instance for name, slot in self.registry.slots.items()} | candidates
        work = self._swap(entering, {*leaving, *verdict.displaced})
        self._displace(verdict, newest)
        # Nothing was awaited since the plugins were chosen: no call sees half of the exchange.
        await asyncio.gather(*work)
        return set(verdict.displaced)

    def _swap(
        self, entering: Mapping[Instance, set[str]], leaving: set[str]
    ) -> Sequence[Coroutine[Any, Any, None] | asyncio.Task[None]]:
        """Give every claim its new owner; calls for what was served wait, others are refused until it has started.

        Args:
            entering: the new instances, with the plugins that must have stopped before each of them starts.
            leaving: the plugins that go without a successor.

        Returns:
            What is left to be done: the stops and the starts.
        """
        going = self.registry.plugins.keys() & {*leaving, *(one.name for one in entering)}
        old = {name: self.registry.slots[name].instance for name in going}
        ran = {name for name, former in old.items() if former.slot.state == "running"}
        stops = {name: asyncio.create_task(self._retire(one, one.slot.inside())) for name, one in old.items()}
        for name, stop in stops.items():
            self.devices.hold(name)
            self._follow(stop)
        self.registry.exchange(leaving, entering)
        starts = []
        for one, donors in entering.items():
            if donors & ran:
                one.slot.hold()
            else:
                one.slot.enter("starting")
            former = old[one.name].section if one.name in ran else None
            starts.append(self._take_over(one, [stops[name] for name in donors & going], former))
        return [*stops.values(), *starts]

    def _follow(self, stop: "asyncio.Task[None]") -> None:
        self.stopping.add(stop)
        stop.add_done_callback(self.stopping.discard)

    def _loaded(self, loads: _Loads) -> Iterator[Instance]:
        for instance, load in loads.items():
            if self.registry.slots.get(instance.name) is not instance.slot:
                continue  # removed meanwhile
            try:
                load.result()
            except TryAgain as error:  # it hangs, or an earlier attempt still does
                self._postpone(instance, error)
            except PluginError as error:
                self.refuse(instance, error)
            else:
                yield instance

    def _displace(self, verdict: Verdict[Loaded], newest: Mapping[str, Instance]) -> None:
        """Let sections stand as refused whose plugins another takes a claim from, unless they are removed anyway."""
        for name in verdict.displaced.keys() & set(self.registry.order):
            before = newest[name]
            refused = Instance(before.slot, before.section, before.distribution)
            self.registry.expect(refused)
            self.refuse(refused, PluginRefused(verdict.displaced[name]), verdict.owners[name])

    async def _retire(self, former: Instance, inside: "set[asyncio.Future[Any]]") -> None:
        """Stop an instance once the calls inside it have ended."""
        if former.slot.loaded is None:  # it has no successor
            await self.devices.end(former.name)
        if inside:
            _, late = await asyncio.wait(inside, timeout=CALL_PATIENCE)
            if late:
                LOG.warning("plugin %s is stopped with %d calls inside it", former.name, len(late))
        await self.stop(former)
        LOG.info("plugin %s is unloaded", former.name)

    def _discard(self, instance: Instance) -> None:
        """Stop an instance that got ready, or tried to, and is not wanted."""
        if instance.begun:
            self._follow(asyncio.create_task(self.stop(instance), name=f"stop {instance.name}"))

    async def stop(self, instance: Instance) -> None:
        """Stop an instance that was started, or is being started just now unless the daemon ends."""
        if instance.beginning is not None:
            await until(instance.beginning, self.ending)
        if not instance.begun:
            return
        instance.begun = False
        try:
            await self._call(instance, "stop")
        except PluginError as error:
            LOG.error("plugin %s did not stop: %s", instance.name, error)

    async def _take_over(
        self, instance: Instance, stopping: Collection["asyncio.Task[None]"], former: PluginSection | None
    ) -> None:
        if stopping:
            await asyncio.wait(stopping)
        if not self._stands(instance):
            return
        error = await self._begin(instance)
        if error is not None and former is not None:
            instance, error = await self._fall_back(instance, former, error)
        self._started(instance, error)

    async def _fall_back(
        self, instance: Instance, former: PluginSection, error: PluginError
    ) -> tuple[Instance, PluginError | None]:
        """Start the former configuration in a new instance: a stopped one is never started again.

        Returns:
            The instance that stands for the section now, and why it does not run.
        """
        slot, again = instance.slot, Instance(instance.slot, former)
        LOG.error("plugin %s does not start with its new configuration: %s", slot.name, error)
        try:
            await self.load(again)
            if not self._stands(instance):
                return instance, error
            self.registry.adopt(again)
        except PluginError as failure:
            LOG.error("plugin %s cannot go back to its former configuration: %s", slot.name, failure)
            return instance, error
        slot.rejected = f"its new configuration does not start, the former one serves: {error}"
        failed = await self._begin(again)
        if failed is None or not self._stands(again):
            self._discard(instance)
            return again, failed
        with suppress(PluginRefused):  # what only the new configuration claims may have found another owner
            self.registry.adopt(instance)
            return instance, error
        return again, failed

    async def start(self, instance: Instance) -> None:
        """Start an instance that has its place already, and serve it, or try again later."""
        self._started(instance, await self._begin(instance))

    async def _begin(self, instance: Instance) -> PluginError | None:
        """Call `start`; return its error."""
        instance.slot.state, instance.beginning = "starting", asyncio.get_running_loop().create_future()
        try:
            await self._call(instance, "start")
        except PluginError as error:
            return error
        else:
            instance.begun = True
            return None
        finally:
            instance.beginning.set_result(None)

    def _started(self, instance: Instance, error: PluginError | None) -> None:
        slot = instance.slot
        if not self._stands(instance) or slot.loaded is None:
            return
        if error is not None:
            self._postpone(instance, error)
            return
        slot.enter("running")
        slot.retry_after = FIRST_RETRY
        LOG.info("plugin %s runs: %s", slot.name, ", ".join(map(str, slot.loaded.claims)) or "no claims")
        self.devices.serve(slot.name)

    def _stands(self, instance: Instance) -> bool:
        """Whether it still stands for its section; it does not once it is removed, replaced, or the daemon ends."""
        return self.registry.slots.get(instance.name) is instance.slot and instance.slot.instance is instance

    def refuse(self, instance: Instance, error: PluginError, outdone_by: str = "") -> None:
        """Give up an instance that cannot be loaded as things are."""
        LOG.error("plugin %s is refused: %s", instance.name, one_line(str(error)))
        if not self._kept(instance, error):
            instance.slot.enter("refused", str(error))
            instance.slot.outdone_by = outdone_by

    def _postpone(self, instance: Instance, error: PluginError) -> None:
        slot = instance.slot
        if slot.fault != str(error):
            LOG.error("plugin %s does not start: %s", slot.name, error)
        if not self._kept(instance, error):
            slot.enter("failed", str(error))
            slot.retry_at = time.monotonic() + slot.retry_after
            slot.retry_after = min(slot.retry_after * 2, LAST_RETRY)
            self.devices.withdraw(slot.name)

    def _kept(self, instance: Instance, error: PluginError) -> bool:
        """Stay with the former section, if there is a plugin behind it, when the new one cannot be loaded."""
        slot = instance.slot
        if slot.instance is not instance and slot.loaded is not None:
            slot.rejected = f"its new configuration cannot be loaded, the former one serves: {error}"
        return slot.instance is not instance

    async def _call(self, instance: Instance, hook: str) -> None:
        """Call a hook of the life cycle, if the plugin has it."""
        if hook in instance.hooks:
            # A key per instance: one that hangs is left behind, and must not keep later instances from starting.
            call = Call(hook, f"plugin:{instance.name}", key=f"instance {instance.number} of {instance.name}")
            await self.runner.call(instance, hook, call, {})
