"""What kubelet calls: the Node service.

Owns: its RPCs, each through the front.
Refuses: what they do (`volume`), and staging at a path of kubelet's (see `codec.node_capabilities`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import grpc.aio

from nodeplug.contract.errors import NotSupported
from nodeplug.csi import codec, volume
from nodeplug.csi.driver import Driver, now
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.volumes.routes import NOBODY

if TYPE_CHECKING:
    from nodeplug.contract.values import VolumeClaim


@dataclass(slots=True)
class _Node(pb_grpc.NodeServicer):
    """What kubelet calls."""

    driver: Driver

    async def NodeGetInfo(self, request: pb.NodeGetInfoRequest, context: Any) -> pb.NodeGetInfoResponse:  # noqa: N802 - the RPC's name
        del request
        route = await now(context, lambda: self.driver.claimed)
        claim = cast("VolumeClaim", route.claim)
        topology = pb.Topology(segments=self.driver.topology) if self.driver.topology else None
        return pb.NodeGetInfoResponse(
            node_id=self.driver.node, max_volumes_per_node=claim.max_volumes, accessible_topology=topology
        )

    async def NodeGetCapabilities(  # noqa: N802 - the RPC's name
        self, request: pb.NodeGetCapabilitiesRequest, context: Any
    ) -> pb.NodeGetCapabilitiesResponse:
        del request
        route = await now(context, lambda: self.driver.claimed)
        return codec.node_capabilities(cast("VolumeClaim", route.claim), route.hooks)

    async def NodePublishVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodePublishVolumeRequest, context: Any
    ) -> pb.NodePublishVolumeResponse:
        wanted = await now(context, lambda: codec.read_publish(request, cast("VolumeClaim", self.driver.serving.claim)))
        await self.driver.answer(
            "NodePublishVolume",
            context,
            lambda steps: volume.publish(steps, wanted),
            target=wanted.target_path,
            secrets=wanted.secrets,
            pod=wanted.pod,
        )
        return pb.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeUnpublishVolumeRequest, context: Any
    ) -> pb.NodeUnpublishVolumeResponse:
        path = await now(context, lambda: codec.read_unpublish(request))
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
        path = await now(context, lambda: codec.read_stats(request))
        stats = await self.driver.answer(
            "NodeGetVolumeStats", context, lambda steps: volume.measure(steps, path), target=path
        )
        return codec.write_stats(stats)

    async def NodeExpandVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeExpandVolumeRequest, context: Any
    ) -> pb.NodeExpandVolumeResponse:
        path, size, limit = await now(context, lambda: codec.read_expand(request))
        size = await self.driver.answer(
            "NodeExpandVolume", context, lambda steps: volume.expand(steps, path, size, limit), target=path
        )
        return pb.NodeExpandVolumeResponse(capacity_bytes=size)

    async def NodeStageVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeStageVolumeRequest, context: Any
    ) -> pb.NodeStageVolumeResponse:
        del request
        return await now(context, _not_staged)

    async def NodeUnstageVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeUnstageVolumeRequest, context: Any
    ) -> pb.NodeUnstageVolumeResponse:
        del request
        return await now(context, _not_staged)


def _not_staged() -> Any:
    raise NotSupported("volumes are staged when they are published; STAGE_UNSTAGE_VOLUME is not among the capabilities")


def serve(driver: Driver, server: grpc.aio.Server) -> None:
    """Add the service of a driver to a server."""
    pb_grpc.add_NodeServicer_to_server(_Node(driver), server)
