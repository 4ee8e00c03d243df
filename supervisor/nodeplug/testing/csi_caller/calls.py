"""Calls of kubelet to one CSI driver: a connection for each, its deadline, and what its status means.

Owns: kubelet's timeouts, which of its RPCs it sends, and which failures are final.
Refuses: order, paths and directories (`caller`).
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import grpc

from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc

OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
)
_UNCERTAIN: Final = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"})
"""After these the driver may still be at it (csi_client.go, isFinalError)."""
_INFEASIBLE: Final = frozenset({"OUT_OF_RANGE", "INVALID_ARGUMENT", "NOT_FOUND"})
"""After these kubelet expands no further, until the user asks for less."""
_T = TypeVar("_T")


class CsiFailure(Exception):
    """A call failed, as kubelet sees it.

    Attributes:
        code: the gRPC status, such as "NOT_FOUND"; empty if kubelet itself refused.
        message: the driver's, or kubelet's own.
    """

    def __init__(self, call: str, message: str, code: str = "") -> None:
        super().__init__(f"{call} failed: {f'{code}: ' if code else ''}{message}")
        self.code = code
        self.message = message

    @property
    def final(self) -> bool:
        """Whether kubelet forgets the volume; otherwise it unpublishes it before it gives up.

        A refusal of kubelet's own is not: it calls nobody, and tries again.
        """
        return bool(self.code) and self.code not in _UNCERTAIN

    @property
    def infeasible(self) -> bool:
        """Whether kubelet gives up to expand."""
        return self.code in _INFEASIBLE


@dataclass(frozen=True, slots=True)
class CsiTimeouts:
    """Kubelet's deadlines, in seconds.

    Attributes:
        call: for one operation on a volume, all its calls together (csi_plugin.go, csiTimeout).
        dial: for the connection to a registration socket.
        info: for GetInfo.
        notify: for NotifyRegistrationStatus.
        appear: until the driver is in the plugin watcher's folder; kubelet waits for ever.
    """

    call: float = 120.0
    dial: float = 10.0
    info: float = 1.0
    notify: float = 5.0
    appear: float = 30.0

    def scaled(self, factor: float) -> Self:
        """Return all of them, multiplied."""
        return type(self)(**{name.name: getattr(self, name.name) * factor for name in fields(self)})


@dataclass(slots=True)
class NodeCalls:
    """The Node service of one driver, for one operation of kubelet.

    Attributes:
        endpoint: its socket.
        timeout: seconds for all calls of the operation together.
        made: the RPCs that were called, in order.
    """

    endpoint: Path
    timeout: float
    made: list[str] = field(default_factory=list)
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.timeout

    def info(self) -> pb.NodeGetInfoResponse:
        """Ask which node the driver is on; CsiFailure if it answers none that an API server takes."""
        answer = self._call(
            "NodeGetInfo", lambda node, seconds: node.NodeGetInfo(pb.NodeGetInfoRequest(), timeout=seconds)
        )
        if not answer.node_id:
            raise CsiFailure("NodeGetInfo", "error adding CSI driver node info: driverNodeID must not be empty")
        return answer

    def capabilities(self) -> frozenset[str]:
        """Ask what the driver can do; kubelet does before nearly every other call."""
        request = pb.NodeGetCapabilitiesRequest()
        answer = self._call(
            "NodeGetCapabilities", lambda node, seconds: node.NodeGetCapabilities(request, timeout=seconds)
        )
        kinds = pb.NodeServiceCapability.RPC.Type
        return frozenset(kinds.Name(one.rpc.type) for one in answer.capabilities)

    def supports(self, capability: str) -> bool:
        """Ask whether the driver has a capability."""
        return capability in self.capabilities()

    def publish(self, request: pb.NodePublishVolumeRequest) -> None:
        """Have a volume published."""
        self._call("NodePublishVolume", lambda node, seconds: node.NodePublishVolume(request, timeout=seconds))

    def unpublish(self, handle: str, target: Path) -> None:
        """Have a volume unpublished."""
        request = pb.NodeUnpublishVolumeRequest(volume_id=handle, target_path=str(target))
        self._call("NodeUnpublishVolume", lambda node, seconds: node.NodeUnpublishVolume(request, timeout=seconds))

    def stats(self, handle: str, target: Path) -> Mapping[str, Mapping[str, int]]:
        """Ask for the usage of a volume, by unit; CsiFailure if there is none in the answer."""
        request = pb.NodeGetVolumeStatsRequest(volume_id=handle, volume_path=str(target))
        answer = self._call(
            "NodeGetVolumeStats", lambda node, seconds: node.NodeGetVolumeStats(request, timeout=seconds)
        )
        if not answer.usage:
            raise CsiFailure("NodeGetVolumeStats", "failed to get usage from response. usage is nil")
        return {
            pb.VolumeUsage.Unit.Name(one.unit): {"total": one.total, "used": one.used, "available": one.available}
            for one in answer.usage
        }

    def expand(self, request: pb.NodeExpandVolumeRequest) -> int:
        """Have a volume expanded; return the bytes that the driver answers."""
        answer = self._call("NodeExpandVolume", lambda node, seconds: node.NodeExpandVolume(request, timeout=seconds))
        return int(answer.capacity_bytes)

    def _call(self, name: str, work: Callable[[pb_grpc.NodeStub, float], _T]) -> _T:
        self.made.append(name)
        with closing(grpc.insecure_channel(f"unix:{self.endpoint}", OPTIONS)) as channel:
            return answered(name, lambda: work(pb_grpc.NodeStub(channel), max(0.0, self._end - time.monotonic())))


def answered(name: str, work: Callable[[], _T]) -> _T:
    """Return what a call answers, or raise CsiFailure with its status."""
    try:
        return work()
    except grpc.RpcError as error:
        call: Any = error
        raise CsiFailure(name, call.details() or "", call.code().name) from None
