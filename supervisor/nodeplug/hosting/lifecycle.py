"""All configured plugins: what a configuration changes about them, retries, health, and their end.

Owns: which sections are to be brought up, and when; and what a slot says of its plugin's health, which has no further
consequences: a plugin that is not well goes on serving.
Refuses: to touch a plugin whose section did not change, and to let one plugin's failure reach another. How a plugin is
brought up is told in `exchange`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from nodeplug.config import PluginSection
from nodeplug.config.mistakes import Location, told
from nodeplug.contract.errors import PluginError
from nodeplug.contract.host import Host
from nodeplug.hosting.call import Call
from nodeplug.hosting.exchange import Exchange
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.served_devices import ServedDevices
from nodeplug.hosting.slot import Instance, Slot

LOG: Final = logging.getLogger(__name__)
LAST_PATIENCE: Final = 10.0
"""Seconds that the end of the daemon waits for plugins that a reload is just stopping."""


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

    def differs(name: str) -> bool:
        return now[name].model_copy(update={"deadline": wanted[name].deadline}) != wanted[name]

    return Difference(
        tuple(name for name in now if name not in wanted),
        tuple(name for name in wanted if name not in now),
        tuple(name for name in now if name in wanted and differs(name)),
    )


class Lifecycle:
    """The plugins of a configuration. Used from the event loop alone.

    Args:
        registry: holds a slot for each of them.
        runner: calls their hooks.
        make_host: makes what a plugin gets of the daemon, by section name.
        devices: what serves the plugins' resources.
        tell: writes a mistake in a section with its file and line.
    """

    def __init__(
        self,
        registry: Registry,
        runner: Runner,
        make_host: Callable[[str], Host],
        devices: ServedDevices | None = None,
        tell: Callable[[Location, str], str] = told,
    ) -> None:
        self.registry = registry
        self.runner = runner
        self._exchange = Exchange(registry, runner, make_host, devices or ServedDevices(), tell)
        self._retries: set[asyncio.Task[None]] = set()

    async def load_all(self, sections: Mapping[str, PluginSection]) -> None:
        """Load sections without starting them: to look at a configuration, not to serve it."""
        instances = self._expect(sections)
        for instance in instances:
            self.registry.expect(instance)
        loads = [asyncio.create_task(self._exchange.load(instance)) for instance in instances]
        if loads:
            await asyncio.wait(loads)
        for instance, load in zip(instances, loads, strict=True):
            try:
                load.result()
                self.registry.adopt(instance)
            except PluginError as error:
                self._exchange.refuse(instance, error)

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
        if self._exchange.ending.is_set():
            return Difference((), (), ())
        self._exchange.tell = tell or self._exchange.tell
        wanted = {name: section for name, section in sections.items() if section.enabled}
        slots = self.registry.slots
        changes = difference({name: slot.instance.section for name, slot in slots.items()}, wanted)
        renewed = {*changes.added, *changes.changed}
        for name in wanted.keys() & slots.keys() - renewed:
            slots[name].rejected = ""  # the section is the one that is in force, again
            if slots[name].state == "refused":
                renewed.add(name)  # the owner of a doubly claimed name may be gone now
        instances = self._expect(wanted)
        await self._exchange.bring_up([one for one in instances if one.name in renewed], changes.removed)
        return changes

    def _expect(self, sections: Mapping[str, PluginSection]) -> list[Instance]:
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
                failed = slot.instance
                again = self._exchange.bring_up([failed]) if slot.loaded is None else self._exchange.start(failed)
                retry = asyncio.create_task(again, name=f"retry {slot.name}")
                self._retries.add(retry)
                retry.add_done_callback(self._retries.discard)

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
        self._exchange.ending.set()
        slots = list(self.registry.slots.values())
        self.registry.end()
        await asyncio.gather(*(self._end(slot, grace) for slot in slots))
        if self._exchange.stopping:
            await asyncio.wait(self._exchange.stopping, timeout=LAST_PATIENCE)

    async def _end(self, slot: Slot, grace: float) -> None:
        inside = slot.inside()
        await self._exchange.devices.end(slot.name)
        if slot.instance.begun and inside:
            await asyncio.wait(inside, timeout=grace)
        await self._exchange.stop(slot.instance)
        LOG.info("plugin %s is unloaded", slot.name)
