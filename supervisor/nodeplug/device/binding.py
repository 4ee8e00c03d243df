"""Which plugin answers for a resource at present.

Owns: the route to it, and the time between two instances of it: from `hold` until the new one has listed once.
Refuses: lists, sockets, plugins' lives, and to know why a plugin does not serve (its slot says so).
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.errors import TryAgain
from nodeplug.hosting.slot import Route

EXCHANGE_PATIENCE: Final = 100.0
"""Seconds that an exchange may take: the last calls (30), the stop of the former instance (10), the start (60)."""
_TURN: Final = 0.25


@dataclass(slots=True)
class Binding:
    """The way to the plugin of one resource, shared by all who serve it. Used only from the event loop.

    Attributes:
        route: the plugin that owns the resource.
        held: no instance of the plugin serves at present; nothing is asked of it.
        given_up: its start has failed, and its slot says why.
    """

    route: Route
    held: bool = False
    given_up: bool = False
    _listed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._listed.set()

    def hold(self) -> None:
        """Begin an exchange."""
        self.held = True
        self._listed.clear()

    def take_over(self, route: Route) -> None:
        """End the exchange: another instance serves, which has not listed yet."""
        self.route, self.held, self.given_up = route, False, False
        self._listed.clear()

    def give_up(self, route: Route) -> None:
        """Go on without an instance: its start has failed."""
        self.hold()
        self.route, self.given_up = route, True

    @property
    def why(self) -> str:
        """Why no instance serves, once its start has failed; empty during an exchange, and while one serves."""
        return self.route.slot.fault if self.given_up else ""

    def listed(self, route: Route) -> None:
        """Note that a listing over a route has ended, well or not."""
        if route is self.route and not self.held:
            self._listed.set()

    async def settled(self, hook: str) -> Route:
        """Wait for the first list after an exchange: what is granted before it would be the former instance's.

        An exchange may outlast a plugin's deadline: kubelet sets none, and a refusal fails the pod permanently.

        Args:
            hook: whose deadline is to be waited where no exchange is under way, since its start has failed.

        Raises:
            TryAgain: there was none in time.
        """
        begun, seconds = time.monotonic(), self.route.slot.deadline(hook)
        while not self._listed.is_set():
            waited = time.monotonic() - begun
            if waited >= (seconds if self.why else max(seconds, EXCHANGE_PATIENCE)):
                what = self.why or "it is being reloaded"
                raise TryAgain(
                    f"plugin {self.route.plugin!r} does not serve {self.route.claim.name} after {waited:.3g} s: {what}"
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(_TURN):
                    await self._listed.wait()
        return self.route
