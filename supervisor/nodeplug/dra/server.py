"""What kubelet calls on a driver's socket: claims, and the health of devices.

Owns: the two services, one answer per claim, and how often the health is said again.
Refuses: registration (`served`), and everything that a claim needs (`preparation`).
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import grpc.aio

from nodeplug.contract.errors import DeadlineExceeded, PluginError, with_request
from nodeplug.dra import claims
from nodeplug.dra.claims import ClaimReference
from nodeplug.dra.names import CALLS
from nodeplug.dra.preparation import Preparation
from nodeplug.dra.values import Pool
from nodeplug.hosting.call import Call
from nodeplug.hosting.front import Front
from nodeplug.hosting.rpc import abort
from nodeplug.pb import dra_health_v1alpha1_pb2 as health_pb
from nodeplug.pb import dra_health_v1alpha1_pb2_grpc as health_grpc
from nodeplug.pb import dra_v1_pb2 as pb
from nodeplug.pb import dra_v1_pb2_grpc as pb_grpc

PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"
_REPEAT: Final = 10.0
"""Seconds after which the health of devices is said again; kubelet believes it for 30."""
_PATIENCE: Final = 40.0
"""Seconds for one request; kubelet gives up after 45, without the reason."""
_MESSAGE_LIMIT: Final = 1024


class Watched(Protocol):
    """What the health of a driver's devices is read from."""

    @property
    def pools(self) -> Sequence[Pool]:
        """Those that are listed."""


@dataclass(slots=True)
class News:
    """Tells streams that there is another list, and that they end."""

    ending: bool = False
    count: int = 0
    _waiting: set[asyncio.Event] = field(default_factory=set)

    def tell(self) -> None:
        """Wake every stream."""
        self.count += 1
        for one in self._waiting:
            one.set()

    def end(self) -> None:
        """Have every stream end."""
        self.ending = True
        self.tell()

    async def wait(self, seen: int, seconds: float) -> None:
        """Wait for news after those that were seen, and no longer than that."""
        if self.count != seen:
            return
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            self._waiting.discard(event)


@dataclass(slots=True)
class Turn:
    """When the node's claims are this daemon's, and what is done with them.

    Attributes:
        comes: the daemon before has ended; requests wait for it.
        under_way: requests, also those that nobody waits for any more.
    """

    comes: asyncio.Event = field(default_factory=asyncio.Event)
    under_way: set[asyncio.Task[Any]] = field(default_factory=set)


