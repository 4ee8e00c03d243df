"""The services of one CSI driver on this node: Identity and Node.

Owns: the RPCs, each through the front, and who answers when the plugin is at rest.
Refuses: what they do (`volume`), staging at a path of kubelet's (see `codec.node_capabilities`), and to wait for
minutes: kubelet gives a call two, and repeats it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.wrappers_pb2 import BoolValue

from nodeplug.contract.errors import NotFound, NotSupported, PluginError, TryAgain, wire, with_request
from nodeplug.contract.values import Secrets, VolumeClaim
from nodeplug.csi import codec, volume
from nodeplug.hosting.call import Call
from nodeplug.hosting.front import Front
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.volumes.compose import Steps
from nodeplug.volumes.routes import NOBODY, at_rest, unclaimed
from nodeplug.volumes.service import Volumes

PATIENCE: Final = 5.0
"""Seconds that a call waits for an earlier one about the same volume."""
_T = TypeVar("_T")


@dataclass(slots=True)
class Driver:
    """What the services of one driver share. Event loop only.

    Attributes:
        name: of the CSI driver.
        claim: the name of the claim, `vendor/driver`.
        node: the name of this node.
        version: of nodeplug.
        folders: `plugins/kubernetes.io/csi` below kubelet's root, where kubelet makes folders for staging.
    """

    name: str
    claim: str
    node: str
    version: str
    folders: Path
    registry: Registry
    runner: Runner
    volumes: Volumes
    _front: Front = field(init=False)

    def __post_init__(self) -> None:
        self._front = Front(self.runner)

    def route(self, undoing: str = "") -> Route:
        """Return the route to the plugin; one without callers, if nobody has the claim, or its plugin is at rest.

        At rest it must not have the hook that undoes. So the pods of a plugin that was removed can end without it.

        Raises:
            TryAgain: the plugin does not run.
            NotFound: nobody has the claim, and nothing is to be undone.
        """
        try:
            return self.registry.route("volume", self.claim)
        except NotFound:
            if not undoing:
                raise
            return unclaimed(self.registry, self.claim)
        except TryAgain:
            resting = at_rest(self.registry, self.claim, undoing)
            if resting is None:
                raise
            return resting

    @property
    def serving(self) -> Route:
        """The route to the plugin, for what needs it.

        Raises:
            TryAgain: it does not run, or nobody has the claim at present: kubelet takes NOT_FOUND for final.
        """
        try:
            return self.route()
        except NotFound as error:
            raise TryAgain(error.message) from error

    @property
    def claimed(self) -> Route:
        """The route to the claim, whether its plugin runs or not: kubelet asks before it unpublishes, too."""
        routes = self.registry.routes("volume")
        mine = next((one for one in routes if one.claim.name == self.claim), None)
        return mine if mine is not None else unclaimed(self.registry, self.claim)

    async def answer(
        self,
        verb: str,
        context: Any,
        work: Callable[[Steps], _T],
        *,
        target: str = "",
        secrets: Secrets | None = None,
        undoing: str = "",
    ) -> _T:
        """Run the steps of a call; end it with the status of the error, if there is one."""
        known = self.volumes.known
        if secrets is not None:
            known.remember(self.claim, target, codec.hidden(secrets))
        call = Call(verb, f"volume:{self.claim}", target, mask=known.mask(self.claim))
        try:
            return await self._front.serve(call, self._run(call, work, undoing))
        except PluginError as error:
            await context.abort(grpc.StatusCode[wire(error).grpc], with_request(error.message, error))
            raise AssertionError from error  # abort raises: this line tells the type checker so

    async def _run(self, call: Call, work: Callable[[Steps], _T], undoing: str) -> _T:
        route = self.route(undoing)
        try:
            answer = await self.volumes.run(route, call, work, patience=PATIENCE)
        except OSError as error:
            raise PluginError(f"{type(error).__name__}: {error}") from error
        if route.callers:
            await self.volumes.undo_left(self.registry, self.claim)
        return answer


@dataclass(slots=True)
class _Identity(pb_grpc.IdentityServicer):
    """Who the driver is; never asks the plugin."""

    driver: Driver

    async def GetPluginInfo(self, request: pb.GetPluginInfoRequest, context: Any) -> pb.GetPluginInfoResponse:  # noqa: N802 - the RPC's name
        del request, context
        return pb.GetPluginInfoResponse(name=self.driver.name, vendor_version=self.driver.version)

    async def GetPluginCapabilities(  # noqa: N802 - the RPC's name
        self, request: pb.GetPluginCapabilitiesRequest, context: Any
    ) -> pb.GetPluginCapabilitiesResponse:
        del request
        return await _now(context, lambda: codec.plugin_capabilities(self.driver.claimed.hooks))

    async def Probe(self, request: pb.ProbeRequest, context: Any) -> pb.ProbeResponse:  # noqa: N802 - the RPC's name
        del request, context
        try:
            self.driver.route()
        except PluginError:
            return pb.ProbeResponse(ready=BoolValue(value=False))
        return pb.ProbeResponse(ready=BoolValue(value=True))


@dataclass(slots=True)
class _Node(pb_grpc.NodeServicer):
    """What kubelet calls."""

    driver: Driver

    async def NodeGetInfo(self, request: pb.NodeGetInfoRequest, context: Any) -> pb.NodeGetInfoResponse:  # noqa: N802 - the RPC's name
        del request
        route = await _now(context, lambda: self.driver.claimed)
        claim = cast("VolumeClaim", route.claim)
        return pb.NodeGetInfoResponse(node_id=self.driver.node, max_volumes_per_node=claim.max_volumes)

    async def NodeGetCapabilities(  # noqa: N802 - the RPC's name
        self, request: pb.NodeGetCapabilitiesRequest, context: Any
    ) -> pb.NodeGetCapabilitiesResponse:
        del request
        route = await _now(context, lambda: self.driver.claimed)
        return codec.node_capabilities(cast("VolumeClaim", route.claim), route.hooks)

    async def NodePublishVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodePublishVolumeRequest, context: Any
    ) -> pb.NodePublishVolumeResponse:
        wanted = await _now(
            context, lambda: codec.read_publish(request, cast("VolumeClaim", self.driver.serving.claim))
        )
        await self.driver.answer(
            "NodePublishVolume",
            context,
            lambda steps: volume.publish(steps, wanted),
            target=wanted.target_path,
            secrets=wanted.secrets,
        )
        return pb.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeUnpublishVolumeRequest, context: Any
    ) -> pb.NodeUnpublishVolumeResponse:
        path = await _now(context, lambda: codec.read_unpublish(request))
        folder = volume.globalmount(self.driver.folders, self.driver.name, request.volume_id)
        await self.driver.answer(
            "NodeUnpublishVolume",
            context,
            lambda steps: volume.unpublish(steps, path, folder, trusted=steps.composition.route.plugin != NOBODY),
            target=path,
            undoing="volume_unpublish",
        )
        self.driver.volumes.known.forget(self.driver.claim, path)
        return pb.NodeUnpublishVolumeResponse()

    async def NodeGetVolumeStats(  # noqa: N802 - the RPC's name
        self, request: pb.NodeGetVolumeStatsRequest, context: Any
    ) -> pb.NodeGetVolumeStatsResponse:
        path = await _now(context, lambda: codec.read_stats(request))
        stats = await self.driver.answer(
            "NodeGetVolumeStats", context, lambda steps: volume.measure(steps, path), target=path
        )
        return codec.write_stats(stats)

    async def NodeExpandVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeExpandVolumeRequest, context: Any
    ) -> pb.NodeExpandVolumeResponse:
        path, size, limit = await _now(context, lambda: codec.read_expand(request))
        size = await self.driver.answer(
            "NodeExpandVolume", context, lambda steps: volume.expand(steps, path, size, limit), target=path
        )
        return pb.NodeExpandVolumeResponse(capacity_bytes=size)

    async def NodeStageVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeStageVolumeRequest, context: Any
    ) -> pb.NodeStageVolumeResponse:
        del request
        return await _now(context, _not_staged)

    async def NodeUnstageVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeUnstageVolumeRequest, context: Any
    ) -> pb.NodeUnstageVolumeResponse:
        del request
        return await _now(context, _not_staged)


def _not_staged() -> Any:
    raise NotSupported("volumes are staged when they are published; STAGE_UNSTAGE_VOLUME is not among the capabilities")


def serve(driver: Driver, server: grpc.aio.Server) -> None:
    """Add the services of a driver to a server."""
    pb_grpc.add_IdentityServicer_to_server(_Identity(driver), server)
    pb_grpc.add_NodeServicer_to_server(_Node(driver), server)


async def _now(context: Any, look: Callable[[], _T]) -> _T:
    """Answer from memory, or end the call with the status of the error."""
    try:
        return look()
    except PluginError as error:
        await context.abort(grpc.StatusCode[wire(error).grpc], error.message)
        raise AssertionError from error  # abort raises: this line tells the type checker so
