"""The devices of one resource, listed again and again for slices.

Owns: when `device_list` is called, and what its failures leave: the last list.
Refuses: what becomes of a list (`pools`, `slices`), and the front of kubelet's device plugins, which registers sockets.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.errors import NotFound, PluginError
from nodeplug.contract.values import Device, DeviceList, ResourceName
from nodeplug.hosting.call import Call
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route

LOG: Final = logging.getLogger(__name__)
_FIRST_RETRY: Final = 0.5
_SETTLE: Final = 0.05
"""Seconds between two listings at least."""


@dataclass(slots=True)
class Listing:
    """One resource of one plugin. Event loop only.

    Attributes:
        route: the way to its plugin.
        runner: calls it.
        poll: seconds between two listings when nobody asks for one.
        changed: is called when there is another list.
        devices: the last list; None before the first.
        held: an exchange of the plugin is under way: nothing is asked of it.
        trouble: why the list could not be had lately; empty if it could.
        away: why no instance of the plugin serves; empty while one does, or is about to.
        absent: why there is nothing to offer on this node, which is no fault.
        since: when it began, of the monotonic clock.
    """

    route: Route
    runner: Runner
    poll: float
    changed: Callable[[], None]
    devices: tuple[Device, ...] | None = None
    held: bool = False
    trouble: str = ""
    away: str = ""
    absent: str = ""
    since: float = field(default_factory=time.monotonic)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _failures: int = 0

    @property
    def resource(self) -> ResourceName:
        """What is listed."""
        return ResourceName(self.route.claim.name)

    async def run(self) -> None:
        """List until cancelled. Never fails by itself."""
        while True:
            self._asked.clear()
            if not self.held:
                await self._list()
            await asyncio.sleep(_SETTLE)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await self._asked.wait()

    def refresh(self) -> None:
        """Ask for a new list, now; many requests become one listing."""
        self._asked.set()

    def hold(self) -> None:
        """Keep the last list and ask nothing: the plugin is about to be exchanged."""
        self.held = True

    def take_over(self, route: Route) -> None:
        """Go on with another instance."""
        self.route, self.held, self._failures = route, False, 0
        self._asked.set()

    def withdraw(self, why: str) -> None:
        """Note that no instance could be started: what was listed cannot serve new claims, and is not ill."""
        self.held, self.trouble, self.away = True, why, why
        self.changed()

    @property
    def _pause(self) -> float:
        return min(_FIRST_RETRY * 2.0 ** (self._failures - 1), self.poll) if self._failures else self.poll

    async def _list(self) -> None:
        call = Call("ListDevices", f"device:{self.resource}", key=self.resource)
        route = self.route
        try:
            value = DeviceList(resource=self.resource)
            listed = tuple(await self.runner.call(route, "device_list", call, {"request": value}))
        except NotFound as error:
            if self._is_mine(route):
                self.trouble, self.absent, self._failures = "", error.message, 0
                self._take(())
        except PluginError as error:
            if not self._is_mine(route):
                return
            self._failures += 1
            if not self.trouble:
                LOG.warning("%s: the last list stays: %s (request %s)", self.resource, error, call.id)
            self.trouble = error.message
        else:
            if self._is_mine(route):
                self.trouble, self.absent, self._failures = "", "", 0
                self._take(listed)

    def _is_mine(self, route: Route) -> bool:
        """Whether an answer is that of the present instance; a former one's comes late during an exchange."""
        return route is self.route and not self.held

    def _take(self, listed: tuple[Device, ...]) -> None:
        if listed != self.devices or self.away:
            self.devices, self.away = listed, ""
            self.changed()
