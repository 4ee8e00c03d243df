"""The only caller of plugin code, as this front knows it: also before it has been imported.

Owns: what is asked of it, and waiting for it: kubelet has the last known lists before the daemon is there.
Refuses: calls of its own.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from nodeplug.contract.errors import PluginError
from nodeplug.hosting.call import Call

if TYPE_CHECKING:
    from nodeplug.hosting.slot import Route


class Caller(Protocol):
    """What `nodeplug.hosting.runner.Runner` does for devices."""

    @property
    def finished(self) -> Callable[[Call, PluginError | None], None]:
        """Is called once per call when its caller is answered."""

    async def call(self, route: "Route", hook: str, call: Call, arguments: Mapping[str, Any]) -> Any:
        """Call one hook; raise PluginError."""


class LateCaller:
    """Passes everything on, once there is a caller. Used only from the event loop."""

    def __init__(self) -> None:
        self._caller: asyncio.Future[Caller] = asyncio.get_running_loop().create_future()
        self._ended: list[tuple[Call, PluginError | None]] = []

    def begin(self, caller: Caller) -> None:
        """Pass on what has ended until now, and everything from now on."""
        self._caller.set_result(caller)
        for call, error in self._ended:
            caller.finished(call, error)
        self._ended.clear()

    def finished(self, call: Call, error: PluginError | None) -> None:
        """Note that a call has been answered: registrations alone end before there is a caller, a few."""
        if self._caller.done():
            self._caller.result().finished(call, error)
        else:
            self._ended.append((call, error))

    async def call(self, route: "Route", hook: str, call: Call, arguments: Mapping[str, Any]) -> Any:
        """Call one hook; raise PluginError."""
        return await (await asyncio.shield(self._caller)).call(route, hook, call, arguments)
