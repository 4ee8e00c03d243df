"""kubelet's podresources API, as far as claims are in it.

Owns: its peculiarities: all devices of a claim for each container that uses it, whatever request that names; devices
twice after a repeated prepare; and in the n-th device the CDI names of the first n.
Refuses: devices of device plugins: `nodeplug.testing.Kubelet` lists those.

Source: kubernetes 1.36, pkg/kubelet/cm/dra/manager.go, GetResources; cm/container_manager_linux.go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from nodeplug.pb import podresources_v1_pb2 as pb
from nodeplug.pb import podresources_v1_pb2_grpc as pb_grpc
from nodeplug.testing.dra.prepared import ClaimInfo

Held = Mapping[tuple[str, str], Mapping[str, Sequence[ClaimInfo]]]
"""By namespace and name of a pod and by container: the claims that it uses."""


class PodResources(pb_grpc.PodResourcesListerServicer):
    """Serves `v1.PodResourcesLister` on a socket.

    Args:
        path: of the socket.
        held: returns what there is now.
    """

    def __init__(self, path: Path, held: Callable[[], Held]) -> None:
        self._held = held
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(2))
        pb_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def stop(self) -> None:
        """End it."""
        self._server.stop(0).wait()

    def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:  # noqa: N802 - the RPC's name
        """Return every pod with the claims of its containers."""
        del request, context
        return pb.ListPodResourcesResponse(pod_resources=self._pods())

    def Get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:  # noqa: N802 - the RPC's name
        """Return one pod."""
        for pod in self._pods():
            if (pod.name, pod.namespace) == (request.pod_name, request.pod_namespace):
                return pb.GetPodResourcesResponse(pod_resources=pod)
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError  # abort raises: this line tells the type checker so

    def GetAllocatableResources(self, request: Any, context: Any) -> pb.AllocatableResourcesResponse:  # noqa: N802 - the RPC's name
        """Return nothing: devices of slices are not in it."""
        del request, context
        return pb.AllocatableResourcesResponse()

    def _pods(self) -> Iterator[pb.PodResources]:
        for (namespace, name), containers in self._held().items():
            pod = pb.PodResources(name=name, namespace=namespace)
            for container, claims in containers.items():
                pod.containers.add(name=container).dynamic_resources.extend(map(dynamic_resource, claims))
            yield pod


def dynamic_resource(claim: ClaimInfo) -> pb.DynamicResource:
    """Return a claim as kubelet lists it for each container that uses it."""
    found = pb.DynamicResource(claim_name=claim.name, claim_namespace=claim.namespace)
    for driver, states in claim.drivers.items():
        names: list[str] = []
        for state in states:
            names += state.cdi
            listed = found.claim_resources.add(driver_name=driver, pool_name=state.pool, device_name=state.device)
            listed.cdi_devices.extend(pb.CDIDevice(name=name) for name in names)
            if state.share_id:
                listed.share_id = state.share_id
    return found
