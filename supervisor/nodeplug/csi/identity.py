"""Who a CSI driver is: the Identity service, for sidecars.

Owns: its RPCs.
Refuses: to ask the plugin. Kubelet never calls these.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import grpc.aio
from google.protobuf.wrappers_pb2 import BoolValue

from nodeplug.contract.errors import PluginError
from nodeplug.csi import controller_codec
from nodeplug.csi.driver import Driver
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from nodeplug.contract.values import VolumeClaim


@dataclass(slots=True)
class _Identity(pb_grpc.IdentityServicer):
    """The service."""

    driver: Driver

    async def GetPluginInfo(self, request: pb.GetPluginInfoRequest, context: Any) -> pb.GetPluginInfoResponse:  # noqa: N802 - the RPC's name
        del request, context
        return pb.GetPluginInfoResponse(name=self.driver.name, vendor_version=self.driver.version)

    async def GetPluginCapabilities(  # noqa: N802 - the RPC's name
        self, request: pb.GetPluginCapabilitiesRequest, context: Any
    ) -> pb.GetPluginCapabilitiesResponse:
        del request, context
        route = self.driver.claimed
        return controller_codec.plugin_capabilities(cast("VolumeClaim", route.claim), route.hooks)

    async def Probe(self, request: pb.ProbeRequest, context: Any) -> pb.ProbeResponse:  # noqa: N802 - the RPC's name
        del request, context
        try:
            self.driver.route()
        except PluginError:
            return pb.ProbeResponse(ready=BoolValue(value=False))
        return pb.ProbeResponse(ready=BoolValue(value=True))


def serve(driver: Driver, server: grpc.aio.Server) -> None:
    """Add the service of a driver to a server."""
    pb_grpc.add_IdentityServicer_to_server(_Identity(driver), server)
