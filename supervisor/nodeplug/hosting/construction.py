"""Where an instance of a plugin comes to be: in a thread of the daemon, or in a process of its own.

Owns: which of the two, and that no process stays when its plugin cannot be loaded.
Refuses: what the contract demands of a plugin (`nodeplug.loading`), and what becomes of it afterwards (`lifecycle`).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from nodeplug.config import PluginSection
from nodeplug.config.mistakes import Location
from nodeplug.config.privileges import Privileges
from nodeplug.contract.errors import TryAgain
from nodeplug.contract.host import Host
from nodeplug.hosting import remote
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Instance
from nodeplug.loading.classes import Place, PluginRefused
from nodeplug.loading.discovery import place_of
from nodeplug.loading.examination import Examined, construct
from nodeplug.worker.memory import Memory
from nodeplug.worker.process import Worker

LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Construction:
    """Constructs instances.

    Attributes:
        make_host: makes a plugin's host, by section name; called in the thread that loads it.
        tell: writes a mistake in a section with its file and line.
        ended: is told, on the loop, that the process of an instance has ended, and why.
        give: makes a section's folders and gives them to its user.
    """

    make_host: Callable[[str], Host]
    tell: Callable[[Location, str], str]
    ended: Callable[[Instance, str], None]
    give: Callable[[str, PluginSection], None]

    async def of(self, instance: Instance, runner: Runner) -> None:
        """Construct the plugin of an instance; raise what `Runner.load` raises, PluginRefused among it."""
        loop = asyncio.get_running_loop()

        def ended(why: str) -> None:
            with suppress(RuntimeError):  # the loop is closed: the daemon is ending
                loop.call_soon_threadsafe(self.ended, instance, why)

        instance.worker, instance.abandoned = None, False
        alone = instance.slot.loaded is None  # nobody uses its folders; otherwise they are given before its start
        try:
            instance.take(await runner.load(instance, lambda: self._construct(instance, ended, alone=alone)))
        except BaseException:
            instance.kill_process("its plugin cannot be loaded")  # it may hang, and nobody waits any more
            raise
        if alone:
            instance.slot.owner = instance.section.user, instance.section.group

    def _construct(self, instance: Instance, ended: Callable[[str], None], *, alone: bool) -> Examined:
        python = instance.section.python
        place = None if python else place_of(instance.uses)  # what a Python of its own has, only that one knows
        instance.examined = Examined(distribution=place.distribution if place else python)  # even if it is refused
        if alone:
            self.give(instance.name, instance.section)
        if instance.section.isolation == "process":
            examined = self._in_process(instance, place or instance.uses, ended)
            if not examined.wrappers:
                return examined
            _check_thread(instance, "it wraps hooks of other plugins")
            LOG.warning("plugin %s wraps hooks of other plugins, so it runs as a thread of the daemon", instance.name)
            instance.end_process()
            instance.worker = None
        _check_thread(instance, 'its section does not say `isolation = "process"`')
        found = (place or place_of(instance.uses)).load()
        make_host = partial(self.make_host, instance.name)
        return construct(instance.name, found, instance.section.config, make_host, self.tell)

    def _in_process(self, instance: Instance, place: Place | str, ended: Callable[[str], None]) -> Examined:
        host = self.make_host(instance.name)
        section = instance.section
        memory = Memory(section.memory)
        instance.worker = worker = Worker(instance.name, ended, _privileges(instance), memory, section.python)
        if instance.abandoned:
            instance.end_process()
            raise TryAgain(f"plugin {instance.name!r} took too long to load")
        return remote.load(worker, place, section, host, self.tell)


def _privileges(instance: Instance) -> Privileges:
    try:
        return instance.section.privileges
    except ValueError as error:
        raise PluginRefused(f"plugin {instance.name!r} has no process: {error}") from None


def _check_thread(instance: Instance, why: str) -> None:
    """Refuse to run a plugin in a thread of the daemon whose section asks for less than the daemon may."""
    section = instance.section
    advice = "remove the key" if section.isolation == "process" else 'set `isolation = "process"`, or remove the key'
    keys = [
        key
        for key in ("python", "user", "group", "capabilities", "nice", "memory", "tasks")
        if getattr(section, key) not in ("", None)
    ]
    if keys:
        raise PluginRefused(
            f"plugin {instance.name!r} runs as a thread of the daemon ({why}), for which `{keys[0]}` cannot be kept; "
            f"{advice}"
        )
