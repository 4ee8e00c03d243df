"""Where an instance of a plugin comes to be: in a thread of the daemon, or in a process of its own.

Owns: which of the two (the section decides, then the class; then it is a process), and that no process stays when its
plugin cannot be loaded.
Refuses: what the contract demands of a plugin (`nodeplug.loading`), and what becomes of it afterwards (`lifecycle`).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from nodeplug.config import PluginSection
from nodeplug.config.mistakes import Location
from nodeplug.config.privileges import Privileges, own_user
from nodeplug.contract.errors import TryAgain
from nodeplug.contract.host import Host
from nodeplug.hosting import remote
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Instance
from nodeplug.loading.classes import Place, PluginRefused
from nodeplug.loading.discovery import place_of
from nodeplug.loading.examination import Examined, construct
from nodeplug.worker.cgroups import Cgroups
from nodeplug.worker.limits import Limits
from nodeplug.worker.process import Worker

LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Construction:
    """Constructs instances.

    Attributes:
        make_host: makes a plugin's host, by section name; called in the thread that loads it.
        tell: writes a mistake in a section with its file and line.
        ended: is told, on the loop, that the process of an instance has ended, and why.
        give: makes a section's folders and gives them to who runs its plugin.
        privileges: says what the process of a section's plugin runs with; may block, may raise ValueError.
        cgroups: of processes with limits; None: plugins are only looked at, and what limits them here does not matter.
    """

    make_host: Callable[[str], Host]
    tell: Callable[[Location, str], str]
    ended: Callable[[Instance, str], None]
    give: Callable[[str, Privileges], None]
    privileges: Callable[[str, PluginSection], Privileges]
    cgroups: Cgroups | None

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
        if alone and instance.privileges is not None:
            instance.slot.owner = instance.privileges.owner

    def _construct(self, instance: Instance, ended: Callable[[str], None], *, alone: bool) -> Examined:
        python = instance.section.python
        place = None if python else place_of(instance.uses)  # what a Python of its own has, only that one knows
        instance.examined = Examined(distribution=place.distribution if place else python)  # even if it is refused
        asked = instance.section.isolation
        if asked == "thread":
            return self._in_thread(instance, place, "its section says so", alone=alone)
        if asked is None and place is not None and place.bundled and place.load().asks_for_thread:
            return self._in_thread(instance, place, "its class asks for that", alone=alone)
        try:
            return self._in_process(instance, place or instance.uses, ended, alone=alone)
        except remote.NeedsThread as need:
            if asked == "process":  # whoever wrote that trusts the plugin with no more
                instance.end_process()
                raise PluginRefused(
                    f"plugin {instance.name!r} can only be a thread of the daemon ({need}), and its section says "
                    '`isolation = "process"`; write `isolation = "thread"` if it may have all rights of the daemon'
                ) from None
            LOG.info("plugin %s runs as a thread of the daemon: %s", instance.name, need)
            instance.end_process()
            instance.worker = None
            return self._in_thread(instance, place, str(need), alone=alone)

    def _in_thread(self, instance: Instance, place: Place | None, why: str, *, alone: bool) -> Examined:
        _check_thread(instance, why)
        instance.isolation = "thread"
        self._belongs_to(instance, Privileges(name=own_user()), give=alone)
        make_host = partial(self._host, instance)
        found = (place or place_of(instance.uses)).load()
        return construct(instance.name, found, instance.section.config, make_host, self.tell)

    def _host(self, instance: Instance) -> Host:
        return replace(self.make_host(instance.name), serves_claims=instance.section.serve == "dra")

    def _belongs_to(self, instance: Instance, privileges: Privileges, *, give: bool) -> None:
        instance.privileges = privileges
        if give:
            self.give(instance.name, privileges)

    def _in_process(
        self, instance: Instance, place: Place | str, ended: Callable[[str], None], *, alone: bool
    ) -> Examined:
        instance.isolation = "process"
        host = self._host(instance)
        section = instance.section
        privileges, limits = self._allowance(instance)
        try:
            self._belongs_to(instance, privileges, give=alone)
        except BaseException:
            limits.end()  # a cgroup may be there already
            raise
        instance.worker = worker = Worker(instance.name, ended, privileges, limits, section.python)
        if instance.abandoned:
            instance.end_process()
            raise TryAgain(f"plugin {instance.name!r} took too long to load")
        return remote.load(worker, place, section, host, self.tell)

    def _allowance(self, instance: Instance) -> tuple[Privileges, Limits]:
        """Return what a process of a plugin may do and have."""
        section, name = instance.section, instance.name
        try:
            privileges = self.privileges(name, section)
        except ValueError as error:
            raise PluginRefused(f"plugin {name!r} has no process: {error}") from None
        cgroups = self.cgroups or Cgroups(False)
        limits = Limits.of(cgroups, name, section.memory, section.tasks)
        if limits.cgroup.limits_tasks or (self.cgroups is None and privileges.uncounted):
            return replace(privileges, tasks=None), limits
        if section.tasks is not None and privileges.uncounted:
            limits.end()
            raise PluginRefused(
                f"plugin {name!r} has no process: nothing limits its `tasks`: no cgroup does, since "
                f"{cgroups.lacks('pids')}; without one, {privileges.uncounted}"
            )
        return privileges, limits


def _check_thread(instance: Instance, why: str) -> None:
    """Refuse to run a plugin in a thread of the daemon whose section asks for less than the daemon may."""
    section = instance.section
    advice = "remove the key" if section.isolation == "process" else 'set `isolation = "process"`, or remove the key'
    keys = [
        key
        for key in ("python", "user", "group", "capabilities", "nice", "memory", "tasks")
        if getattr(section, key) not in ("", None)
    ]
    if section.user == own_user() and keys[:1] == ["user"]:  # that can be kept
        keys = keys[1:]
    if keys:
        raise PluginRefused(
            f"plugin {instance.name!r} runs as a thread of the daemon ({why}), for which `{keys[0]}` cannot be kept; "
            f"{advice}"
        )
