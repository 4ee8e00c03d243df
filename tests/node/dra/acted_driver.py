"""A small DRA driver, which is not nodeplug's: what it answers is what a test says."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import grpc
from tests.node.dra.objects import DRIVER

from nodeplug.pb import dra_health_v1alpha1_pb2 as health
from nodeplug.pb import dra_health_v1alpha1_pb2_grpc as health_grpc
from nodeplug.pb import dra_v1_pb2 as pb
from nodeplug.pb import dra_v1_pb2_grpc as pb_grpc
from nodeplug.pb import pluginregistration_v1_pb2 as registration
from nodeplug.pb import pluginregistration_v1_pb2_grpc as registration_grpc

Answer = Callable[[pb.Claim], pb.NodePrepareResourceResponse | None]


def device(claim: pb.Claim, name: str = "one", *cdi: str, request: str = "gpu", share: str = "") -> pb.Device:
    names = cdi or (f"acme.example.com/gpu={claim.uid}-{request}",)
    found = pb.Device(request_names=[request], pool_name="pool", device_name=name, cdi_device_ids=names)
    if share:
        found.share_id = share
    return found


def prepared(claim: pb.Claim) -> pb.NodePrepareResourceResponse:
    return pb.NodePrepareResourceResponse(devices=[device(claim)])


class ActedDriver(
    registration_grpc.RegistrationServicer, pb_grpc.DRAPluginServicer, health_grpc.DRAResourceHealthServicer
):
    """One instance.

    Attributes:
        answer: what a prepare answers for a claim; None leaves it out.
        refuse: a message with which every unprepare fails, or empty.
        calls: what was called, as `prepare one two`.
        verdicts: what kubelet said of the registration.
    """

    def __init__(
        self,
        registry: Path,
        *,
        instance: str = "a",
        versions: Sequence[str] = ("v1.DRAPlugin",),
        kind: str = "DRAPlugin",
        endpoint: str = "",
        answer: Answer = prepared,
    ) -> None:
        self.socket = registry / f"{DRIVER}-{instance}-reg.sock"
        self.endpoint = registry.parent / f"{instance}.sock"
        self.info = registration.PluginInfo(
            type=kind, name=DRIVER, endpoint=endpoint or str(self.endpoint), supported_versions=versions
        )
        self.answer, self.refuse = answer, ""
        self.calls: list[str] = []
        self.verdicts: list[str] = []
        self.told: list[health.NodeWatchResourcesResponse] = []
        self.ended = threading.Event()
        self._servers = [self._serve(self.endpoint), self._serve(self.socket)]

    def _serve(self, path: Path) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(8))
        if path == self.socket:
            registration_grpc.add_RegistrationServicer_to_server(self, server)
        else:
            pb_grpc.add_DRAPluginServicer_to_server(self, server)
            health_grpc.add_DRAResourceHealthServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        return server

    def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:  # noqa: N802 - the RPC's name
        return self.info

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.verdicts.append(request.error)
        return registration.RegistrationStatusResponse()

    def NodePrepareResources(self, request: Any, context: Any) -> pb.NodePrepareResourcesResponse:  # noqa: N802
        self.calls.append(f"prepare {' '.join(claim.name for claim in request.claims)}")
        answers = {claim.uid: self.answer(claim) for claim in request.claims}
        return pb.NodePrepareResourcesResponse(claims={uid: one for uid, one in answers.items() if one is not None})

    def NodeUnprepareResources(self, request: Any, context: Any) -> pb.NodeUnprepareResourcesResponse:  # noqa: N802
        self.calls.append(f"unprepare {' '.join(claim.name for claim in request.claims)}")
        answers = {claim.uid: pb.NodeUnprepareResourceResponse(error=self.refuse) for claim in request.claims}
        return pb.NodeUnprepareResourcesResponse(claims=answers)

    def NodeWatchResources(self, request: Any, context: Any) -> Iterator[health.NodeWatchResourcesResponse]:  # noqa: N802
        yield from self.told
        self.ended.wait(60)

    def kill(self) -> None:
        """Be gone as after SIGKILL: nobody listens, and both socket files are there."""
        self.ended.set()
        for server in self._servers:
            server.stop(0).wait()
        for path in (self.socket, self.endpoint):
            leave_dead(path)

    def close(self) -> None:
        """End, and remove the sockets."""
        self.ended.set()
        for server in self._servers:
            server.stop(0).wait()
        self.socket.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def leave_dead(path: Path) -> None:
    """Leave a socket at which nobody listens."""
    import socket  # noqa: PLC0415 - the name is that of an attribute here

    path.unlink(missing_ok=True)
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))
