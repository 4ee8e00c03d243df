"""Which plugin answers for a resource at present.

Owns: the route to it, the time between two instances of it, from `hold` until the new one has listed once, and the time
from the daemon's start until the plugin has listed, in which kubelet has the last list of an earlier daemon.
Refuses: lists, sockets, plugins' lives, and to know why a plugin does not serve (its slot says so).
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeplug.contract.errors import TryAgain
from nodeplug.contract.values.devices import ResourceName
from nodeplug.device.last_known import Remembered

if TYPE_CHECKING:
    from nodeplug.hosting.slot import Route

EXCHANGE_PATIENCE: Final = 100.0
"""Seconds that an exchange may take: the last calls (30), the stop of the former instance (10), the start (60)."""
_TURN: Final = 0.25
_NO_PLUGIN: Final = 10.0
"""Seconds that a request waits for a plugin that could not be loaded since the daemon's start."""


@dataclass(slots=True)
class Binding:
    """The way to the plugin of one resource, shared by all who serve it. Used only from the event loop.

    Attributes:
        route: the plugin that owns the resource; before it has loaded, what is remembered of it.
        held: no instance of the plugin serves at present; nothing is asked of it.
        why: why none can be had; empty during an exchange, and while one serves.
        unconfirmed: the list is one of an earlier daemon; no plugin has said yet that it still holds.
        trouble: why the plugin could not list lately; empty when it could.
        leaving: another daemon has the plugin; it answers what kubelet still asks here.
        asked: requests of kubelet that are not answered yet.
    """

    route: "Route | Remembered"
    held: bool = False
    why: str = ""
    unconfirmed: bool = False
    trouble: str = ""
    leaving: bool = False
    asked: int = 0
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _socket: Path | None = None
    _listed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        if isinstance(self.route, Remembered):
            self.held = self.unconfirmed = True
        else:
            self._listed.set()

    @property
    def resource(self) -> ResourceName:
        """The resource."""
        return self.route.resource if isinstance(self.route, Remembered) else ResourceName(self.route.claim.name)

    @property
    def claim(self) -> str:
        """The claim, as messages and metrics name it."""
        return f"device:{self.resource}"

    @property
    def awaited(self) -> bool:
        """Whether no plugin that claims it has been loaded since the daemon's start."""
        return isinstance(self.route, Remembered)

    def hold(self) -> None:
        """Begin an exchange."""
        self.held = True
        self._listed.clear()

    def leave(self) -> None:
        """Ask no plugin any more: another daemon takes over."""
        self.hold()
        self.leaving = True

    def move(self, socket: Path | None) -> None:
        """Say where that daemon serves the resource; None: it does not."""
        self._socket = socket
        self._moved.set()

    async def elsewhere(self) -> Path:
        """Wait until another daemon serves, and return its socket.

        Raises:
            TryAgain: it does not serve the resource.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(EXCHANGE_PATIENCE):
                await self._moved.wait()
        if self._socket is None:
            raise TryAgain(f"another daemon has taken over, and does not serve {self.resource}")
        return self._socket

    def take_over(self, route: "Route") -> None:
        """End the exchange: another instance serves, which has not listed yet."""
        self.route, self.held, self.why = route, False, ""
        self._listed.clear()

    def give_up(self, why: str, route: "Route | None" = None) -> None:
        """Go on without an instance: none can be had, at least for now."""
        self.hold()
        self.route, self.why = route or self.route, why

    def listed(self, route: "Route", trouble: str = "") -> None:
        """Note that a listing over a route has ended, well or with trouble.

        A list that failed confirms nothing: only what the present daemon has got of a plugin may be granted.
        """
        if route is self.route and not self.held:
            self.trouble = trouble
            self.unconfirmed = self.unconfirmed and bool(trouble)
            if not self.unconfirmed:
                self._listed.set()

    async def settled(self, hook: str) -> "Route":
        """Wait for the first list after an exchange: what is granted before it would be the former instance's.

        An exchange may outlast a plugin's deadline: kubelet sets none, and a refusal fails the pod permanently.

        Args:
            hook: whose deadline is to be waited where no exchange is under way, since none can be had.

        Raises:
            TryAgain: there was none in time.
        """
        begun = time.monotonic()
        while isinstance(route := self.route, Remembered) or not self._listed.is_set():
            waited = time.monotonic() - begun
            if waited >= self._patience(hook):
                raise TryAgain(
                    f"plugin {route.plugin!r} does not serve {self.resource} after {waited:.3g} s: {self._what}"
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(_TURN):
                    await self._listed.wait()
        return route

    def _patience(self, hook: str) -> float:
        own = _NO_PLUGIN if isinstance(self.route, Remembered) else self.route.slot.deadline(hook)
        return own if self.why else max(own, EXCHANGE_PATIENCE)

    @property
    def _what(self) -> str:
        if self.why:
            return self.why
        if self.awaited:
            return "it has not started yet since the daemon did"
        return f"its devices cannot be listed: {self.trouble}" if self.unconfirmed else "it is being reloaded"
