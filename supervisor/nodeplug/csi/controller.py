"""What a provisioner calls: the Controller service, for drivers that create volumes.

Owns: its RPCs, each through the front.
Refuses: what they do (`nodeplug.volumes.provisioning`), attaching and modifying volumes, and groups of snapshots.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc.aio

from nodeplug.contract.errors import InvalidRequest
from nodeplug.contract.values import Secrets, VolumeClaim, VolumeId
from nodeplug.csi import codec, controller_codec
from nodeplug.csi.driver import Driver, now
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.volumes import provisioning
from nodeplug.volumes.compose import Steps

_T = TypeVar("_T")


@dataclass(slots=True)
class _Controller(pb_grpc.ControllerServicer):
    """The service."""

    driver: Driver

    def _claim(self) -> VolumeClaim:
        """Return the claim of the driver; TryAgain while nobody serves it."""
        return cast("VolumeClaim", self.driver.serving.claim)

    async def _answer(self, verb: str, context: Any, key: str, secrets: Secrets, work: Callable[[Steps], _T]) -> _T:
        """Run the steps of a call, whose secrets are masked until it has ended."""
        about = f"{verb} {key}"
        try:
            return await self.driver.answer(verb, context, work, target=about, secrets=secrets)
        finally:
            self.driver.volumes.known.forget(self.driver.claim, about)

    async def ControllerGetCapabilities(  # noqa: N802 - the RPC's name
        self, request: pb.ControllerGetCapabilitiesRequest, context: Any
    ) -> pb.ControllerGetCapabilitiesResponse:
        del request
        route = await now(context, lambda: self.driver.claimed)
        return controller_codec.controller_capabilities(cast("VolumeClaim", route.claim), route.hooks)

    # --- volumes

    async def CreateVolume(self, request: pb.CreateVolumeRequest, context: Any) -> pb.CreateVolumeResponse:  # noqa: N802 - the RPC's name
        here = self.driver.topology
        wanted = await now(context, lambda: controller_codec.read_create(request, self._claim(), here))
        made = await self._answer(
            "CreateVolume", context, wanted.name, wanted.secrets, lambda steps: provisioning.create(steps, wanted)
        )
        return pb.CreateVolumeResponse(volume=controller_codec.write_volume(made, here, wanted))

    async def DeleteVolume(self, request: pb.DeleteVolumeRequest, context: Any) -> pb.DeleteVolumeResponse:  # noqa: N802 - the RPC's name
        wanted = await now(context, lambda: controller_codec.read_delete(request, self._claim()))
        await self._answer(
            "DeleteVolume", context, wanted.volume_id, wanted.secrets, lambda steps: provisioning.delete(steps, wanted)
        )
        return pb.DeleteVolumeResponse()

    async def ControllerExpandVolume(  # noqa: N802 - the RPC's name
        self, request: pb.ControllerExpandVolumeRequest, context: Any
    ) -> pb.ControllerExpandVolumeResponse:
        volume_id, size, limit = await now(context, lambda: controller_codec.read_expand(request))
        grown = await self._answer(
            "ControllerExpandVolume",
            context,
            volume_id,
            codec.secrets_in(request.secrets),
            lambda steps: provisioning.expand(steps, volume_id, size, limit),
        )
        # The filesystem, or the device, grows where it is in use.
        return pb.ControllerExpandVolumeResponse(capacity_bytes=grown, node_expansion_required=True)

    async def ValidateVolumeCapabilities(  # noqa: N802 - the RPC's name
        self, request: pb.ValidateVolumeCapabilitiesRequest, context: Any
    ) -> pb.ValidateVolumeCapabilitiesResponse:
        def ask() -> None:
            codec.require(request.volume_id, "volume_id")
            codec.require(request.volume_capabilities, "volume_capabilities")

        await now(context, ask)
        claim = await now(context, self._claim)
        volume_id = VolumeId(request.volume_id)
        if "volume_list" in self.driver.claimed.hooks:
            await self._answer(
                "ValidateVolumeCapabilities",
                context,
                volume_id,
                codec.secrets_in(request.secrets),
                lambda steps: provisioning.one(steps, volume_id),
            )
        try:
            for capability in request.volume_capabilities:
                controller_codec.check_capability(capability, claim)
        except InvalidRequest as error:
            return pb.ValidateVolumeCapabilitiesResponse(message=error.message)
        confirmed = pb.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
        )
        return pb.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    async def ListVolumes(self, request: pb.ListVolumesRequest, context: Any) -> pb.ListVolumesResponse:  # noqa: N802 - the RPC's name
        found = await self.driver.answer("ListVolumes", context, provisioning.every)
        names = [one.volume_id for one in found]
        shown, token = await now(
            context, lambda: controller_codec.page(names, found, request.starting_token, request.max_entries)
        )
        here = self.driver.topology
        entries = [
            pb.ListVolumesResponse.Entry(
                volume=controller_codec.write_volume(one, here),
                status=pb.ListVolumesResponse.VolumeStatus(volume_condition=controller_codec.write_condition(one)),
            )
            for one in shown
        ]
        return pb.ListVolumesResponse(entries=entries, next_token=token)

    async def ControllerGetVolume(  # noqa: N802 - the RPC's name
        self, request: pb.ControllerGetVolumeRequest, context: Any
    ) -> pb.ControllerGetVolumeResponse:
        await now(context, lambda: codec.require(request.volume_id, "volume_id"))
        volume_id = VolumeId(request.volume_id)
        found = await self.driver.answer(
            "ControllerGetVolume", context, lambda steps: provisioning.one(steps, volume_id)
        )
        status = pb.ControllerGetVolumeResponse.VolumeStatus(volume_condition=controller_codec.write_condition(found))
        return pb.ControllerGetVolumeResponse(
            volume=controller_codec.write_volume(found, self.driver.topology), status=status
        )

    async def GetCapacity(self, request: pb.GetCapacityRequest, context: Any) -> pb.GetCapacityResponse:  # noqa: N802 - the RPC's name
        here = self.driver.topology
        asked = await now(context, lambda: controller_codec.read_capacity(request, self._claim(), here))
        if asked is None:
            return pb.GetCapacityResponse(available_capacity=0)
        room = await self.driver.answer("GetCapacity", context, lambda steps: provisioning.capacity(steps, asked))
        return controller_codec.write_room(room)

    # --- snapshots

    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: Any) -> pb.CreateSnapshotResponse:  # noqa: N802 - the RPC's name
        wanted = await now(context, lambda: controller_codec.read_snapshot(request, self._claim()))
        made = await self._answer(
            "CreateSnapshot", context, wanted.name, wanted.secrets, lambda steps: provisioning.snapshot(steps, wanted)
        )
        return pb.CreateSnapshotResponse(snapshot=controller_codec.write_snapshot(made))

    async def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, context: Any) -> pb.DeleteSnapshotResponse:  # noqa: N802 - the RPC's name
        wanted = await now(context, lambda: controller_codec.read_delete_snapshot(request, self._claim()))
        await self._answer(
            "DeleteSnapshot",
            context,
            wanted.snapshot_id,
            wanted.secrets,
            lambda steps: provisioning.delete_snapshot(steps, wanted),
        )
        return pb.DeleteSnapshotResponse()

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest, context: Any) -> pb.ListSnapshotsResponse:  # noqa: N802 - the RPC's name
        found = await self._answer(
            "ListSnapshots", context, "", codec.secrets_in(request.secrets), provisioning.snapshots
        )
        wanted = [
            one
            for one in found
            if request.snapshot_id in {"", one.snapshot_id} and request.source_volume_id in {"", one.volume_id}
        ]
        names = [one.snapshot_id for one in wanted]
        shown, token = await now(
            context, lambda: controller_codec.page(names, wanted, request.starting_token, request.max_entries)
        )
        entries = [pb.ListSnapshotsResponse.Entry(snapshot=controller_codec.write_snapshot(one)) for one in shown]
        return pb.ListSnapshotsResponse(entries=entries, next_token=token)


def serve(driver: Driver, server: grpc.aio.Server) -> None:
    """Add the service of a driver to a server."""
    pb_grpc.add_ControllerServicer_to_server(_Controller(driver), server)
