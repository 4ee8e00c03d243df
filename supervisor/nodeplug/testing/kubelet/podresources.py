"""The stand-in's podresources API: List and GetAllocatableResources from the ledger.

Owns: kubelet's peculiarities: one entry per device id, no regular init containers, no pod UID, a rate limit.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from nodeplug.pb import podresources_v1_pb2 as pb
from nodeplug.pb import podresources_v1_pb2_grpc as pb_grpc
from nodeplug.testing.kubelet.ledger import ContainerKey, Ledger


@dataclass(slots=True)
class PodResourcesLister(pb_grpc.PodResourcesListerServicer):
    """Serves `v1.PodResourcesLister`.

    Attributes:
        pods: the containers that kubelet knows; empty while it has not heard from the API server.
        ledger: who holds what, as it is now.
        allocatable: the healthy ids of each resource.
        limited: whether the rate limit refuses every call at present.
    """

    pods: Callable[[], Collection[ContainerKey]]
    ledger: Callable[[], Ledger]
    allocatable: Callable[[], Mapping[str, Collection[str]]]
    limited: Callable[[], bool]

    async def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:  # noqa: N802 - the RPC's name
        """Answer every pod with the devices of its containers."""
        del request
        if self.limited():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        response = pb.ListPodResourcesResponse()
        by_pod: dict[tuple[str, str], pb.PodResources] = {}
        for key in sorted(self.pods()):
            place = (key.namespace, key.pod)
            if place not in by_pod:
                by_pod[place] = response.pod_resources.add(name=key.pod, namespace=key.namespace)
            self._add_container(by_pod[place], key)
        return response

    def _add_container(self, pod: pb.PodResources, key: ContainerKey) -> None:
        held = {of: entry for (owner, of), entry in self.ledger().entries.items() if owner == key}
        if any(entry.init for entry in held.values()):
            return
        container = pod.containers.add(name=key.container)
        for resource, entry in sorted(held.items()):
            for name in sorted(entry.ids):
                container.devices.add(resource_name=resource, device_ids=[name])

    async def GetAllocatableResources(  # noqa: N802 - the RPC's name
        self, request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        """Answer the healthy ids of every resource."""
        del request, context
        response = pb.AllocatableResourcesResponse()
        for resource, ids in sorted(self.allocatable().items()):
            for name in sorted(ids):
                response.devices.add(resource_name=resource, device_ids=[name])
        return response

    async def Get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:  # noqa: N802 - the RPC's name
        """Answer one pod."""
        listed = await self.List(pb.ListPodResourcesRequest(), context)
        for pod in listed.pod_resources:
            if (pod.name, pod.namespace) == (request.pod_name, request.pod_namespace):
                return pb.GetPodResourcesResponse(pod_resources=pod)
        await context.abort(grpc.StatusCode.NOT_FOUND, f"pod {request.pod_namespace}/{request.pod_name} not found")
        raise AssertionError  # abort raises: this line tells the type checker so
