"""The stand-in's podresources API: List, Get and GetAllocatableResources.

Owns: kubelet's peculiarities: one entry per device id and NUMA node, no regular init containers, no pod UID, the limit.
Refuses: to know pods and tables: it gets them at each call.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from nodeplug.pb import podresources_v1_pb2 as pb
from nodeplug.pb import podresources_v1_pb2_grpc as pb_grpc
from nodeplug.testing.kubelet.ledger import NO_NODE, ContainerKey, DeviceAllocateInfo

QPS: Final = 100.0
"""Calls per second that kubelet allows to all clients together."""
BURST: Final = 10


@dataclass(slots=True)
class RateLimit:
    """A token bucket: QPS tokens are added each second, up to BURST; each call takes one.

    Attributes:
        clock: returns seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _left: float = BURST
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._at = self.clock()

    def allows(self) -> bool:
        """Take one call out of the bucket, if there is one."""
        now = self.clock()
        self._left = min(BURST, self._left + (now - self._at) * QPS)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass(slots=True)
class PodResourcesLister(pb_grpc.PodResourcesListerServicer):
    """Serves `v1.PodResourcesLister`.

    Attributes:
        pods: the containers to list, as kubelet knows them now, with what each holds by resource.
        healthy: the healthy ids of each resource, with their NUMA nodes.
        limited: whether the rate limit now refuses every call.
        old_style: as kubelet 1.20: no rate limit, only List, and one entry per NUMA node with all its ids.
    """

    pods: Callable[[], Sequence[tuple[ContainerKey, Mapping[str, DeviceAllocateInfo]]]]
    healthy: Callable[[], Mapping[str, Mapping[str, frozenset[int]]]]
    limited: Callable[[], bool]
    old_style: bool = False
    _limit: RateLimit = field(default_factory=RateLimit)

    async def _admit(self, context: Any, method: str) -> None:
        if self.old_style and method != "List":
            text = f"unknown method {method} for service v1.PodResourcesLister"
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)
        if self.limited() or not (self.old_style or self._limit.allows()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _pods(self) -> list[pb.PodResources]:
        by_pod: dict[tuple[str, str], pb.PodResources] = {}
        for key, held in self.pods():
            place = (key.namespace, key.pod)
            pod = by_pod.setdefault(place, pb.PodResources(name=key.pod, namespace=key.namespace))
            container = pod.containers.add(name=key.container)
            for resource, entry in sorted(held.items()):
                for node, names in sorted(entry.nodes.items()):
                    together = [sorted(names)] if self.old_style else [[name] for name in sorted(names)]
                    container.devices.extend(_devices(resource, ids, node) for ids in together)
        return list(by_pod.values())

    async def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:  # noqa: N802 - the RPC's name
        """Return every pod with the devices of its containers."""
        del request
        await self._admit(context, "List")
        return pb.ListPodResourcesResponse(pod_resources=self._pods())

    async def GetAllocatableResources(  # noqa: N802 - the RPC's name
        self, request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        """Return the healthy ids of every resource, in use or not."""
        del request
        await self._admit(context, "GetAllocatableResources")
        response = pb.AllocatableResourcesResponse()
        for resource, ids in sorted(self.healthy().items()):
            for name, nodes in sorted(ids.items()):
                response.devices.extend(_devices(resource, [name], node) for node in sorted(nodes) or [NO_NODE])
        return response

    async def Get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:  # noqa: N802 - the RPC's name
        """Return one pod; a missing one is UNKNOWN, which grpc-go makes of a plain error."""
        await self._admit(context, "Get")
        for pod in self._pods():
            if (pod.name, pod.namespace) == (request.pod_name, request.pod_namespace):
                return pb.GetPodResourcesResponse(pod_resources=pod)
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError  # abort raises: this line tells the type checker so


def _devices(resource: str, ids: Sequence[str], node: int) -> pb.ContainerDevices:
    entry = pb.ContainerDevices(resource_name=resource, device_ids=ids)
    if node != NO_NODE:
        entry.topology.nodes.add(ID=node)
    return entry
