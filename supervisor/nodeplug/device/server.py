"""One gRPC server for one resource and one registration: `v1beta1.DevicePlugin` on a socket of its own.

Owns: the five RPCs, each through the runner; the socket, its permissions and its end; the streams that are open.
Refuses: registration, the plugin's list (snapshots come from outside), a second life: a stopped server is thrown away.

Keys: listing has one key per resource, so that lists do not overtake each other. Allocate, GetPreferredAllocation and
PreStartContainer have a key per call: kubelet calls them side by side for different containers, and one that hangs
must not hold up the others (the runner's quarantine bounds how many may hang).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc.aio

from nodeplug.contract.errors import PluginError, TryAgain
from nodeplug.contract.values.devices import Grant, ResourceName
from nodeplug.device import codec
from nodeplug.device.binding import Binding
from nodeplug.device.caller import Caller
from nodeplug.device.snapshots import Snapshots
from nodeplug.hosting.call import Call
from nodeplug.hosting.front import Front
from nodeplug.hosting.rpc import abort
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.pb import pluginregistration_v1_pb2 as watcher_pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as watcher_grpc
from nodeplug.process.lane import Lane, Unanswered
from nodeplug.process.private_socket import Bound, check_socket_path, serve

LOG: Final = logging.getLogger(__name__)
API_VERSION: Final = "v1beta1"
_FORWARD: Final = 100.0
"""Seconds that another daemon has to answer: as long as it lets a request wait for its plugin."""
_STOP_GRACE: Final = 1.0
"""Seconds that calls in progress get when a server ends."""
_NAMES: Final = 3
_NAME: Final = 100
"""Texts for people name at most so many devices of a call, and so many characters of each id."""
# Kubelet's preferred-allocation request names every free id and may exceed gRPC's 4 MiB default.
_OPTIONS: Final = (("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0))
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Streams:
    """The open ListAndWatch streams of one server.

    Attributes:
        changed: called after each change.
        open: how many are open.
        opened: how many were opened since the server started.
        idle: set while none is open.
    """

    changed: Callable[[], None]
    open: int = 0
    opened: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    def enter(self) -> None:
        """Count a stream."""
        self.open += 1
        self.opened += 1
        self.idle.clear()
        self.changed()

    def leave(self) -> None:
        """Count a stream's end."""
        self.open -= 1
        if not self.open:
            self.idle.set()
        self.changed()


class ResourceServer:
    """Serves one resource on one socket.

    Args:
        binding: the plugin that owns the resource, now and after an exchange.
        path: a fresh socket name.
        lane: all work in the folder of the socket.
        changed: called on the loop after a stream opened or ended and after kubelet's verdict on a registration.
        watched: also answer the plugin watcher's calls on this socket.
    """

    def __init__(
        self,
        binding: Binding,
        runner: Caller,
        snapshots: Snapshots,
        path: Path,
        lane: Lane,
        *,
        changed: Callable[[], None] = lambda: None,
        watched: bool = False,
    ) -> None:
        check_socket_path(path)
        self.path = path
        self.streams = Streams(changed)
        self.verdict: watcher_pb.RegistrationStatus | None = None
        self._resource = binding.resource
        self._changed = changed
        self._lane = lane
        self._snapshots = snapshots
        self._ending = False
        self._bound: Bound | None = None
        self._server = grpc.aio.server(options=_OPTIONS)
        pb_grpc.add_DevicePluginServicer_to_server(_DevicePlugin(self, binding, runner, snapshots), self._server)
        if watched:
            watcher_grpc.add_RegistrationServicer_to_server(_WatchedPlugin(self, self._resource), self._server)

    async def start(self) -> None:
        """Bind the socket, readable and writable only for its owner, and serve.

        Raises:
            PluginError: the path cannot be bound: the folder is missing, not writable, or something is in the way.
            Unanswered: the folder does not answer.
        """
        self._bound = await serve(self._server, self._lane, lambda: Bound.at(self.path, self._server))

    async def stop(self) -> None:
        """End the streams, then the calls in progress, then the server; the socket is gone afterwards.

        Streams first: gRPC prints a traceback for each one that it has to cancel.
        """
        self._ending = True
        await self._snapshots.wake()
        with suppress(TimeoutError):  # a peer that does not read keeps its stream: the server cancels it
            async with asyncio.timeout(_STOP_GRACE):
                await self.streams.idle.wait()
        await self._server.stop(_STOP_GRACE)
        if self._bound is not None:
            with suppress(Unanswered):
                await self._lane.run(self._bound.remove)

    @property
    def name(self) -> Path | None:
        """The name of the socket and of its connections, as the kernel tells it; None while there is none."""
        return self._bound.name if self._bound is not None else None

    @property
    def ending(self) -> bool:
        """Whether `stop` has begun."""
        return self._ending

    def judged(self, verdict: watcher_pb.RegistrationStatus) -> None:
        """Take kubelet's verdict on a registration through the plugin watcher."""
        self.verdict = verdict
        self._changed()


