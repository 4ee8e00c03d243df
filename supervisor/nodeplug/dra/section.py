"""What a configuration asks of Dynamic Resource Allocation, or nothing.

Owns: that a node without it imports none of it, and which plugin's devices go to which front.
Refuses: everything else (`drivers`).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nodeplug.config import Configuration, DraSection
from nodeplug.contract.journal import Journal
from nodeplug.contract.values import DeviceClaim, DeviceId, Holding, ResourceName
from nodeplug.dra.leftovers import remove_dead_sockets
from nodeplug.dra.names import CALLS
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.served_devices import ServedDevices
from nodeplug.hosting.slot import Route
from nodeplug.process.aside import aside
from nodeplug.process.lane import Lane, Unanswered

if TYPE_CHECKING:
    from nodeplug.dra.driver import WhoHolds
    from nodeplug.dra.drivers import Drivers


def serves_claims(route: Route) -> bool:
    """Whether a section serves the devices of a claim by Dynamic Resource Allocation."""
    return route.slot.instance.section.serve == "dra" and not cast("DeviceClaim", route.claim).counted


@dataclass(slots=True)
class DynamicResources(ServedDevices):
    """Devices by claims, as far as sections ask for it, or claims of an earlier daemon are left. Event loop only.

    Attributes:
        configuration: of the daemon.
        registry: who claims what.
        runner: calls plugins.
        node: its name.
        journal: has the records of claims.
        elsewhere: the ids of a resource that containers hold which kubelet's device plugins got.
        who_holds: knows them.
        freed: is called when a claim has given ids of a resource back.
    """

    configuration: Configuration
    registry: Registry
    runner: Runner
    node: str
    journal: Journal
    elsewhere: Callable[[ResourceName], Collection[DeviceId]]
    who_holds: "WhoHolds"
    freed: Callable[[ResourceName], None]
    _drivers: "Drivers | None" = None
    _begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def recover(self) -> None:
        """Find what an earlier daemon has prepared, before anybody asks for more."""
        sections = self.configuration.serving("dra")
        registrations = self.configuration.supervisor.paths.plugins_registry
        sweeping = partial(remove_dead_sockets, registrations.parent / "plugins", registrations)
        with suppress(Unanswered):
            await Lane("kubelet's folders of DRA sockets").run(sweeping)
        if not sections and not await self._are_left():
            return
        drivers = self._begin()
        await drivers.recover()
        for section in sections:
            drivers.expect(section)

    async def announce(self, seconds: float) -> None:
        """Have kubelet know all drivers beside the daemon before, whose turn it still is.

        Those of claims whose section does not serve them any more are among them: their pods are to end.

        Args:
            seconds: for kubelet, which may be away.
        """
        sections = self.configuration.serving("dra")
        if sections or await self._are_left():
            await self._begin().announce(sections, seconds)

    async def _are_left(self) -> bool:
        """Whether there are claims of an earlier daemon."""
        return await aside(partial(_has_records, self.journal.folder), "records of claims")

    def _begin(self) -> "Drivers":
        if self._drivers is None:
            from nodeplug.dra.drivers import Drivers  # noqa: PLC0415 - only who serves claims pays for it

            section = self.configuration.dra or DraSection()
            supervisor = self.configuration.supervisor
            self._drivers = Drivers(
                self.registry,
                self.runner,
                supervisor.paths,
                self.node,
                section,
                section.kubeconfig or self.configuration.kubeconfig,
                supervisor.below_root(section.cdi_dir),
                supervisor.device_poll,
                self.journal,
                self.elsewhere,
                self.who_holds,
                self.freed,
            )
            self._begun.set()
        return self._drivers

    # --- what the life cycle of plugins reports

    def serve(self, plugin: str) -> None:
        """Have a driver list what a section claims, if it serves claims."""
        routes = [one for one in self.registry.routes("device") if one.plugin == plugin and serves_claims(one)]
        if routes or self._drivers is not None:
            self._begin().serve(plugin, routes)

    def hold(self, plugin: str) -> None:
        """Keep what is listed, and ask nothing of the plugin."""
        if self._drivers is not None:
            self._drivers.hold(plugin)

    def withdraw(self, plugin: str, why: str) -> None:
        """List every device of a plugin as one that cannot serve."""
        if self._drivers is not None:
            self._drivers.withdraw(plugin, why)

    async def end(self, plugin: str, *, keep: bool = False) -> None:
        """List nothing of a plugin any more, unless the daemon ends."""
        if self._drivers is not None and not keep:
            self._drivers.unlist(plugin)

    # --- the daemon's part

    async def run(self) -> None:
        """Publish until cancelled; nobody is asked for anything before there is a driver."""
        await self._begun.wait()
        await self._begin().run()

    async def keep(self) -> None:
        """Serve what there is to serve."""
        if self._drivers is not None:
            await self._drivers.keep()

    async def stop(self) -> None:
        """Stop serving: slices and claims stay for the next daemon."""
        if self._drivers is not None:
            await self._drivers.end()

    @property
    def asked(self) -> int:
        """How many requests of kubelet about claims are not answered."""
        return self._drivers.asked if self._drivers is not None else 0

    @property
    def inside(self) -> list[str]:
        """What is done for claims: requests, and hooks whose request has been answered in the meantime."""
        hooks = [call for call, _ in self.registry.calls if call.claim.startswith(CALLS)]
        return [*(f"{call.verb} of {call.claim}" for call in hooks), *[f"{self.asked} requests"] * bool(self.asked)]

    def refresh(self, resource: ResourceName) -> None:
        """Ask for another list of a resource."""
        if self._drivers is not None:
            self._drivers.refresh(resource)

    def holdings(self, resource: ResourceName, users: Callable[[str, str], Sequence[tuple[str, str]]]) -> list[Holding]:
        """Return who holds what of a resource by claims. Safe in any thread.

        Args:
            resource: of which.
            users: returns the pods and containers that use a claim, by its namespace and name.
        """
        drivers = self._drivers
        return drivers.ledger.holdings(resource, users) if drivers is not None else []

    def withheld(self, resource: ResourceName) -> Mapping[DeviceId, str]:
        """Return which ids claims have, each with the reason why nobody else may."""
        return self._drivers.withheld(resource) if self._drivers is not None else {}

    def status(self) -> list[dict[str, Any]]:
        """Describe every driver; none where no section serves claims."""
        return self._drivers.status() if self._drivers is not None else []


def _has_records(folder: Path) -> bool:
    return next(folder.glob("*.json"), None) is not None
