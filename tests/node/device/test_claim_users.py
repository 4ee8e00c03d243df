"""Which containers use a claim, asked of a kubelet that lists them, on a node that serves claims alone."""

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

from nodeplug.config import PluginSection
from nodeplug.device.podresources import PodResources
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.pb import podresources_v1_pb2 as pb
from nodeplug.pb import podresources_v1_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from tests.node.device.conftest import Minimal

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
OTHER = pb.PodResources(name="other", namespace="shop")


class Lister(pb_grpc.PodResourcesListerServicer):
    def __init__(self) -> None:
        self.pods: Sequence[pb.PodResources] = ()

    async def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:  # noqa: N802 - the RPC's name
        del request, context
        return pb.ListPodResourcesResponse(pod_resources=self.pods)


def using(claim: str) -> pb.PodResources:
    dynamic = pb.DynamicResource(claim_name=claim, claim_namespace="shop")
    container = pb.ContainerResources(name="main", dynamic_resources=[dynamic])
    return pb.PodResources(name="web-0", namespace="shop", containers=[container])


def test_who_uses_a_claim_stays_known_while_kubelet_does_not_know_its_pods(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    async def story() -> None:
        socket = root / "kubelet.sock"
        server, lister, registry = grpc.aio.server(), Lister(), Registry()
        pb_grpc.add_PodResourcesListerServicer_to_server(lister, server)
        server.add_insecure_port(f"unix:{socket}")
        registry.load("claimed", minimal, "d").section = PluginSection(serve="dra")
        looks = PodResources(socket, root / "holders.json", lambda: registry.routes("device"), Runner())
        await server.start()
        try:
            lister.pods = [using("five"), OTHER]
            await looks.look()
            assert looks.users_of("shop", "five") == [("web-0", "main")]
            assert looks.users_of("other", "five") == looks.users_of("shop", "six") == []
            lister.pods = []
            await looks.look()
            assert looks.users_of("shop", "five") == [("web-0", "main")]
            lister.pods = [OTHER]
            await looks.look()
            assert looks.users_of("shop", "five") == []
        finally:
            await server.stop(0)

    run(story())
