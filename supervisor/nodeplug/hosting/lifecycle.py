"""The lives of plugins: how their instances come, take the places of others, and go, and no call fails for it.

Owns: what a configuration changes, retries, health, the end of the daemon, and the exchange with its steps:
1. A new instance is loaded beside the one that serves, and gets ready there (`prepare`), however long that takes. If
   that fails, the former one serves on and nothing else happens.
2. In one step on the loop every claim leads to its new owner, and calls for it wait at the gate of its slot.
3. The calls inside the former instance end, in a bounded time; delegated ones count. It is stopped.
4. The new instance starts and the gate opens. If it does not start, a new instance of the former section does; if that
   fails too, calls are refused and the start is tried again, each time later.
Refuses: to touch a plugin whose section did not change, to let one plugin's failure reach another, to stop one that is
not well, and to choose who gets a claim (`registry`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from nodeplug.config import PluginSection
from nodeplug.config.mistakes import Location, one_line, told
from nodeplug.contract.errors import PluginError, TryAgain
from nodeplug.contract.host import Host
from nodeplug.hosting.call import Call
from nodeplug.hosting.discovery import PluginRefused
from nodeplug.hosting.loading import construct
from nodeplug.hosting.registry import Difference, Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.served_devices import ServedDevices
from nodeplug.hosting.slot import FIRST_RETRY, Instance, Slot
from nodeplug.process.waiting import until

LOG: Final = logging.getLogger(__name__)
LAST_RETRY: Final = 60.0
LOAD_PATIENCE: Final = 3.0
"""Seconds after which plugins start without waiting for one that still loads."""
CALL_PATIENCE: Final = 30.0
"""Seconds that calls inside a plugin get to end before it is stopped by a reload; those for its successor wait."""
LAST_PATIENCE: Final = 10.0
"""Seconds that the end of the daemon waits for plugins that a reload is just stopping."""
_Task = asyncio.Task[None]


@dataclass(slots=True)
class Lifecycle:
    """The plugins of a configuration. Used from the event loop alone.

    Attributes:
        make_host: makes what a plugin gets of the daemon, by section name; called in the thread that loads it.
        tell: writes a mistake in a section with its file and line.
    """

    registry: Registry
    runner: Runner
    make_host: Callable[[str], Host]
    devices: ServedDevices = field(default_factory=ServedDevices)
    tell: Callable[[Location, str], str] = told
    _ending: asyncio.Event = field(default_factory=asyncio.Event)
    _stopping: set[_Task] = field(default_factory=set)
    _retries: set[_Task] = field(default_factory=set)

    # --- what is to be done, and when -----------------------------------------------------------------------------

    async def load_all(self, sections: Mapping[str, PluginSection]) -> None:
        """Load sections without starting them: to look at a configuration, not to serve it."""
        instances = self._instances(sections)
        for instance in instances:
            self.registry.expect(instance)
        loads = await asyncio.gather(*map(self._load, instances), return_exceptions=True)
        for instance, error in zip(instances, loads, strict=True):
            try:
                if error is not None:
                    raise error
                self.registry.adopt(instance)
            except PluginError as refusal:
                self._refuse(instance, refusal)

    async def apply(
        self, sections: Mapping[str, PluginSection], tell: Callable[[Location, str], str] | None = None
    ) -> Difference:
        """Make the loaded plugins match the sections; unchanged ones are not touched.

        Args:
            sections: of the configuration.
            tell: writes a mistake in one of them with its file and line; None: as before.

        Returns:
            What changed.
        """
        if self._ending.is_set():
            return Difference()
        self.tell = tell or self.tell
        wanted = {name: section for name, section in sections.items() if section.enabled}
        changes = self.registry.compare(wanted)
        renewed = {*changes.added, *changes.changed}
        for name in wanted.keys() - renewed:
            slot = self.registry.slots[name]
            slot.rejected = ""  # the section is the one that is in force, again
            if slot.state == "refused":
                renewed.add(name)  # the owner of a doubly claimed name may be gone now
        await self._bring_up([one for one in self._instances(wanted) if one.name in renewed], changes.removed)
        return changes

    def _instances(self, sections: Mapping[str, PluginSection]) -> list[Instance]:
        """Take over the order and the deadlines of the sections; return an instance for each."""
        self.registry.order = tuple(sections)
        instances = [Instance(self.registry.slot(name), section) for name, section in sections.items()]
        for instance in instances:
            instance.slot.deadlines = instance.section.deadline
        return instances

    async def retry_failed(self) -> None:
        """Begin to start again every failed plugin whose time has come; one that hangs holds up no other."""
        for slot in list(self.registry.slots.values()):
            if slot.state == "failed" and slot.retry_at <= time.monotonic():
                slot.state = "starting"
                again = self._bring_up([slot.instance]) if slot.loaded is None else self._take_over(slot.instance)
                _keep(self._retries, asyncio.create_task(again, name=f"retry {slot.name}"))

    @property
    def refused(self) -> list[str]:
        """The sections that are not in force, since their plugins cannot be loaded or started as things are."""
        return [name for name, slot in self.registry.slots.items() if slot.state == "refused" or slot.rejected]

    async def check_health(self) -> Mapping[str, str]:
        """Ask every running plugin for its health.

        Returns:
            The reason of each plugin that is not well, by section name.
        """
        slots = list(self.registry.slots.values())
        await asyncio.gather(*(self._check(slot) for slot in slots if slot.state == "running"))
        return {slot.name: slot.reason or slot.state for slot in slots if slot.state != "running" or slot.reason}

    async def _check(self, slot: Slot) -> None:
        if "health" not in slot.instance.hooks:
            return
        call, fault = Call("health", f"plugin:{slot.name}", f"health of {slot.name}"), ""
        try:
            await self.runner.call(slot.instance, "health", call, {})
        except PluginError as error:
            fault = str(error)
            if slot.fault != fault:
                LOG.warning("plugin %s is not well: %s", slot.name, error)
        slot.fault = fault

    async def stop_all(self, grace: float = 5.0) -> None:
        """Stop every plugin, once the calls inside have had `grace` seconds; nobody waits for one that is starting."""
        self._ending.set()
        slots = list(self.registry.slots.values())
        self.registry.end()
        await asyncio.gather(*(self._retire(slot.instance, slot.inside(), grace) for slot in slots))
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=LAST_PATIENCE)

    # --- the exchange ---------------------------------------------------------------------------------------------

    async def _bring_up(self, instances: Iterable[Instance], leaving: Collection[str] = ()) -> None:
        """Load and start instances, each in its own time, and let the plugins `leaving` go.

        Of two that claim one name the first in the configuration serves, also when it is the last to load: then the
        other is refused while it runs, and those that were refused because of that one get their chance.
        """
        loads: dict[Instance, _Task] = {}
        for one in instances:
            if one.slot.loaded is None:
                self.registry.expect(one)
            loads[one] = asyncio.create_task(self._load_beside(one), name=f"load {one.name}")
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
            await self._bring_up([Instance(slot, slot.instance.section) for slot in again])

    async def _load(self, instance: Instance) -> None:
        await self.runner.load(instance, lambda: construct(instance, self.make_host, self.tell))

    async def _load_beside(self, instance: Instance) -> None:
        await self._load(instance)
        if "prepare" in instance.hooks and self._donors(instance):
            instance.begun = True
            await self._call(instance, "prepare")

    def _donors(self, instance: Instance) -> set[str]:
        """Return the plugins that must have stopped before one starts: its predecessor, and owners of its claims."""
        claims, known = set(instance.claims), self.registry.plugins.items()
        return {name for name, other in known if name == instance.name or claims.intersection(other.claims)}

    async def _exchange(self, loads: Mapping[Instance, _Task], leaving: Collection[str]) -> set[str]:
        """Once they are loaded, let plugins take their places, and others go; return who was displaced."""
        if loads:
            await asyncio.wait(loads.values())
        loaded = [one for one, load in loads.items() if self._has_loaded(one, load)]
        verdict = self.registry.admissible(loaded, leaving)
        for one in loads:
            if one.name in verdict.refused:
                self._refuse(one, PluginRefused(verdict.refused[one.name]), verdict.owners[one.name])
            if one not in verdict.accepted:
                self._discard(one)
        newest = {slot.name: slot.instance for slot in self.registry.slots.values()} | {one.name: one for one in loaded}
        work = self._swap(verdict.accepted, {*leaving, *verdict.displaced})
        # Their sections stand as refused, unless they are removed anyway.
        for name in verdict.displaced.keys() & set(self.registry.order):
            refused = Instance(newest[name].slot, newest[name].section, newest[name].distribution)
            self.registry.expect(refused)
            self._refuse(refused, PluginRefused(verdict.displaced[name]), verdict.owners[name])
        # Nothing was awaited since the plugins were chosen: no call sees half of the exchange.
        await asyncio.gather(*work)
        return set(verdict.displaced)

    def _has_loaded(self, instance: Instance, load: _Task) -> bool:
        if self.registry.slots.get(instance.name) is not instance.slot:
            return False  # removed meanwhile
        try:
            load.result()
        except TryAgain as error:  # it hangs, or an earlier attempt still does
            self._postpone(instance, error)
        except PluginError as error:
            self._refuse(instance, error)
        else:
            return True
        return False

    def _swap(self, entering: Sequence[Instance], leaving: set[str]) -> "Sequence[Coroutine[Any, Any, None] | _Task]":
        """Give every claim its new owner, and return what is left to be done: the stops and the starts.

        Calls for what was served wait; others are refused until it has started.
        """
        donors = {one: self._donors(one) for one in entering}
        going = leaving.union(one.name for one in entering)
        old = {name: former for name, former in self.registry.plugins.items() if name in going}
        ran = {name for name, former in old.items() if former.slot.state == "running"}
        stops = {}
        for name, former in old.items():
            stops[name] = _keep(self._stopping, asyncio.create_task(self._retire(former, former.slot.inside())))
            self.devices.hold(name)
        self.registry.exchange(leaving, entering)
        starts = []
        for one, before in donors.items():
            if before & ran:
                one.slot.hold()
            else:
                one.slot.enter("starting")
            former_section = old[one.name].section if one.name in ran else None
            starts.append(self._take_over(one, [stops[name] for name in before & stops.keys()], former_section))
        return [*stops.values(), *starts]

    async def _take_over(
        self, instance: Instance, stops: Collection[_Task] = (), former: PluginSection | None = None
    ) -> None:
        """Start an instance that has its place already, and serve it; or fall back, or try later."""
        if stops:
            await asyncio.wait(stops)
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

        Return the instance that stands for the section now, and why it does not run.
        """
        slot, again = instance.slot, Instance(instance.slot, former)
        LOG.error("plugin %s does not start with its new configuration: %s", slot.name, error)
        try:
            await self._load(again)
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

    # --- one instance ---------------------------------------------------------------------------------------------

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
        if not self._stands(instance):
            return
        if error is not None:
            self._postpone(instance, error)
            return
        slot = instance.slot
        slot.enter("running")
        slot.retry_after = FIRST_RETRY
        LOG.info("plugin %s runs: %s", slot.name, ", ".join(map(str, instance.claims)) or "no claims")
        self.devices.serve(slot.name)

    def _stands(self, instance: Instance) -> bool:
        """Whether it still stands for its section; it does not once it is removed, replaced, or the daemon ends."""
        return self.registry.slots.get(instance.name) is instance.slot and instance.slot.instance is instance

    def _refuse(self, instance: Instance, error: PluginError, outdone_by: str = "") -> None:
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

    async def _retire(
        self, instance: Instance, inside: "set[asyncio.Future[Any]]", patience: float | None = None
    ) -> None:
        """Stop an instance once the calls inside it have ended, or had `patience` seconds."""
        if instance.slot.loaded is None:  # it has no successor
            await self.devices.end(instance.name)
        if instance.begun and inside:
            _, late = await asyncio.wait(inside, timeout=CALL_PATIENCE if patience is None else patience)
            if late:
                LOG.warning("plugin %s is stopped with %d calls inside it", instance.name, len(late))
        await self._stop(instance)
        LOG.info("plugin %s is unloaded", instance.name)

    def _discard(self, instance: Instance) -> None:
        """Stop an instance that got ready, or tried to, and is not wanted."""
        if instance.begun:
            _keep(self._stopping, asyncio.create_task(self._stop(instance), name=f"stop {instance.name}"))

    async def _stop(self, instance: Instance) -> None:
        """Stop an instance that was started, or is being started just now unless the daemon ends."""
        if instance.beginning is not None:
            await until(instance.beginning, self._ending)
        if not instance.begun:
            return
        instance.begun = False
        try:
            await self._call(instance, "stop")
        except PluginError as error:
            LOG.error("plugin %s did not stop: %s", instance.name, error)

    async def _call(self, instance: Instance, hook: str) -> None:
        """Call a hook of the life cycle, if the plugin has it."""
        if hook in instance.hooks:
            # A key per instance: one that hangs is left behind, and must not keep later instances from starting.
            call = Call(hook, f"plugin:{instance.name}", key=f"instance {instance.number} of {instance.name}")
            await self.runner.call(instance, hook, call, {})


def _keep(tasks: set[_Task], task: _Task) -> _Task:
    """Keep a task until it has ended; the loop itself does not."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
