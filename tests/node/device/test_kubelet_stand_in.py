# ruff: noqa: N802 - the names of RPCs
"""The stand-in behaves as kubelet where a plugin can notice."""

import asyncio
import json
import stat
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.pb import podresources_v1_pb2 as podresources_pb
from nodeplug.pb import podresources_v1_pb2_grpc as podresources_grpc
from nodeplug.testing import AdmissionError, Kubelet, serve_devices

if TYPE_CHECKING:
    from tests.node.device.conftest import Full, Minimal

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE = "example.com/thing"


class RawPlugin(pb_grpc.DevicePluginServicer):
    """A plugin of another make: sends the lists that it is given, and nothing else."""

    def __init__(self, *lists: pb.ListAndWatchResponse) -> None:
        self.lists = lists

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> None:  # type: ignore[override] # grpc.aio allows both forms
        for message in self.lists:
            await context.write(message)
            await asyncio.sleep(0.1)
        await asyncio.Event().wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:
        return pb.PreferredAllocationResponse()

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        return pb.AllocateResponse()

    async def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()


async def serve_raw(kubelet: Kubelet, plugin: RawPlugin) -> grpc.aio.Server:
    server = grpc.aio.server()
    pb_grpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{kubelet.device_plugins}/raw.sock")
    await server.start()
    return server


async def register(kubelet: Kubelet, *, version: str = "v1beta1", resource: str = RESOURCE) -> None:
    async with grpc.aio.insecure_channel(f"unix:{kubelet.socket}") as channel:
        await pb_grpc.RegistrationStub(channel).Register(
            pb.RegisterRequest(version=version, endpoint="raw.sock", resource_name=resource)
        )


def healthy(count: int, health: str = "Healthy") -> pb.ListAndWatchResponse:
    return pb.ListAndWatchResponse(devices=[pb.Device(ID=f"{n:060d}", health=health) for n in range(count)])


@pytest.mark.parametrize(
    ("version", "resource", "text"),
    [
        ("v1alpha1", RESOURCE, 'requested API version "v1alpha1" is not supported by kubelet'),
        ("v1beta1", "noslash", 'the ResourceName "noslash" is invalid'),
        ("v1beta1", "kubernetes.io/x", "is invalid"),
        ("v1beta1", "requests.example.com/x", "is invalid"),
        ("v1beta1", "example.com/with space", "is invalid"),
        ("v1beta1", "example.com/" + "x" * 64, "is invalid"),
    ],
)
def test_register_refuses_in_kubelets_words(root: Path, run: Run, version: str, resource: str, text: str) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await register(kubelet, version=version, resource=resource)
            assert caught.value.code() == grpc.StatusCode.UNKNOWN
            assert text in (caught.value.details() or "")

    run(story())


