"""The stand-in's podresources API has kubelet's peculiarities."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from nodeplug.pb import podresources_v1_pb2 as pb
from nodeplug.pb import podresources_v1_pb2_grpc as pb_grpc
from nodeplug.testing import AdmissionError, Kubelet
from nodeplug.testing.kubelet import podresources
from nodeplug.testing.kubelet.podresources import BURST, RateLimit
from nodeplug.testing.kubelet.recording import RecordingPlugin

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE = "example.com/thing"
EVERYTHING = pb.ListPodResourcesRequest()


@asynccontextmanager
async def serving(root: Path, **options: Any) -> AsyncIterator[tuple[Kubelet, Any]]:
    """A kubelet with three devices, and a stub of its podresources API."""
    async with Kubelet(root, **options) as kubelet:
        healthy = {"near": True, "wide": True, "bare": True, "sick": False}
        nodes = {"near": [0], "wide": [0, 1]}
        plugin = RecordingPlugin(RESOURCE, kubelet.device_plugins, healthy, nodes=nodes)
        await plugin.register()
        await kubelet.until_allocatable(RESOURCE, 3)
        async with grpc.aio.insecure_channel(f"unix:{kubelet.podresources_socket}") as channel:
            yield kubelet, pb_grpc.PodResourcesListerStub(channel)
        await plugin.stop()


def entries(devices: Any) -> list[tuple[list[str], list[int]]]:
    return sorted((list(entry.device_ids), [node.ID for node in entry.topology.nodes]) for entry in devices)


def test_one_entry_per_device_and_node(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as (kubelet, stub):
            await kubelet.admit("pod", {RESOURCE: 3})
            (pod,) = (await stub.List(EVERYTHING)).pod_resources
            wanted = [(["bare"], []), (["near"], [0]), (["wide"], [0]), (["wide"], [1])]
            assert entries(pod.containers[0].devices) == wanted
            found = await stub.GetAllocatableResources(pb.AllocatableResourcesRequest())
            assert entries(found.devices) == wanted, "in use or not, but healthy"

    run(story())


def test_old_kubelet_has_one_entry_per_node_and_node_0_for_devices_without_any(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root, old_style=True) as (kubelet, stub):
            await kubelet.admit("pod", {RESOURCE: 3})
            (pod,) = (await stub.List(EVERYTHING)).pod_resources
            assert entries(pod.containers[0].devices) == [(["bare", "near", "wide"], [0]), (["wide"], [1])]

    run(story())


@pytest.mark.parametrize(("old_style", "listed"), [(False, ["main", "sidecar"]), (True, ["main"])])
def test_regular_init_containers_are_never_listed(root: Path, run: Run, *, old_style: bool, listed: list[str]) -> None:
    async def story() -> None:
        async with serving(root, old_style=old_style) as (kubelet, stub):
            await kubelet.admit("pod", {RESOURCE: 1}, container="prepare", init=True)
            await kubelet.admit("pod", {}, container="sidecar", init=True, restartable=True)
            await kubelet.admit("pod", {})
            (pod,) = (await stub.List(EVERYTHING)).pod_resources
            assert [container.name for container in pod.containers] == listed

    run(story())


@pytest.mark.parametrize(("old_style", "listed"), [(False, []), (True, ["pod"])])
def test_finished_pods_are_listed_by_old_kubelets_and_hold_nothing(
    root: Path, run: Run, *, old_style: bool, listed: list[str]
) -> None:
    async def story() -> None:
        async with serving(root, old_style=old_style) as (kubelet, stub):
            await kubelet.admit("pod", {RESOURCE: 3})
            kubelet.finish_pod("pod")
            pods = (await stub.List(EVERYTHING)).pod_resources
            assert [pod.name for pod in pods] == listed
            assert not [device for pod in pods for container in pod.containers for device in container.devices]
            kubelet.remove_pod("pod")
            assert not (await stub.List(EVERYTHING)).pod_resources

    run(story())


def test_rejected_pod_is_listed_by_old_kubelets_until_it_is_removed(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root, old_style=True) as (kubelet, stub):
            with pytest.raises(AdmissionError):
                await kubelet.admit("pod", {RESOURCE: 9})
            assert [pod.name for pod in (await stub.List(EVERYTHING)).pod_resources] == ["pod"]
            kubelet.remove_pod("pod")
            assert not (await stub.List(EVERYTHING)).pod_resources

    run(story())


def test_list_frees_what_removed_pods_held(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as (kubelet, stub):
            await kubelet.admit("pod", {RESOURCE: 3})
            kubelet.remove_pod("pod")
            assert kubelet.ledger.in_use[RESOURCE]
            await stub.List(EVERYTHING)
            assert not kubelet.ledger.in_use[RESOURCE]

    run(story())


def test_get_answers_one_pod_and_is_unknown_for_none(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as (kubelet, stub):
            await kubelet.admit("pod", {RESOURCE: 1}, namespace="shop")
            found = await stub.Get(pb.GetPodResourcesRequest(pod_name="pod", pod_namespace="shop"))
            assert len(found.pod_resources.containers[0].devices) >= 1
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Get(pb.GetPodResourcesRequest(pod_name="pod", pod_namespace="default"))
            assert caught.value.code() == grpc.StatusCode.UNKNOWN
            assert caught.value.details() == "pod pod in namespace default not found"

    run(story())


def test_old_kubelet_has_list_alone(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root, old_style=True) as (_kubelet, stub):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetAllocatableResources(pb.AllocatableResourcesRequest())
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert "unknown method GetAllocatableResources" in (caught.value.details() or "")

    run(story())


def test_rate_limit_lets_a_burst_through_and_is_shared(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podresources, "QPS", 0.0)  # a busy machine may call less often than kubelet allows

    async def story() -> None:
        async with serving(root) as (_kubelet, stub):
            for _ in range(BURST):
                await stub.List(EVERYTHING)
            for late in (stub.List(EVERYTHING), stub.GetAllocatableResources(pb.AllocatableResourcesRequest())):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await late
                assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                assert caught.value.details() == "rejected by rate limit"

    run(story())


def test_rate_limit_allows_a_hundred_calls_in_a_second_after_a_burst() -> None:
    moments = [0.0]
    limit = RateLimit(lambda: moments[-1])

    def allowed() -> int:
        return [limit.allows() for _ in range(2 * BURST)].count(True)

    assert allowed() == BURST
    moments.append(3600.0)
    assert allowed() == BURST
    moments.append(3600.055)
    assert allowed() == 5


def test_old_kubelet_has_no_rate_limit(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root, old_style=True) as (_kubelet, stub):
            for _ in range(5 * BURST):
                await stub.List(EVERYTHING)

    run(story())
