# ruff: noqa: N802, D102, ARG002 - RPCs: their names, their meaning and their arguments are those of the API
"""A device plugin without nodeplug, on the bare API: it writes down every call of kubelet.

Owns: its socket, its devices, and its responses, all of which a test changes.
Refuses: to notice anything by itself: a test registers it, and re-registers it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.pb import pluginregistration_v1_pb2 as watcher_pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as watcher_grpc

_PATIENCE = 60.0
_YEAR = 31_536_000.0


@dataclass(eq=False)
class RecordingPlugin(pb_grpc.DevicePluginServicer, watcher_grpc.RegistrationServicer):
    """A plugin of one resource.

    Attributes:
        resource: its name.
        folder: where its sockets are: device-plugins, or plugins_registry, where kubelet finds it after `serve`.
        healthy: whether each device is healthy; change it through `mark`.
        nodes: the NUMA nodes of devices that have a topology, which may be empty.
        options: what it reports, in Register and GetDevicePluginOptions.
        calls: the calls that it got, as texts without ids, which are random.
        allocated: the ids of each Allocate.
        prefer: its choice among the available ids, must-include ones first, for a size.
        failure: "prefer", "allocate", "prestart" or "options" fails that call, "empty" answers Allocate with nothing.
        hold: keeps Allocate, GetPreferredAllocation and PreStartContainer waiting while it is cleared.
        streams: open ListAndWatch streams.
        generation: how many sockets it has had.
    """

    resource: str
    folder: Path
    healthy: dict[str, bool]
    nodes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    options: pb.DevicePluginOptions = field(default_factory=pb.DevicePluginOptions)
    calls: list[str] = field(default_factory=list)
    allocated: list[frozenset[str]] = field(default_factory=list)
    prefer: Callable[[Sequence[str], int], Sequence[str]] = lambda available, size: sorted(available)[:size]
    failure: str = ""
    streams: int = 0
    generation: int = 0
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    server: grpc.aio.Server | None = None
    _preferred: frozenset[str] = frozenset()
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.hold.set()

    def _saw(self, call: str, context: Any) -> None:
        left = context.time_remaining()
        deadline = (
            "no deadline" if left is None or left > _YEAR else f"{round(left / 5) * 5} s"
        )  # on the way some went by
        self.calls.append(f"{self.resource}: {call}, {deadline}")

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        self._saw("GetDevicePluginOptions", context)
        if self.failure == "options":
            await context.abort(grpc.StatusCode.INTERNAL, "no options today")
        return self.options

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        self._saw("ListAndWatch", context)
        self.streams += 1
        try:
            while True:
                changed = self._changed
                yield self.list()
                await changed.wait()
        finally:
            self.streams -= 1

    def list(self) -> pb.ListAndWatchResponse:
        """Return the present list."""
        response = pb.ListAndWatchResponse()
        for name, good in self.healthy.items():
            device = response.devices.add(ID=name, health="Healthy" if good else "Unhealthy")
            if name in self.nodes:
                device.topology.SetInParent()
                device.topology.nodes.extend(pb.NUMANode(ID=node) for node in self.nodes[name])
        return response

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        (asked,) = request.container_requests
        available, must = asked.available_deviceIDs, asked.must_include_deviceIDs
        assert set(must) <= set(available)
        sizes = f"{len(available)} available, {len(must)} to include, {asked.allocation_size} in all"
        self._saw(f"GetPreferredAllocation of {sizes}", context)
        await self.hold.wait()
        if self.failure == "prefer":
            await context.abort(grpc.StatusCode.INTERNAL, "no taste")
        answer = self.prefer([*must, *(name for name in available if name not in must)], asked.allocation_size)
        self._preferred = frozenset(answer)
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=answer)]
        )

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        (asked,) = request.container_requests
        followed = len(self._preferred & set(asked.devices_ids))
        self._preferred = frozenset()
        self._saw(f"Allocate {len(set(asked.devices_ids))}, {followed} of them preferred", context)
        self.allocated.append(frozenset(asked.devices_ids))
        await self.hold.wait()
        if self.failure == "allocate":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "sold out")
        if self.failure == "empty":
            return pb.AllocateResponse()
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(envs={"GOT": "1"})])

    async def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:
        self._saw(f"PreStartContainer with {len(request.devices_ids)}", context)
        await self.hold.wait()
        if self.failure == "prestart":
            await context.abort(grpc.StatusCode.INTERNAL, "not warm")
        return pb.PreStartContainerResponse()

    def mark(self, **healthy: bool) -> None:
        """Change the health of devices, or bring new ones, and send a list to every stream."""
        self.healthy = {**self.healthy, **healthy}
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def socket(self) -> Path:
        """The socket of the last registration."""
        return self.folder / f"{self.resource.partition('/')[2]}-{self.generation}.sock"

    async def GetInfo(self, request: watcher_pb.InfoRequest, context: Any) -> watcher_pb.PluginInfo:
        self._saw("GetInfo", context)
        return watcher_pb.PluginInfo(type="DevicePlugin", name=self.resource, supported_versions=["v1beta1"])

    async def NotifyRegistrationStatus(
        self, request: watcher_pb.RegistrationStatus, context: Any
    ) -> watcher_pb.RegistrationStatusResponse:
        self._saw(f"NotifyRegistrationStatus {request.plugin_registered} {request.error}", context)
        return watcher_pb.RegistrationStatusResponse()

    async def serve(self) -> None:
        """Serve on a new socket; an older server goes on, and `stop` ends only the newest one."""
        self.generation += 1
        self.server = grpc.aio.server()
        pb_grpc.add_DevicePluginServicer_to_server(self, self.server)
        watcher_grpc.add_RegistrationServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.socket}")
        await self.server.start()

    async def register(self) -> None:
        """Serve on a fresh socket, and register there.

        Raises:
            grpc.aio.AioRpcError: kubelet refuses.
        """
        await self.serve()
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=self.socket.name, resource_name=self.resource, options=self.options
        )
        async with grpc.aio.insecure_channel(f"unix:{self.folder}/kubelet.sock") as channel:
            await pb_grpc.RegistrationStub(channel).Register(request, wait_for_ready=True, timeout=_PATIENCE)

    async def stop(self) -> None:
        """End the stream and take the socket away."""
        if self.server is not None:
            await self.server.stop(None)
        self.server = None