def test_mixed_case_resource_name_is_accepted(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            server = await serve_raw(kubelet, RawPlugin(healthy(1)))
            await register(kubelet, resource="example.com/UP_per.x")
            await kubelet.until_allocatable("example.com/UP_per.x", 1)
            await server.stop(None)

    run(story())


def test_register_before_serving_fails_after_the_dial_timeout(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root, dial_timeout=0.2) as kubelet:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await register(kubelet)
            assert caught.value.details() == "failed to dial device plugin: context deadline exceeded"

    run(story())


@pytest.mark.whole
def test_list_over_four_mebibytes_ends_the_stream_when_devices_turn_unhealthy(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            count = 56_500
            good, bad = healthy(count), healthy(count, "Unhealthy")
            assert good.ByteSize() < 4_194_304 < bad.ByteSize()
            server = await serve_raw(kubelet, RawPlugin(good, bad))
            await register(kubelet)
            await kubelet.until_allocatable(RESOURCE, count)
            await kubelet.until_allocatable(RESOURCE, 0)
            assert kubelet.capacity(RESOURCE) == count
            assert "RESOURCE_EXHAUSTED" in kubelet.resources[RESOURCE].reason
            assert kubelet.streams(RESOURCE) == 0
            await server.stop(None)

    run(story())


def test_unknown_health_word_is_unhealthy(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            server = await serve_raw(kubelet, RawPlugin(healthy(3, "healthy")))
            await register(kubelet)
            await kubelet.until(lambda: kubelet.capacity(RESOURCE) == 3)
            assert kubelet.allocatable(RESOURCE) == 0
            await server.stop(None)

    run(story())


def test_empty_answer_of_allocate_rejects_the_pod(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            server = await serve_raw(kubelet, RawPlugin(healthy(1)))
            await register(kubelet)
            await kubelet.until_allocatable(RESOURCE, 1)
            with pytest.raises(AdmissionError, match="no containers return in allocation response"):
                await kubelet.admit("pod", {RESOURCE: 1})
            await server.stop(None)

    run(story())


def test_ended_resource_is_removed_after_the_grace(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root, grace=3600) as kubelet:
            async with serve_devices(minimal, kubelet, root):
                await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.until_allocatable(RESOURCE, 0)
            assert kubelet.capacity(RESOURCE) == 4
            kubelet._plugins.timeouts = replace(kubelet._plugins.timeouts, grace=0.1)
            await kubelet.until(lambda: kubelet.capacity(RESOURCE) == 0)
            assert RESOURCE not in kubelet.resources

    run(story())


def test_late_end_of_an_old_endpoint_hurts_only_kubelets_that_know_plugins_by_resource(root: Path, run: Run) -> None:
    async def takeover(kubelet: Kubelet, left: int) -> int:
        first = await serve_raw(kubelet, RawPlugin(healthy(1)))
        await register(kubelet)
        await kubelet.until_allocatable(RESOURCE, 1)
        second = grpc.aio.server()
        pb_grpc.add_DevicePluginServicer_to_server(RawPlugin(healthy(2)), second)
        second.add_insecure_port(f"unix:{kubelet.device_plugins}/second.sock")
        await second.start()
        async with grpc.aio.insecure_channel(f"unix:{kubelet.socket}") as channel:
            request = pb.RegisterRequest(version="v1beta1", endpoint="second.sock", resource_name=RESOURCE)
            await pb_grpc.RegistrationStub(channel).Register(request)
        await kubelet.until_allocatable(RESOURCE, 2)
        assert kubelet.streams(RESOURCE) == 2, "kubelet does not close the old stream"
        await first.stop(None)
        await kubelet.until(lambda: kubelet.streams(RESOURCE) == left)
        found = kubelet.allocatable(RESOURCE)
        await second.stop(None)
        return found

    async def story() -> None:
        async with Kubelet(root) as new:
            assert await takeover(new, left=1) == 2
        async with Kubelet(root, keyed_by="resource") as old:
            assert await takeover(old, left=0) == 0

    run(story())


def test_restart_keeps_what_pods_hold_without_another_allocate(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            granted = await kubelet.admit("pod", {RESOURCE: 3})
            asked = len(full.asked)
            await kubelet.restart()
            await kubelet.until_allocatable(RESOURCE, 4)
            assert (await kubelet.admit("pod", {RESOURCE: 3}))[RESOURCE] == granted[RESOURCE]
            assert len(full.asked) == asked
            with pytest.raises(AdmissionError, match="Requested: 2, Available: 1"):
                await kubelet.admit("late", {RESOURCE: 2})

    run(story())


def test_pod_admitted_before_the_plugin_is_back_is_rejected(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        kubelet = Kubelet(root)
        async with kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
        await kubelet.start()
        with pytest.raises(AdmissionError, match="no healthy devices present"):
            await kubelet.admit("early", {RESOURCE: 1})
        await kubelet.stop()

    run(story())


def test_resource_that_kubelet_never_saw_is_skipped_silently(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            assert await kubelet.admit("pod", {"example.com/unknown": 3}, lenient=True) == {}

    run(story())


def test_checkpoint_has_kubelets_shape(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("pod", {RESOURCE: 1})
            document = json.loads((kubelet.device_plugins / "kubelet_internal_checkpoint").read_text())
            (entry,) = document["Data"]["PodDeviceEntries"]
            assert set(entry) == {"PodUID", "ContainerName", "ResourceName", "DeviceIDs", "AllocResp"}
            assert document["Data"]["RegisteredDevices"] == {RESOURCE: ["d0", "d1", "d2", "d3"]}
            assert "Checksum" in document
            assert stat.S_IMODE(kubelet.device_plugins.stat().st_mode) == 0o750

    run(story())


def test_podresources_lists_one_entry_per_device_and_no_init_containers(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("pod", {RESOURCE: 1}, container="init", init=True)
            await kubelet.admit("pod", {RESOURCE: 2}, container="work")
            async with grpc.aio.insecure_channel(f"unix:{kubelet.podresources_socket}") as channel:
                stub = podresources_grpc.PodResourcesListerStub(channel)
                listed = await stub.List(podresources_pb.ListPodResourcesRequest())
                allocatable = await stub.GetAllocatableResources(podresources_pb.AllocatableResourcesRequest())
                one = await stub.Get(podresources_pb.GetPodResourcesRequest(pod_name="pod", pod_namespace="default"))
            (pod,) = listed.pod_resources
            assert [(container.name, len(container.devices)) for container in pod.containers] == [("work", 2)]
            assert all(len(entry.device_ids) == 1 for entry in pod.containers[0].devices)
            assert len(allocatable.devices) == 4
            assert one.pod_resources == pod

    run(story())


def test_concurrent_admissions_share_no_device(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            granted = await asyncio.gather(*(kubelet.admit(f"pod{n}", {RESOURCE: 1}) for n in range(4)))
            assert len({name for answer in granted for name in answer[RESOURCE].envs}) == 4

    run(story())
