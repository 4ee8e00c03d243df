"""What is looked at again and again while plugins run, and what an administrator may ask for one of them.

Owns: when a failed plugin is started again or has been away too long, which process hangs, whether plugins are
healthy, a plugin's renewal, what the processes of a killed daemon left, and how much the daemon has itself.
Refuses: the steps of a start or an exchange (`lifecycle`), and timers (the daemon's).
"""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nodeplug.contract.errors import NotFound, PluginError, TryAgain
from nodeplug.hosting.call import Call
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.overdue import missed
from nodeplug.hosting.slot import Slot
from nodeplug.process.aside import aside
from nodeplug.process.descriptor_reserve import DescriptorReserve
from nodeplug.worker.memory import Memory

LOG: Final = logging.getLogger(__name__)
MEMORY_INTERVAL: Final = 0.1
AT_ONCE: Final = 1.5
"""Multiple of `memory` at which the daemon kills itself instead of stopping in order."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """Looks after the plugins of a life cycle. Used only from the event loop."""

    lifecycle: Lifecycle

    async def sweep(self) -> None:
        """Remove the cgroups of processes that a killed daemon left, once, also if no section has limits any more."""
        if self.lifecycle.cgroups is not None:
            with suppress(TryAgain):  # no thread is left: the first process with limits sees to it
                await aside(self.lifecycle.cgroups.prepare, "sweep cgroups")

    async def bound(self, memory: int, end: Callable[[], None]) -> None:
        """End the daemon when it has more resident than so many bytes: in order, and at once at half as much again.

        It also lets the daemon use its last descriptors when the others are used up.

        A thread looks, since whatever takes the memory may keep the event loop. An end in order takes seconds, in
        which one that takes gigabytes would take all that the node has.
        """
        loop, cancelled = asyncio.get_running_loop(), threading.Event()

        def ends(excess: str) -> None:
            LOG.error(
                "the daemon ends, to be started again: %s; plugins in processes have a `memory` of their own", excess
            )
            end()

        def tell(excess: str) -> None:
            loop.call_soon_threadsafe(ends, excess)

        looking = threading.Thread(
            target=_bound, args=(memory, tell, cancelled, self.lifecycle.runner.reserve), name="memory", daemon=True
        )
        looking.start()
        try:
            await loop.create_future()
        finally:
            cancelled.set()

    async def retry_failed(self) -> None:
        """Start every failed plugin again whose pause is over; one that is away too long offers no devices."""
        for slot in self._slots():
            if slot.state != "failed":
                continue
            self.lifecycle.withdraw_absent(slot)
            if slot.retry_at <= time.monotonic():
                self.lifecycle.start_again(slot)

    async def end_hanging(self) -> None:
        """Kill every process whose plugin does not come back; it is started again like one that ended by itself."""
        for slot in self._slots():
            worker, most = slot.instance.worker, slot.instance.section.restart_after_overdue
            if worker is not None and worker.alive and slot.is_stuck(most):
                worker.kill(f"{missed(slot.overdue)} of its calls did not come back in time")

    async def check_health(self) -> Mapping[str, str]:
        """Ask every running plugin for its health; return the reason of each unhealthy one, by section name."""
        slots = self._slots()
        await asyncio.gather(*(self._check(slot) for slot in slots if slot.state == "running"))
        return {slot.name: slot.reason or slot.state for slot in slots if slot.state != "running" or slot.reason}

    async def check_wanted(self, *tell: Callable[[], Awaitable[None]]) -> None:
        """Wait until plugins want to be asked for their health, and ask them.

        Args:
            tell: called afterwards, one after the other, so that the rest of the daemon knows at once.
        """
        registry = self.lifecycle.registry
        await registry.health_news.wait()
        registry.health_news.clear()
        wanted = [registry.slots[name] for name in registry.health_wanted if name in registry.slots]
        registry.health_wanted.clear()
        await asyncio.gather(*(self._check(slot) for slot in wanted if slot.state == "running"))
        for one in tell:
            await one()

    async def renew(self, name: str) -> None:
        """Start a plugin anew beside the instance that serves, and exchange them as if its section had changed.

        Raises:
            NotFound: no such section is enabled.
            PluginError: the new instance cannot be loaded or started; the message says what serves now.
        """
        slot = self.lifecycle.registry.slots.get(name)
        if slot is None:
            known = ", ".join(sorted(self.lifecycle.registry.slots)) or "none"
            raise NotFound(f"no plugin {name!r} is enabled; there is a [plugins.…] section for: {known}")
        slot.rejected = ""
        await self.lifecycle.bring_up([slot.instance.anew()])
        if slot.state != "running" or slot.rejected:
            raise PluginError(f"plugin {name!r} is {slot.state}: {slot.reason}")

    async def _check(self, slot: Slot) -> None:
        if "health" not in slot.instance.hooks:
            return
        call, fault = Call("health", f"plugin:{slot.name}", f"health of {slot.name}"), ""
        try:
            await self.lifecycle.runner.call(slot.instance, "health", call, {})
        except PluginError as error:
            fault = str(error)
            if slot.fault != fault:
                LOG.warning("plugin %s is not well: %s", slot.name, error)
        slot.fault = fault

    def _slots(self) -> list[Slot]:
        return list(self.lifecycle.registry.slots.values())


def _bound(memory: int, end: Callable[[str], object], cancelled: threading.Event, reserve: DescriptorReserve) -> None:
    """Check the memory and the descriptors of this process until cancelled."""
    own, told = os.getpid(), False
    while not cancelled.wait(MEMORY_INTERVAL):
        reserve.look()
        if excess := Memory(int(AT_ONCE * memory)).excess(own):
            os.set_blocking(2, False)  # nobody may read it any more
            with suppress(OSError):
                os.write(2, f"the daemon ends at once, to be started again: {excess}\n".encode())
            os.kill(own, signal.SIGKILL)
        elif not told and (excess := Memory(memory).excess(own)):
            told = True
            with suppress(RuntimeError):  # the loop is closed: it has ended
                end(excess)
