"""How instances of plugins are loaded, started, replaced and stopped, without a call that fails because of it.

Owns: what a configuration changes, what a process that ended changes, the end of the daemon, and the exchange:
1. A new instance is loaded next to the serving one and prepared there (`prepare`), however long that takes. If this
   fails, the old one keeps serving and nothing else happens.
2. In one step on the loop every claim moves to its new owner, and calls for it wait at the gate of its slot.
3. Calls inside the old instance, delegated ones included, get a bounded time to end. Then it is stopped.
4. The new instance starts and the gate opens. If it fails to start, a new instance of the old section starts instead;
   if that fails too, calls are refused and the start is retried with backoff.
Refuses: to call an instance's own hooks (`lives`), to touch a plugin whose section did not change, to let one plugin's
failure affect another, to stop an unhealthy plugin, and to choose who gets a claim (`registry`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from nodeplug.config import PluginSection
from nodeplug.config.mistakes import Location, one_line, told
from nodeplug.config.privileges import Privileges
from nodeplug.contract.errors import PluginError, TryAgain
from nodeplug.contract.host import Host
from nodeplug.hosting.construction import Construction
from nodeplug.hosting.lives import Lives, Tasks
from nodeplug.hosting.registry import Difference, Registry
from nodeplug.hosting.runner import AT_ONCE, Runner
from nodeplug.hosting.served_devices import ServedDevices
from nodeplug.hosting.slot import FIRST_RETRY, LAST_RETRY, Instance, Slot
from nodeplug.loading.classes import PluginRefused
from nodeplug.loading.examination import Examined
from nodeplug.process.aside import aside
from nodeplug.process.few_at_once import FewAtOnce
from nodeplug.worker.cgroups import Cgroups

LOG: Final = logging.getLogger(__name__)
LOAD_PATIENCE: Final = 3.0
"""Seconds after which plugins start without waiting for one that is still loading."""
ABSENCE: Final = 10.0
"""Seconds that the devices of a plugin stay as last listed while its process is not there."""
_Task = asyncio.Task[None]


@dataclass(slots=True)
class Lifecycle:
    """The plugins of a configuration. Used only from the event loop.

    Attributes:
        make_host: makes a plugin's host, by section name; called in the thread that loads it.
        tell: writes a mistake in a section with its file and line.
        give: makes a section's folders and gives them to who runs its plugin; may block.
        privileges: says what the process of a section's plugin runs with; may block.
        cgroups: of processes with limits; None: plugins are only looked at, and what limits them here does not matter.
    """

    registry: Registry
    runner: Runner
    make_host: Callable[[str], Host]
    devices: ServedDevices = field(default_factory=ServedDevices)
    tell: Callable[[Location, str], str] = told
    give: Callable[[str, Privileges], None] = lambda _name, _privileges: None
    privileges: Callable[[str, PluginSection], Privileges] = lambda _name, section: section.privileges
    cgroups: Cgroups | None = field(default_factory=Cgroups)
    _lives: Lives = field(init=False)
    _retries: Tasks = field(default_factory=Tasks)
    _loads: FewAtOnce = field(default_factory=lambda: FewAtOnce(AT_ONCE, LOAD_PATIENCE))

    def __post_init__(self) -> None:
        self._lives = Lives(self.runner, self.devices, self.give)

    # --- what is to be done, and when -----------------------------------------------------------------------------

    async def load_all(self, sections: Mapping[str, PluginSection]) -> None:
        """Load sections without starting them: to check a configuration, not to serve it."""
        instances = self._instances(sections)
        for instance in instances:
            self.registry.expect(instance)
        loads = await self._begun(instances, self._load)
        for instance, load in loads.items():
            try:
                await load
                self.registry.adopt(instance)
            except PluginError as refusal:
                self._refuse(instance, refusal)
            finally:
                instance.end_process()

    async def apply(
        self, sections: Mapping[str, PluginSection], tell: Callable[[Location, str], str] | None = None
    ) -> Difference:
        """Make the loaded plugins match the sections, without touching unchanged ones, and return what changed.

        `tell` writes a mistake in a section with its file and line; None keeps the present one.
        """
        if self._lives.ending.is_set():
            return Difference()
        self.tell = tell or self.tell
        wanted = {name: section for name, section in sections.items() if section.enabled}
        changes = self.registry.compare(wanted)
        renewed = {*changes.added, *changes.changed}
        for name in wanted.keys() - renewed:
            slot = self.registry.slots[name]
            slot.rejected = ""  # this section is in force again
            if slot.state == "refused":
                renewed.add(name)  # the owner of a doubly claimed name may be gone now
        await self.bring_up([one for one in self._instances(wanted) if one.name in renewed], changes.removed)
        return changes

    def _instances(self, sections: Mapping[str, PluginSection]) -> list[Instance]:
        """Adopt the order and the deadlines of the sections; return an instance for each."""
        self.registry.order = tuple(sections)
        instances = [Instance(self.registry.slot(name), section) for name, section in sections.items()]
        for instance in instances:
            instance.slot.deadlines = instance.section.deadline
        return instances

    def start_again(self, slot: Slot) -> None:
        """Start a plugin that is not running, in a task of its own: one that hangs does not delay others."""
        slot.state = "starting"
        if slot.loaded is None:
            again = self.bring_up([slot.instance])
        elif slot.instance.dead:
            again = self.bring_up([slot.instance.anew()])
        else:
            again = self._take_over(slot.instance)
        self._retries.start(again, f"start {slot.name} again")

    def _process_ended(self, instance: Instance, why: str) -> None:
        """Start a plugin again whose process has ended, if it is one that serves."""
        slot = instance.slot
        if self._lives.ending.is_set() or slot.loaded is not instance or slot.state != "running":
            return  # whoever loads, starts or stops it sees to it
        instance.begun, pause, slot.gone_at = False, slot.restarts.pause(why), time.monotonic()
        pid = instance.worker.pid if instance.worker is not None else 0
        text, when = "process %d of plugin %s ended: %s; restart %d is %s", f"in {pause:g} s" if pause else "now"
        LOG.error(text, pid, slot.name, why, slot.restarts.count, when)
        self.devices.hold(slot.name)
        if pause:
            slot.enter("failed", f"its process ended: {why}")
            slot.retry_at = time.monotonic() + pause
        else:
            slot.hold()
            self.start_again(slot)
        if pause > ABSENCE:
            self._withdraw(slot)

    def withdraw_absent(self, slot: Slot) -> None:
        """Withdraw the devices of a plugin whose process ended and that has been away for too long since."""
        if slot.gone_at and time.monotonic() - slot.gone_at > ABSENCE:
            self._withdraw(slot)

    def _withdraw(self, slot: Slot) -> None:
        slot.gone_at = 0.0
        self.devices.withdraw(slot.name, slot.fault)

    @property
    def refused(self) -> list[str]:
        """The sections that are not in force: their plugins cannot be loaded or started."""
        return [name for name, slot in self.registry.slots.items() if slot.state == "refused" or slot.rejected]

    async def stop_all(self, grace: float = 5.0) -> None:
        """Stop every plugin, once the calls inside have had `grace` seconds; do not wait for one that is starting."""
        self._lives.ending.set()
        slots = list(self.registry.slots.values())
        self.registry.end()
        await asyncio.gather(*(self._lives.retire(slot.instance, slot.inside(), grace) for slot in slots))
        await self._lives.settle()
        if self.cgroups is not None:
            with suppress(TryAgain):  # no thread is left: the next daemon sees to it
                await aside(self.cgroups.close, "remove cgroups")

    # --- the exchange ---------------------------------------------------------------------------------------------

    async def bring_up(self, instances: Iterable[Instance], leaving: Collection[str] = ()) -> None:
        """Load and start instances, each at its own pace, and let the plugins `leaving` go.

        Two plugins may claim one name: the first in the configuration serves, even if it loads last. The other is then
        refused while it runs, and plugins that were refused because of that other one are tried again.
        """
        entering = list(instances)
        for one in entering:
            if one.slot.loaded is None:
                self.registry.expect(one)
        loads = await self._begun(entering, self._load_beside)
        prompt = {one: load for one, load in loads.items() if load.done()}
        # Slow `prepare` hooks get their time, and the plugins whose claims they take over serve until then.
        late = {one: self._donors(one) & set(leaving) if one.begun else set() for one in loads if one not in prompt}
        displaced = await asyncio.gather(
            self._exchange(prompt, set(leaving).difference(*late.values())),
            *(self._exchange({one: loads[one]}, stays) for one, stays in late.items()),
        )
        gone = set().union(*displaced)
        again = [slot for slot in self.registry.slots.values() if slot.outdone_by in gone]
        if again:
            await self.bring_up([Instance(slot, slot.instance.section) for slot in again])

    async def _begun(
        self, instances: Sequence[Instance], load: Callable[[Instance], Coroutine[Any, Any, None]]
    ) -> dict[Instance, _Task]:
        """Load instances, a few at a time; return the load of each once all are done or slow."""
        tasks = await asyncio.gather(*(self._loads.begun(partial(load, one), f"load {one.name}") for one in instances))
        return dict(zip(instances, tasks, strict=True))

    async def _load(self, instance: Instance) -> None:
        construction = Construction(
            self.make_host, self.tell, self._process_ended, self.give, self.privileges, self.cgroups
        )
        await construction.of(instance, self.runner)

    async def _load_beside(self, instance: Instance) -> None:
        await self._load(instance)
        if self._donors(instance):
            await self._lives.prepare(instance)

    def _donors(self, instance: Instance) -> set[str]:
        """Return the plugins that must stop before this one starts: its predecessor, and the owners of its claims."""
        predecessor = self.registry.slots.get(instance.name)
        own = {instance.name} if predecessor is not None and predecessor.loaded is not None else set()
        return own | self.registry.owners(instance.claims)

    async def _exchange(self, loads: Mapping[Instance, _Task], leaving: Collection[str]) -> set[str]:
        """Once plugins are loaded, put them in their places and let others go; return which were displaced."""
        if loads:
            await asyncio.wait(loads.values())
        loaded = [one for one, load in loads.items() if self._has_loaded(one, load)]
        verdict = self.registry.admissible(loaded, leaving)
        for one in loads:
            if one.name in verdict.refused:
                self._refuse(one, PluginRefused(verdict.refused[one.name]), verdict.owners[one.name])
            if one not in verdict.accepted:
                self._lives.discard(one)
        newest = {slot.name: slot.instance for slot in self.registry.slots.values()} | {one.name: one for one in loaded}
        work = self._swap(verdict.accepted, {*leaving, *verdict.displaced})
        # Their sections stand as refused, unless they are removed anyway.
        for name in verdict.displaced.keys() & set(self.registry.order):
            refused = Instance(newest[name].slot, newest[name].section)
            refused.examined = Examined(distribution=newest[name].distribution)
            self.registry.expect(refused)
            self._refuse(refused, PluginRefused(verdict.displaced[name]), verdict.owners[name])
        # Nothing was awaited since the plugins were chosen: no call sees a half-done exchange.
        await asyncio.gather(*work)
        return set(verdict.displaced)

    def _has_loaded(self, instance: Instance, load: _Task) -> bool:
        removed = self.registry.slots.get(instance.name) is not instance.slot
        if removed or instance.instead_of not in {None, instance.slot.instance}:
            load.exception()  # nobody needs it any more, nor why it failed
            return False
        try:
            load.result()
        except TryAgain as error:  # it hangs, or an earlier attempt still does
            self._postpone(instance, error)
        except PluginError as error:
            if _follows_a_dead_one(instance):  # it could be loaded before
                self._postpone(instance, error)
            else:
                self._refuse(instance, error)
        else:
            return True
        return False

    def _swap(self, entering: Sequence[Instance], leaving: set[str]) -> "Sequence[Coroutine[Any, Any, None] | _Task]":
        """Give every claim its new owner, and return what remains to be done: the stops and the starts.

        Calls for claims that were served wait; others are refused until the start is done.
        """
        donors = {one: self._donors(one) for one in entering}
        going = leaving.union(one.name for one in entering)
        old = {name: former for name, former in self.registry.plugins.items() if name in going}
        ran = {name for name, former in old.items() if former.slot.state == "running"}
        stops = {}
        for name, former in old.items():
            stops[name] = self._lives.begin_to_retire(former)
            self.devices.hold(name)
        waited_for = {one for one, before in donors.items() if before & ran or one.slot.held}
        for one in waited_for:
            one.slot.hold()  # before its state changes: the threads of calls look for routes meanwhile
        self.registry.exchange(leaving, entering)
        starts = []
        for one, before in donors.items():
            if one not in waited_for:
                one.slot.enter("starting")
            former_section = old[one.name].section if one.name in ran else None
            starts.append(self._take_over(one, [stops[name] for name in before & stops.keys()], former_section))
        ends = [self.devices.end(name) for name in leaving - old.keys()]  # of what an earlier daemon served
        return [*stops.values(), *ends, *starts]

    async def _take_over(
        self, instance: Instance, stops: Collection[_Task] = (), former: PluginSection | None = None
    ) -> None:
        """Start an instance that is already in its place, and serve it; or fall back, or retry later."""
        if stops:
            await asyncio.wait(stops)
        if not self._stands(instance):
            return
        error = await self._lives.start(instance)
        if error is not None and former is not None:
            instance, error = await self._fall_back(instance, former, error)
        self._started(instance, error)

    async def _fall_back(
        self, instance: Instance, former: PluginSection, error: PluginError
    ) -> tuple[Instance, PluginError | None]:
        """Start the former configuration in a new instance, since a stopped one is never started again.

        Return the instance that now stands for the section, and why it is not running.
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
        failed = await self._lives.start(again)
        if failed is None or not self._stands(again):
            self._lives.discard(instance)
            return again, failed
        with suppress(PluginRefused):  # what only the new configuration claims may have found another owner
            self.registry.adopt(instance)
            return instance, error
        return again, failed

    # --- what becomes of one ---------------------------------------------------------------------------------------

    def _started(self, instance: Instance, error: PluginError | None) -> None:
        if not self._stands(instance):
            return
        if error is not None:
            self._postpone(instance, error)
            return
        slot = instance.slot
        slot.enter("running")
        slot.retry_after, slot.gone_at = FIRST_RETRY, 0.0
        LOG.info("plugin %s runs: %s", slot.name, ", ".join(map(str, instance.claims)) or "no claims")
        self.devices.serve(slot.name)

    def _stands(self, instance: Instance) -> bool:
        """Whether it still stands for its section: it was not removed or replaced, and the daemon is not ending."""
        return self.registry.slots.get(instance.name) is instance.slot and instance.slot.instance is instance

    def _refuse(self, instance: Instance, error: PluginError, outdone_by: str = "") -> None:
        """Give up an instance that cannot be loaded."""
        LOG.error("plugin %s is refused: %s", instance.name, one_line(str(error)))
        if not self._kept(instance, error):
            instance.slot.enter("refused", str(error))
            instance.slot.outdone_by = outdone_by
            self.devices.withdraw(instance.name, str(error))

    def _postpone(self, instance: Instance, error: PluginError) -> None:
        slot = instance.slot
        if slot.fault != str(error):
            LOG.error("plugin %s does not start: %s", slot.name, error)
        if not self._kept(instance, error):
            slot.enter("failed", str(error))
            slot.retry_at = time.monotonic() + slot.retry_after
            slot.retry_after = min(slot.retry_after * 2, LAST_RETRY)
            if not slot.gone_at:  # otherwise it may be back in time, see `withdraw_absent`
                self._withdraw(slot)

    def _kept(self, instance: Instance, error: PluginError) -> bool:
        """When a new section cannot be loaded, stay with the former one if it has a plugin."""
        slot = instance.slot
        if _follows_a_dead_one(instance):
            return False
        if slot.instance is not instance and slot.loaded is not None:
            slot.rejected = f"its new configuration cannot be loaded, the former one serves: {error}"
        return slot.instance is not instance


def _follows_a_dead_one(instance: Instance) -> bool:
    """Whether an instance is to stand for a section whose process has ended."""
    return instance.slot.instance is not instance and instance.slot.loaded is not None and instance.slot.instance.dead