class _DevicePlugin(pb_grpc.DevicePluginServicer):
    """The RPCs: decode, call the hook, encode."""

    def __init__(self, server: ResourceServer, binding: Binding, runner: Caller, snapshots: Snapshots) -> None:
        self._server = server
        self._binding = binding
        self._runner = runner
        self._front = Front(runner)
        self._snapshots = snapshots
        self._resource = binding.resource

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:  # noqa: N802 - the RPC's name
        del request, context
        return codec.encode_options(self._binding.route.hooks)

    # A coroutine that writes, not a generator: a cancelled one runs its `finally` at once.
    async def ListAndWatch(self, request: pb.Empty, context: Any) -> None:  # type: ignore[override] # noqa: N802 - grpc.aio allows both forms
        del request
        self._server.streams.enter()
        seen = 0
        try:
            while (snapshot := await self._snapshots.after(seen, lambda: self._server.ending)) is not None:
                await context.write(snapshot.message)
                seen = snapshot.version
        finally:
            self._server.streams.leave()

    async def GetPreferredAllocation(  # noqa: N802 - the RPC's name
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        return await self._answer("GetPreferredAllocation", context, self._prefer, request)

    async def _prefer(self, call: Call, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        wanted = [(one.allocation_size, len(one.available_deviceIDs)) for one in request.container_requests]
        call.about = ", ".join(f"{size} of {available} devices" for size, available in wanted[:_NAMES])
        route = await self._binding.settled("device_prefer")
        answers = []
        for value in codec.decode_prefer(self._resource, request):
            if "device_prefer" not in route.hooks:
                answers.append(codec.usable_preference(value, None).ids)
                continue
            answer = await self._runner.call(route, "device_prefer", call, {"request": value})
            preference = codec.usable_preference(value, answer)
            if preference.complaint:
                LOG.warning(
                    "device_prefer of plugin %s answered %s (request %s)",
                    route.plugin,
                    preference.complaint,
                    call.id,
                )
            answers.append(preference.ids)
        return codec.encode_prefer(answers)

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:  # noqa: N802 - the RPC's name
        return await self._answer("Allocate", context, self._allocate, request)

    async def _allocate(self, call: Call, request: pb.AllocateRequest) -> pb.AllocateResponse:
        call.about = _named([name for one in request.container_requests for name in one.devices_ids])
        route = await self._binding.settled("device_allocate")
        current = self._snapshots.current
        grants = []
        for value in codec.decode_allocate(self._resource, request, current.devices if current is not None else {}):
            grant: Grant | None = None
            if "device_allocate" in route.hooks:
                grant = await self._runner.call(route, "device_allocate", call, {"request": value})
            if grant is None:
                grant = Grant.merged([device.grant for device in value.devices])
            grants.append(grant)
        return codec.encode_allocate(grants)

    async def PreStartContainer(  # noqa: N802 - the RPC's name
        self, request: pb.PreStartContainerRequest, context: Any
    ) -> pb.PreStartContainerResponse:
        return await self._answer("PreStartContainer", context, self._prestart, request)

    async def _prestart(self, call: Call, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        call.about = _named(request.devices_ids)
        route = await self._binding.settled("device_prestart")
        value = codec.decode_prestart(self._resource, request)
        if "device_prestart" in route.hooks:
            await self._runner.call(route, "device_prestart", call, {"request": value})
        return pb.PreStartContainerResponse()

    async def _answer(
        self, verb: str, context: Any, work: Callable[[Call, _Request], Awaitable[_Answer]], request: _Request
    ) -> _Answer:
        call = Call(verb, self._binding.claim)
        call.key = f"{self._resource}:{call.id}"
        self._binding.asked += 1
        try:
            if self._binding.leaving:
                return await self._front.serve(call, self._forwarded(verb, request))
            return await self._front.serve(call, work(call, request))
        except PluginError as error:
            await abort(context, error)
        finally:
            self._binding.asked -= 1

    async def _forwarded(self, verb: str, request: Any) -> Any:
        """Have the daemon that takes over answer; kubelet has begun to ask before it knew that one."""
        path = await self._binding.elsewhere()
        try:
            async with grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
                return await getattr(pb_grpc.DevicePluginStub(channel), verb)(request, timeout=_FORWARD)
        except grpc.aio.AioRpcError as error:
            raise TryAgain(f"the daemon that has taken over does not answer {verb}: {error.details()}") from error


def _named(ids: Sequence[str]) -> str:
    """Name devices for people; what kubelet sends is not judged yet, so nothing of it may be long."""
    names = [name if len(name) <= _NAME else f"{name[:_NAME]}…" for name in ids[:_NAMES]]
    return ", ".join(names) + (f" and {len(ids) - _NAMES} more" if len(ids) > _NAMES else "")


@dataclass(slots=True)
class _WatchedPlugin(watcher_grpc.RegistrationServicer):
    """What the plugin watcher asks of a socket in its folder."""

    server: ResourceServer
    resource: ResourceName

    async def GetInfo(self, request: watcher_pb.InfoRequest, context: Any) -> watcher_pb.PluginInfo:  # noqa: N802 - the RPC's name
        del request, context
        # An empty endpoint means the socket on which this question arrived.
        return watcher_pb.PluginInfo(
            type="DevicePlugin", name=self.resource, endpoint="", supported_versions=(API_VERSION,)
        )

    async def NotifyRegistrationStatus(  # noqa: N802 - the RPC's name
        self, request: watcher_pb.RegistrationStatus, context: Any
    ) -> watcher_pb.RegistrationStatusResponse:
        del context
        self.server.judged(request)
        return watcher_pb.RegistrationStatusResponse()
