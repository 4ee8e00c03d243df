"""One plugin as kubelet knows it: the connection, its ListAndWatch stream, and the resource behind it.

Owns: dialling a plugin's socket and reading its stream, with kubelet's limits; kubelet's texts for a plugin's errors.
Refuses: redialling: a stream that ended stays ended (kubernetes#131013).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.testing.kubelet.allocation import AdmissionError, DeviceTable

RECEIVE_LIMIT: Final = 4_194_304
"""Bytes: grpc-go's default, which kubelet keeps."""
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RECEIVE_LIMIT),
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class Endpoint:
    """A dialled plugin.

    Args:
        resource: what it registered.
        path: its socket.
        on_list: called with each list.
        on_end: called once when the stream ended, with the reason.

    Attributes:
        options: what the plugin reported.
        known_at, first_list_at: `time.monotonic()` of the registration and of the first list.
        stopped: whether the stream has ended.
    """

    def __init__(
        self,
        resource: str,
        path: Path,
        on_list: Callable[["Endpoint", pb.ListAndWatchResponse], None],
        on_end: Callable[["Endpoint", str], None],
    ) -> None:
        self.resource = resource
        self.path = path
        self.options = pb.DevicePluginOptions()
        self.known_at = time.monotonic()
        self.first_list_at: float | None = None
        self.stopped = False
        self._on_list = on_list
        self._on_end = on_end
        self._channel = grpc.aio.insecure_channel(f"unix:{path}", CHANNEL_OPTIONS)
        self.stub = pb_grpc.DevicePluginStub(self._channel)
        self._watch: asyncio.Task[None] | None = None

    @property
    def listening(self) -> bool:
        """Whether the stream is open."""
        return self._watch is not None and not self.stopped

    async def dial(self) -> None:
        """Connect; keeps trying while nobody listens on the socket."""
        await self._channel.channel_ready()

    async def ask_options(self) -> None:
        """Call GetDevicePluginOptions, without a deadline of its own."""
        self.options = await self.stub.GetDevicePluginOptions(pb.Empty())

    def listen(self) -> None:
        """Open ListAndWatch in the background."""
        self._watch = asyncio.create_task(self._listen(), name=f"ListAndWatch {self.resource}")

    async def _listen(self) -> None:
        reason = "the plugin ended the stream"
        try:
            async for response in self.stub.ListAndWatch(pb.Empty()):
                self.first_list_at = self.first_list_at or time.monotonic()
                self._on_list(self, response)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        finally:
            self.stopped = True
            self._on_end(self, reason)
        await self._channel.close()

    def refuse_stopped(self) -> None:
        """Raise kubelet's sentence when the stream has ended: no call is made any more."""
        if self.stopped:
            raise AdmissionError(f"endpoint {self.path} has been stopped")

    async def close(self) -> None:
        """End the stream and the connection."""
        self.stopped = True
        try:
            if self._watch is not None:
                self._watch.cancel()
                await asyncio.wait([self._watch])  # awaiting it would take a cancellation of the caller for its own
        finally:
            await self._channel.close()


@dataclass(slots=True)
class Resource:
    """A resource in kubelet's tables.

    Attributes:
        endpoint: its plugin, or None after a restart of kubelet.
        table: its devices; None until the first list.
        stopped_at: when the stream ended (`time.monotonic()`), or None while it is open.
        reason: why the stream ended.
        lists: how many lists arrived.
        reported: the health of each device of the last list, which the end of the stream does not change.
        empty_topology: whether a device of the last list has a topology without nodes.
    """

    endpoint: Endpoint | None = None
    table: DeviceTable | None = None
    stopped_at: float | None = field(default=None)
    reason: str = ""
    lists: int = 0
    reported: Mapping[str, bool] = field(default_factory=dict)
    empty_topology: bool = False

    def take(self, response: pb.ListAndWatchResponse) -> None:
        """Replace the devices: each list is the full one, and any health word but Healthy is unhealthy."""
        healthy: dict[str, frozenset[int]] = {}
        unhealthy: dict[str, frozenset[int]] = {}
        for device in response.devices:
            nodes = frozenset(node.ID for node in device.topology.nodes)
            (healthy if device.health == "Healthy" else unhealthy)[device.ID] = nodes
        self.table = DeviceTable(healthy, unhealthy)
        self.reported = {**dict.fromkeys(healthy, True), **dict.fromkeys(unhealthy, False)}
        self.empty_topology = any(
            device.HasField("topology") and not device.topology.nodes for device in response.devices
        )
        self.lists += 1

    def end(self, reason: str) -> None:
        """Mark every device unhealthy: allocatable is 0, capacity stays."""
        if self.table is not None:
            self.table = DeviceTable({}, {**self.table.healthy, **self.table.unhealthy})
        self.stopped_at = time.monotonic()
        self.reason = reason


_CLOSING: Final = "rpc error: code = Canceled desc = grpc: the client connection is closing"
"""grpc-go's ErrClientConnClosing."""


def in_go(error: grpc.aio.AioRpcError) -> str:
    """Return the text that grpc-go makes of an error."""
    code = "".join(word.capitalize() for word in error.code().name.split("_")).replace("Cancelled", "Canceled")
    details = "context deadline exceeded" if error.details() == "Deadline Exceeded" else error.details()
    return f"rpc error: code = {code} desc = {details}"


@asynccontextmanager
async def as_rejection(prefix: str) -> AsyncIterator[None]:
    """Turn a plugin's gRPC error into kubelet's sentence about it."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise AdmissionError(f"{prefix}{in_go(error)}") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # The caller was not cancelled: the stream ended, and the connection was closed during the call.
        raise AdmissionError(f"{prefix}{_CLOSING}") from None
