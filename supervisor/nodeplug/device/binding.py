"""Which plugin answers for a resource at present.

Owns: the route to it, and the time between two instances of it: from `hold` until the new one has listed once.
Refuses: lists, sockets, plugins' lives.
"""

import asyncio
from dataclasses import dataclass, field

from nodeplug.errors import TryAgain
from nodeplug.registry import Route


@dataclass(slots=True)
class Binding:
    """The way to the plugin of one resource, shared by all who serve it. Used from the event loop alone.

    Attributes:
        route: the plugin that owns the resource.
        held: no instance of the plugin serves at present; nothing is asked of it.
        why: why none does, once its start has failed.
    """

    route: Route
    held: bool = False
    why: str = ""
    _listed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._listed.set()

    def hold(self) -> None:
        """Begin an exchange."""
        self.held = True
        self._listed.clear()

    def take_over(self, route: Route) -> None:
        """End the exchange: another instance serves, which has not listed yet."""
        self.route, self.held, self.why = route, False, ""
        self._listed.clear()

    def listed(self, route: Route) -> None:
        """Note that a listing over a route has ended, well or not."""
        if route is self.route and not self.held:
            self._listed.set()

    async def settled(self, seconds: float) -> Route:
        """Wait for the first list after an exchange: what is granted before it would be the former instance's.

        Raises:
            TryAgain: there was none within `seconds`.
        """
        if not self._listed.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._listed.wait()
            except TimeoutError:
                what = self.why or "it is being reloaded"
                text = (
                    f"plugin {self.route.plugin!r} does not serve {self.route.claim.name} after {seconds:g} s: {what}"
                )
                raise TryAgain(text) from None
        return self.route