class DraPlugin(pb_grpc.DRAPluginServicer):
    """The claims of one driver; requests wait until it is this daemon's turn."""

    def __init__(self, preparation: Preparation, front: Front, turn: Turn) -> None:
        self._preparation, self._front, self._turn = preparation, front, turn

    async def NodePrepareResources(  # noqa: N802 - the RPC's name
        self, request: pb.NodePrepareResourcesRequest, context: Any
    ) -> pb.NodePrepareResourcesResponse:
        """Prepare claims, each for itself: an entry has its devices or its error."""
        wanted = await self._decoded(request.claims, context)
        answers = await asyncio.gather(*(self._prepare(one) for one in wanted))
        return pb.NodePrepareResourcesResponse(
            claims={one.uid: answer for one, answer in zip(wanted, answers, strict=True)}
        )

    async def NodeUnprepareResources(  # noqa: N802 - the RPC's name
        self, request: pb.NodeUnprepareResourcesRequest, context: Any
    ) -> pb.NodeUnprepareResourcesResponse:
        """End the preparation of claims, each for itself."""
        wanted = await self._decoded(request.claims, context)
        answers = await asyncio.gather(*(self._unprepare(one) for one in wanted))
        return pb.NodeUnprepareResourcesResponse(
            claims={one.uid: answer for one, answer in zip(wanted, answers, strict=True)}
        )

    @staticmethod
    async def _decoded(named: Sequence[pb.Claim], context: Any) -> list[ClaimReference]:
        try:
            return claims.decode(named)
        except PluginError as error:
            await abort(context, error)

    async def _prepare(self, wanted: ClaimReference) -> pb.NodePrepareResourceResponse:
        try:
            devices = await self._serve(PREPARE, wanted, self._preparation.prepare)
        except PluginError as error:
            return pb.NodePrepareResourceResponse(error=with_request(error.message, error))
        return claims.encode_prepared(devices)

    async def _unprepare(self, wanted: ClaimReference) -> pb.NodeUnprepareResourceResponse:
        try:
            await self._serve(UNPREPARE, wanted, self._preparation.unprepare)
        except PluginError as error:
            return pb.NodeUnprepareResourceResponse(error=with_request(error.message, error))
        return pb.NodeUnprepareResourceResponse()

    async def _serve(
        self, verb: str, wanted: ClaimReference, work: Callable[[Call, ClaimReference], Coroutine[Any, Any, Any]]
    ) -> Any:
        call = Call(verb, f"{CALLS}{self._preparation.driver}", key=self._preparation.key_of(wanted.uid))
        return await self._front.serve(call, self._whole(self._in_turn(call, wanted, work), verb))

    async def _in_turn(
        self, call: Call, wanted: ClaimReference, work: Callable[[Call, ClaimReference], Coroutine[Any, Any, Any]]
    ) -> Any:
        await self._turn.comes.wait()
        return await work(call, wanted)

    async def _whole(self, work: Coroutine[Any, Any, Any], verb: str) -> Any:
        """Wait for an answer as long as kubelet does; what was begun goes on to its end in any case.

        Half a step, such as a record that is written and forgotten, would be worse than a late one.
        """
        task = asyncio.create_task(work, name=verb)
        self._turn.under_way.add(task)
        task.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(_PATIENCE):
                return await asyncio.shield(task)
        except TimeoutError:
            raise DeadlineExceeded(f"{verb} takes longer than {_PATIENCE:g} s, and goes on") from None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._turn.under_way.discard(task)
        if not task.cancelled():
            task.exception()  # marked as retrieved: its caller may have gone


class DeviceHealth(health_grpc.DRAResourceHealthServicer):
    """How the devices of one driver are, for the status of pods."""

    def __init__(self, watched: Watched, news: News, turn: Turn) -> None:
        self._watched, self._news, self._turn = watched, news, turn

    # A coroutine that writes, not a generator: a cancelled one runs its `finally` at once.
    async def NodeWatchResources(  # type: ignore[override] # noqa: N802 - the RPC's name; grpc.aio allows both forms
        self, request: health_pb.NodeWatchResourcesRequest, context: Any
    ) -> None:
        """Say how every device is, at every change and from time to time."""
        del request
        await self._turn.comes.wait()  # nothing is known before, and kubelet would believe that
        while not self._news.ending:
            seen = self._news.count  # before the list is read: a stream that is slow misses nothing
            await context.write(health_of(self._watched.pools, int(time.time())))
            await self._news.wait(seen, _REPEAT)


def health_of(pools: Sequence[Pool], now: int) -> health_pb.NodeWatchResourcesResponse:
    """Write how every device is: each message is the full list.

    Args:
        pools: those that are listed.
        now: seconds since the epoch.
    """
    message = health_pb.NodeWatchResourcesResponse()
    for pool in pools:
        for device in pool.devices:
            ill = device.reason or pool.away
            message.devices.add(
                device=health_pb.DeviceIdentifier(pool_name=pool.name, device_name=device.name),
                health=health_pb.UNHEALTHY if device.reason else health_pb.UNKNOWN if ill else health_pb.HEALTHY,
                last_updated_time=now,
                message=ill[:_MESSAGE_LIMIT],
            )
    return message


def serve(
    preparation: Preparation,
    watched: Watched,
    news: News,
    front: Front,
    turn: Turn,
    server: grpc.aio.Server,
) -> None:
    """Have a server answer both services, from the turn of this daemon on."""
    pb_grpc.add_DRAPluginServicer_to_server(DraPlugin(preparation, front, turn), server)
    health_grpc.add_DRAResourceHealthServicer_to_server(DeviceHealth(watched, news, turn), server)
