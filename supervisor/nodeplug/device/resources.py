"""Every resource of every running plugin, one task each; at the daemon's start, of those that an earlier one served.

Owns: which `ResourceTask` runs for which plugin, what becomes of last known resources, and refresh requests by name.
Refuses: lists, sockets, registration (the task's), and plugins' lives.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeplug.contract.errors import PluginError
from nodeplug.contract.values.devices import DeviceId, ResourceName
from nodeplug.device.caller import Caller, LateCaller
from nodeplug.device.kubelet import KubeletFolders, Mode
from nodeplug.device.last_known import LastKnown, Remembered
from nodeplug.device.resource import ResourceStatus, ResourceTask
from nodeplug.hosting.served_devices import ServedDevices
from nodeplug.process.lane import Unanswered

if TYPE_CHECKING:
    from nodeplug.hosting.slot import Route

LOG: Final = logging.getLogger(__name__)
_DISCONNECTION: Final = 30.0
"""Seconds within which kubelet may still notice that the daemon before this one has ended."""
_TURN: Final = 0.02


@dataclass(slots=True)
class Resources(ServedDevices):
    """The device side of the daemon. Used only from the event loop.

    Attributes:
        routes: the way to every resource that a loaded plugin claims.
        poll_interval: seconds between two listings.
        last_known: what kubelet was told of each resource; None remembers nothing.
        withheld: returns which ids of a resource claims have, each with the reason why kubelet may not give it away.
    """

    runner: Caller
    folders: KubeletFolders
    routes: "Callable[[], Sequence[Route]]"
    mode: Mode
    poll_interval: float
    last_known: LastKnown | None = None
    withheld: Callable[[ResourceName], Mapping[DeviceId, str]] = field(default=lambda _: {})
    _recalled: bool = False
    _tasks: dict[ResourceName, tuple[ResourceTask, asyncio.Task[None]]] = field(default_factory=dict)
    _refused: dict[ResourceName, tuple[str, str]] = field(default_factory=dict)
    _outliving: bool = False

    def serve(self, plugin: str) -> None:
        """Begin to list and register the resources of a plugin that runs; those that are served already stay so."""
        claimed = {ResourceName(route.claim.name): route for route in self.routes()}
        self._forget_refused(plugin)
        for name, route in claimed.items():
            if route.plugin != plugin:
                continue
            if name in self._tasks:
                self._tasks[name][0].take_over(route)
            else:
                self._begin(name, route)
        # Of any plugin: a claim may have been moved to one that did not start, and went back to what it was without it.
        for name in self._tasks.keys() - claimed.keys():
            task = self._tasks[name][0]
            if task.plugin == plugin or not task.awaited:
                self._end(name)

    async def recall(self, sections: Collection[str]) -> None:
        """Serve what an earlier daemon of this boot served, from its last lists, until the plugins are there.

        Args:
            sections: those that are enabled; once more when the configuration has been read, which may have changed.
        """
        known = await self.last_known.recall() if self.last_known is not None and not self._recalled else []
        self._recalled = True
        for one in known:
            self._begin(one.resource, one)
        for name, (task, _) in list(self._tasks.items()):
            if task.awaited and task.plugin not in sections:
                LOG.info("%s is not offered any more: there is no section %s", name, task.plugin)
                self._end(name)

    def take_over(
        self,
        runner: Caller,
        routes: "Callable[[], Sequence[Route]]",
        withheld: Callable[[ResourceName], Mapping[DeviceId, str]],
    ) -> None:
        """Go on with the daemon that has been imported meanwhile."""
        if isinstance(self.runner, LateCaller):
            self.runner.begin(runner)
        self.routes, self.withheld = routes, withheld

    @property
    def told(self) -> bool:
        """Whether kubelet listens for every resource, or cannot be told for now."""
        return all(status.streams or status.error for status in self.status())

    def _begin(self, name: ResourceName, route: "Route | Remembered") -> None:
        try:
            task = ResourceTask(
                route, self.runner, self.folders, self.last_known, mode=self.mode, poll_interval=self.poll_interval
            )
            task.withheld = lambda: self.withheld(name)
        except PluginError as error:
            LOG.error("%s of plugin %s cannot be served: %s", name, route.plugin, error)
            self._refused[name] = (route.plugin, str(error))
            return
        self._tasks[name] = task, asyncio.create_task(task.run(), name=f"resource {name}")

    def _end(self, name: ResourceName, *, keep: bool = False) -> asyncio.Task[None]:
        """Take a resource off kubelet; its last list is forgotten, unless it is to be kept."""
        _, running = self._tasks.pop(name)
        running.cancel()
        if self.last_known is not None and not keep:
            self.last_known.forget(name)
        return running

    def hold(self, plugin: str) -> None:
        """Keep what is served of a plugin and ask nothing of it: it is about to be exchanged."""
        for name in self._of(plugin):
            self._tasks[name][0].hold()

    def withdraw(self, plugin: str, why: str) -> None:
        """List every device of a plugin as unhealthy: it could not be started, or not even be loaded."""
        for route in self.routes():
            if route.plugin == plugin and route.claim.name in self._tasks:
                self._tasks[ResourceName(route.claim.name)][0].withdraw(why, route)
        for name in self._of(plugin):
            if self._tasks[name][0].awaited:
                self._tasks[name][0].withdraw(why)

    async def end(self, plugin: str, *, keep: bool = False) -> None:
        """Take a plugin's resources off kubelet, except those that another plugin took over, and wait for the end."""
        if self._outliving:
            return
        taken = {route.claim.name for route in self.routes() if route.plugin != plugin}
        self._forget_refused(plugin)
        ending = [self._end(name, keep=keep) for name in self._of(plugin) if name not in taken]
        await asyncio.gather(*ending, return_exceptions=True)

    def _of(self, plugin: str) -> list[ResourceName]:
        return [name for name, (task, _) in self._tasks.items() if task.plugin == plugin]

    def _forget_refused(self, plugin: str) -> None:
        for refused in [name for name, (owner, _) in self._refused.items() if owner == plugin]:
            del self._refused[refused]

    def refresh(self, resource: ResourceName) -> None:
        """Ask for a new listing; an unknown name is ignored, since a plugin may ask before it runs."""
        if resource in self._tasks:
            self._tasks[resource][0].refresh()

    # --- two daemons at once --------------------------------------------------------------------------------------

    def outlive_plugins(self) -> None:
        """From now on keep every stream open until this process ends, and ask no plugin: another daemon takes over."""
        self._outliving = True
        for task, _ in self._tasks.values():
            task.leave()

    def move(self, sockets: Mapping[str, str]) -> None:
        """Have another daemon answer what kubelet has asked here meanwhile, at its sockets, by resource."""
        for name, (task, _) in self._tasks.items():
            task.move(Path(sockets[name]) if name in sockets else None)

    @property
    def asked(self) -> int:
        """How many requests of kubelet are not answered yet: it waits for ever for one whose connection stays open."""
        return sum(task.asked for task, _ in self._tasks.values())

    def sockets(self) -> dict[str, str]:
        """Return the paths of the sockets, by resource."""
        return {status.resource: str(status.socket) for status in self.status() if status.socket is not None}

    def register_again(self, reason: str) -> None:
        """Register every resource once more: a daemon that was to take over had registered them, and has failed."""
        for task, _ in self._tasks.values():
            task.register_again(reason)

    def expect_disconnection(self) -> None:
        """Be ready to register again at once: the daemon before this one has ended."""
        for task, _ in self._tasks.values():
            task.expect_disconnection(_DISCONNECTION)

    def socket_names(self) -> list[Path]:
        """Return the names of all sockets and of their connections, as the kernel tells them."""
        names = (task.socket_name() for task, _ in self._tasks.values())
        return [name for name in names if name is not None]

    async def sweep(self) -> None:
        """Remove the sockets of daemons that have ended; the next registration does that too."""
        with suppress(Unanswered):
            await self.folders.lane.run(self.folders.sweep)

    async def registered(self, seconds: float) -> None:
        """Wait until kubelet has opened a stream for every resource that has a list, if it is there; not for ever."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            states = [task.status() for task, _ in self._tasks.values()]
            if all(state.streams or not state.listed or _kubelet_is_away(state) for state in states):
                return
            await asyncio.sleep(_TURN)

    def status(self) -> list[ResourceStatus]:
        """Return the status of each resource, by name; one that cannot be served has the reason."""
        refused = [ResourceStatus(name, plugin, error) for name, (plugin, error) in self._refused.items()]
        return sorted(
            [*refused, *(task.status() for task, _ in self._tasks.values())], key=lambda status: status.resource
        )


def _kubelet_is_away(state: ResourceStatus) -> bool:
    """Whether nobody is there to register with, or kubelet has refused."""
    return state.socket is None and bool(state.error)
