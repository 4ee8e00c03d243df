"""The life of one instance: its own hooks, from `prepare` to `stop`, and its end.

Owns: calling them, whose folders they find, and the stops that are still in progress.
Refuses: to know which instance stands for a section, and what becomes of one whose start failed (`lifecycle`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from nodeplug.config.privileges import Privileges
from nodeplug.contract.errors import PluginError
from nodeplug.hosting.call import Call
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.served_devices import ServedDevices
from nodeplug.hosting.slot import Instance
from nodeplug.process.aside import aside
from nodeplug.process.waiting import until

LOG: Final = logging.getLogger(__name__)
CALL_PATIENCE: Final = 30.0
"""Seconds that a reload gives calls inside a plugin to end before it is stopped; its successor's calls wait."""
LAST_PATIENCE: Final = 10.0
"""Seconds that the end of the daemon waits for plugins that a reload is stopping."""
_Task = asyncio.Task[None]


@dataclass(slots=True)
class Tasks:
    """Tasks that go on by themselves; the loop holds no reference to them."""

    running: set[_Task] = field(default_factory=set)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> _Task:
        """Start one, and hold a reference to it until it has ended."""
        task = asyncio.create_task(work, name=name)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task


@dataclass(frozen=True, slots=True)
class Lives:
    """Leads instances through their lives. Used only from the event loop.

    Attributes:
        runner: calls their hooks.
        devices: what they serve to kubelet.
        give: makes a section's folders and gives them to who runs its plugin; may block.
        ending: the daemon ends, and waits for no start in progress.
    """

    runner: Runner
    devices: ServedDevices
    give: Callable[[str, Privileges], None]
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    _stopping: Tasks = field(default_factory=Tasks)

    async def prepare(self, instance: Instance) -> None:
        """Call `prepare` beside the instance that still serves; raise what it raises."""
        if "prepare" in instance.hooks:
            instance.begun = True
            await self._call(instance, "prepare")

    async def start(self, instance: Instance) -> PluginError | None:
        """Call `start`; return its error."""
        instance.slot.state, instance.beginning = "starting", asyncio.get_running_loop().create_future()
        try:
            await self._give_folders(instance)
            await self._call(instance, "start")
        except PluginError as error:
            return error
        else:
            instance.begun = True
            return None
        finally:
            instance.beginning.set_result(None)

    async def retire(
        self, instance: Instance, inside: "set[asyncio.Future[Any]]", patience: float | None = None
    ) -> None:
        """Stop an instance once the calls inside it have ended, or had `patience` seconds."""
        if instance.slot.loaded is None:  # it has no successor
            await self.devices.end(instance.name, keep=self.ending.is_set())
        if instance.begun and inside:
            _, late = await asyncio.wait(inside, timeout=CALL_PATIENCE if patience is None else patience)
            if late:
                LOG.warning("plugin %s is stopped with %d calls inside it", instance.name, len(late))
        await self._stop(instance)
        LOG.info("plugin %s is unloaded", instance.name)

    def begin_to_retire(self, instance: Instance) -> _Task:
        """Retire an instance in a task, for which the end of the daemon waits a moment."""
        return self._stopping.start(self.retire(instance, instance.slot.inside()), f"stop {instance.name}")

    def discard(self, instance: Instance) -> None:
        """Stop an instance that was prepared, at least in part, and is not needed."""
        if instance.begun:
            self._stopping.start(self._stop(instance), f"stop {instance.name}")
        else:
            instance.end_process()

    async def settle(self) -> None:
        """Wait a moment for every stop in progress."""
        if self._stopping.running:
            await asyncio.wait(self._stopping.running, timeout=LAST_PATIENCE)

    async def _stop(self, instance: Instance) -> None:
        """Stop an instance that was started; wait for a start in progress, unless the daemon is ending."""
        if instance.beginning is not None:
            await until(instance.beginning, self.ending)
        begun, instance.begun = instance.begun, False
        try:
            if begun:
                await self._call(instance, "stop")
        except PluginError as error:
            LOG.error("plugin %s did not stop: %s", instance.name, error)
        finally:
            instance.end_process()

    async def _give_folders(self, instance: Instance) -> None:
        """Give the folders to the user of an instance that follows one of another user, which has stopped."""
        slot, privileges = instance.slot, instance.privileges
        if privileges is not None and slot.owner != privileges.owner:
            await aside(partial(self.give, slot.name, privileges), f"folders of {slot.name}"[:100])
            slot.owner = privileges.owner

    async def _call(self, instance: Instance, hook: str) -> None:
        """Call a life-cycle hook, if the plugin has it."""
        if hook in instance.hooks:
            # A key per instance: one that hangs must not keep later instances from starting.
            call = Call(hook, f"plugin:{instance.name}", key=f"instance {instance.number} of {instance.name}")
            await self.runner.call(instance, hook, call, {})
