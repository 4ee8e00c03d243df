"""The life of one resource: list its devices, keep it registered, tell how it is.

Owns: when `device_list` is called and what becomes of its failures, and the two tasks of a resource.
Refuses: gRPC and kubelet's folders (registration and server know those).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeplug.contract.errors import NotFound, NotSupported, PluginError
from nodeplug.contract.values.devices import Device, DeviceId, DeviceList, ResourceName
from nodeplug.device.binding import Binding
from nodeplug.device.caller import Caller
from nodeplug.device.codec import overlapping
from nodeplug.device.kubelet import KubeletFolders, Mode
from nodeplug.device.last_known import LastKnown, Remembered
from nodeplug.device.registration import Registration
from nodeplug.device.snapshots import Snapshot, Snapshots
from nodeplug.hosting.call import Call

if TYPE_CHECKING:
    from nodeplug.hosting.slot import Route

LOG: Final = logging.getLogger(__name__)
_FIRST_RETRY: Final = 0.5
_SETTLE: Final = 0.05
"""Seconds between two listings at least: kubelet rewrites its checkpoint for each new list."""

UNCONFIRMED: Final = 10.0
"""Seconds that devices of an earlier daemon stay as they were while their plugin runs and cannot list them."""


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """The state of a resource, for status, metrics and health.

    Attributes:
        error: what is wrong, or empty. A failing or too long list goes before a failing registration.
        devices: the present list.
        registered: kubelet has accepted the present registration, and listens.
        listed: there was a first list; nothing is registered before.
        streams: open ListAndWatch streams; 0 while registered means that kubelet does not listen.
        registrations: how many times kubelet accepted.
        socket: the present socket, or None.
        absent: why there is nothing to offer on this node, which is no fault; empty when there is.
    """

    resource: ResourceName
    plugin: str
    error: str
    devices: tuple[Device, ...] = ()
    registered: bool = False
    listed: bool = False
    streams: int = 0
    registrations: int = 0
    socket: Path | None = None
    absent: str = ""

    @property
    def healthy(self) -> int:
        """How many of them are healthy."""
        return sum(device.healthy for device in self.devices)


class ResourceTask:
    """One resource of one plugin.

    Args:
        route: the plugin that owns the resource, or what is remembered of it: then that is offered until it is loaded.
        last_known: remembers what kubelet is told.
        poll_interval: seconds between two listings when nobody asks for one.
        watch_interval: seconds between two looks at kubelet's socket when no event comes.
        watchdog: seconds without a stream after which a registered resource registers again.

    Raises:
        InvalidRequest: the folder is so deep that no socket path fits.
    """

    def __init__(
        self,
        route: "Route | Remembered",
        runner: Caller,
        folders: KubeletFolders,
        last_known: LastKnown | None = None,
        *,
        mode: Mode = "register",
        poll_interval: float = 10.0,
        watch_interval: float = 1.0,
        watchdog: float = 10.0,
    ) -> None:
        self._binding = Binding(route)
        self.resource = self._binding.resource
        self._last_known = last_known
        self._runner = runner
        self._poll_interval = poll_interval
        self._snapshots = Snapshots(self.resource)
        if isinstance(route, Remembered):
            self._snapshots.current = Snapshot(1, route.devices(), route.message)
        self._registration = Registration(
            self._binding, runner, self._snapshots, folders, mode=mode, poll=watch_interval, watchdog=watchdog
        )
        self._asked = asyncio.Event()
        self._exchanged = asyncio.Event()
        self._list_error = ""
        self._shortened = False
        self._absent = ""
        self._failures = 0
        self._serving_since = 0.0
        self.withheld: Callable[[], Mapping[DeviceId, str]] = dict

    async def run(self) -> None:
        """List and stay registered until cancelled; then streams, server and socket are gone. Never fails by itself."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_listed(), name=f"list {self.resource}")
            group.create_task(self._keep_registered(), name=f"register {self.resource}")

    def refresh(self) -> None:
        """Ask for a new listing, now. On the loop's thread only; many requests become one listing."""
        self._asked.set()

    @property
    def plugin(self) -> str:
        """The section name of the plugin that answers for the resource."""
        return self._binding.route.plugin

    @property
    def awaited(self) -> bool:
        """Whether only the last known list is there: its plugin has not been loaded since the daemon's start."""
        return self._binding.awaited

    def hold(self) -> None:
        """Begin an exchange of the plugin: the streams and the last list stay, requests wait for `take_over`."""
        self._binding.hold()

    def leave(self) -> None:
        """Keep streams and list, ask no plugin, and let requests wait for `move`."""
        self._binding.leave()

    def move(self, socket: Path | None) -> None:
        """Have another daemon answer what kubelet still asks here, at its socket."""
        self._binding.move(socket)

    @property
    def asked(self) -> int:
        """How many requests of kubelet are not answered yet."""
        return self._binding.asked

    def take_over(self, route: "Route") -> None:
        """Go on with another instance, or another plugin: list at once, and register anew only if it must be."""
        self._binding.take_over(route)
        self._failures, self._serving_since = 0, self._serving_since or time.monotonic()
        self._asked.set()
        self._exchanged.set()
        self._registration.look()

    def withdraw(self, why: str, route: "Route | None" = None) -> None:
        """List every device as unhealthy until `take_over`: no instance of the plugin that owns it could be started."""
        self._binding.give_up(why, route)
        self._asked.set()

    def register_again(self, reason: str) -> None:
        """Register although nothing seems to be lost: another daemon has registered the resource meanwhile."""
        self._registration.doubt(reason)

    def expect_disconnection(self, seconds: float) -> None:
        """For so long, register as soon as kubelet ends the stream: the daemon before is ending its own."""
        self._registration.hurry(seconds)

    def socket_name(self) -> Path | None:
        """Return the name of the present socket and of its connections, as the kernel tells it."""
        server = self._registration.server
        return server.name if server is not None else None

    def status(self) -> ResourceStatus:
        """Return the status of the resource."""
        current = self._snapshots.current
        server, away = self._registration.server, self._registration.away
        return ResourceStatus(
            resource=self.resource,
            plugin=self.plugin,
            registered=self._registration.registered and not away,
            listed=current is not None,
            streams=server.streams.open if server is not None else 0,
            registrations=self._registration.registrations,
            socket=server.path if server is not None else None,
            error=self._binding.why or self._list_error or away or self._registration.error,
            devices=tuple(current.devices.values()) if current is not None else (),
            absent=self._absent,
        )

    async def _keep_listed(self) -> None:
        while True:
            self._asked.clear()
            self._exchanged.clear()
            route = self._binding.route
            if not self._binding.held and not isinstance(route, Remembered):
                await self._list_once(route)
            elif self._binding.why:
                await self._list_unhealthy(self._binding.why)
            with suppress(TimeoutError):  # requests may wait for the first list of a new instance
                async with asyncio.timeout(_SETTLE):
                    await self._exchanged.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_listing()):
                    await self._asked.wait()

    async def _list_unhealthy(self, reason: str) -> None:
        current = self._snapshots.current
        if current is not None:
            await self._snapshots.publish(
                [replace(device, healthy=False, reason=reason) for device in current.devices.values()]
            )
            self._remember()

    def _next_listing(self) -> float:
        if not self._failures:
            return self._poll_interval
        return min(_FIRST_RETRY * 2.0 ** (self._failures - 1), self._poll_interval)

    async def _list_once(self, route: "Route") -> None:
        call = Call("ListDevices", self._binding.claim, key=self.resource)
        try:
            devices = await self._runner.call(
                route, "device_list", call, {"request": DeviceList(resource=self.resource)}
            )
            await self._publish(devices)
        except NotFound as error:
            await self._nothing_to_offer(error.message)
        except PluginError as error:
            await self._list_failed(str(error), call)
        except Exception as error:
            LOG.exception("publishing the list of %s failed (request %s)", self.resource, call.id)
            await self._list_failed(f"{type(error).__name__}: {error}", call)
        else:
            self._have_listed(self._snapshots.shortened, call)
        self._binding.listed(route, "" if self._shortened else self._list_error)

    async def _publish(self, devices: Sequence[Device]) -> None:
        """Make a list the current one.

        Raises:
            NotSupported: its devices overlap; of what was listed before, nothing can be given away any more.
            PluginError: it cannot be sent; the current one stays.
        """
        if why := overlapping(self.resource, devices):
            await self._list_unhealthy(why)
            raise NotSupported(why)
        await self._snapshots.publish(self._without_claimed(devices))

    def _without_claimed(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """Return a list in which what claims have cannot be given away: the section served them before."""
        claimed = self.withheld()
        return tuple(
            replace(one, healthy=False, withheld=False, reason=claimed[one.id]) if one.id in claimed else one
            for one in devices
        )

    def _have_listed(self, shortened: str, call: Call) -> None:
        """Note that there is a new list, which may lack what did not fit."""
        if shortened and not self._shortened:
            LOG.warning("%s: not all is listed: %s (request %s)", self.resource, shortened, call.id)
        elif (self._list_error or self._absent) and not shortened:
            LOG.info("%s: its devices are listed", self.resource)
        self._list_error, self._absent, self._failures, self._shortened = shortened, "", 0, bool(shortened)
        self._remember()

    def _remember(self) -> None:
        """Keep what is offered for the start after a crash."""
        current, binding = self._snapshots.current, self._binding
        if self._last_known is not None and current is not None:
            self._last_known.note(
                Remembered.of(self.resource, binding.route.plugin, binding.route.hooks, current.message)
            )

    async def _nothing_to_offer(self, reason: str) -> None:
        """Offer nothing: a resource that was never listed is not registered, one that was gets an empty list."""
        if reason != self._absent:
            LOG.info("%s is not offered: %s", self.resource, reason)
        self._list_error, self._absent, self._failures, self._shortened = "", reason, 0, False
        if self._snapshots.current is not None:
            await self._snapshots.publish(())
        if self._last_known is not None:
            self._last_known.forget(self.resource)

    async def _list_failed(self, reason: str, call: Call) -> None:
        """Keep the last list: devices do not become unhealthy because a question failed."""
        self._failures += 1
        self._shortened = False
        if self._failures == 1:
            state = "the last list stays" if self._snapshots.current is not None else "not offered yet"
            LOG.warning("%s: %s: %s (request %s)", self.resource, state, reason, call.id)
        self._list_error = reason
        if self._binding.unconfirmed and time.monotonic() - self._serving_since >= UNCONFIRMED:
            await self._list_unhealthy(f"its plugin could not list it since the daemon started: {reason}")

    async def _keep_registered(self) -> None:
        """Restart the registration if it ever fails: one resource must not end the daemon."""
        while True:
            try:
                await self._registration.run()
            except Exception:
                LOG.exception("the registration of %s failed; it begins anew", self.resource)
                await asyncio.sleep(1)
