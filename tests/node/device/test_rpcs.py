"""The five RPCs over real gRPC: answers, errors, streams."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from nodeplug import (
    Device,
    DeviceId,
    DevicePrefer,
    Exhausted,
    Grant,
    NotReady,
    PluginError,
    TryAgain,
)
from nodeplug.device.codec import LIST_LIMIT, worst_case_size
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.testing import AdmissionError, DeviceHost, Kubelet, serve_devices

if TYPE_CHECKING:
    from tests.node.device.conftest import Full, Minimal

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE = "example.com/thing"


@asynccontextmanager
async def dialled(host: DeviceHost) -> AsyncIterator["pb_grpc.DevicePluginAsyncStub"]:
    """Be a second client of the plugin, beside kubelet."""
    path = host.tasks[RESOURCE].status().socket
    assert path is not None
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield pb_grpc.DevicePluginStub(channel)


def allocation(*ids: str) -> pb.AllocateRequest:
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def test_allocate_without_a_hook_grants_what_the_devices_carry(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            granted = await kubelet.admit("pod", {RESOURCE: 4})
            assert dict(granted[RESOURCE].envs) == {"D0": "1", "D1": "1", "D2": "1", "D3": "1"}

    run(story())


def test_allocate_asks_the_plugin_with_the_listed_devices(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            async with dialled(host) as plugin:
                response = await plugin.Allocate(allocation("d2", "d0"))
                assert dict(response.container_responses[0].envs) == {"D0": "1", "D2": "1"}
            (request,) = full.asked
            assert request.ids == ("d2", "d0")
            assert request.devices == (full.devices[2], full.devices[0])

    run(story())


def test_a_call_tells_people_which_devices_it_is_about(full: "Full", root: Path, run: Run) -> None:
    told: list[str] = []

    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            # The plugin is also asked for what concerns no device, such as its health.
            host.runner.finished = lambda call, _: told.append(call.about) if call.about else None
            async with dialled(host) as plugin:
                await plugin.Allocate(allocation("d2", "d0"))
                await plugin.Allocate(allocation("d0", "d1", "d2", "d3"))
                await status_of(plugin.Allocate(allocation("x" * 5000)))
                wanted = pb.ContainerPreferredAllocationRequest(available_deviceIDs=["d0", "d1"], allocation_size=1)
                await plugin.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[wanted]))

    run(story())
    assert told == ["d2, d0", "d0, d1, d2 and 1 more", f"{'x' * 100}…", "1 of 2 devices"]


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (allocation("d9"), grpc.StatusCode.NOT_FOUND, "device 'd9' is not among the 4 devices of example.com/thing"),
        (allocation("d0", "d0"), grpc.StatusCode.INVALID_ARGUMENT, "names device 'd0' twice"),
        (allocation("d3"), grpc.StatusCode.UNAVAILABLE, "device 'd3' of example.com/thing is unhealthy: it smokes"),
        (allocation(), grpc.StatusCode.INVALID_ARGUMENT, "names no device"),
        (pb.AllocateRequest(), grpc.StatusCode.INVALID_ARGUMENT, "names no container"),
    ],
)
def test_allocate_that_cannot_be_right_is_refused_with_a_reason(
    minimal: "Minimal", root: Path, run: Run, request_: pb.AllocateRequest, code: grpc.StatusCode, text: str
) -> None:
    async def story() -> None:
        minimal.mark("d3", healthy=False)
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 3)
            async with dialled(host) as plugin:
                found, details = await status_of(plugin.Allocate(request_))
            assert found == code
            assert text in details

    run(story())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PluginError("broken"), grpc.StatusCode.INTERNAL),
        (Exhausted("3 of 3 in use"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (TryAgain("later"), grpc.StatusCode.UNAVAILABLE),
        (NotReady("cold"), grpc.StatusCode.UNAVAILABLE),
        (KeyError("stray"), grpc.StatusCode.INTERNAL),
    ],
)
def test_error_of_a_plugin_reaches_kubelet_with_its_code_and_the_request_id(
    full: "Full",
    root: Path,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    code: grpc.StatusCode,
) -> None:
    async def story() -> None:
        full.errors["device_allocate"] = error
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            async with dialled(host) as plugin:
                found, details = await status_of(plugin.Allocate(allocation("d0")))
            assert found == code
            request_id = details.partition("(request ")[2][:8]
            lines = [record.getMessage() for record in caplog.records if request_id in record.getMessage()]
            assert len(lines) == 1, "logged once, under the id that kubelet shows"
            assert str(error.args[0]) in details

    run(story())


def test_rejected_pod_shows_the_sentence_of_the_plugin(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        full.errors["device_allocate"] = Exhausted("0 of 8 lanes are left; use another node")
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            with pytest.raises(AdmissionError, match="code = ResourceExhausted desc = 0 of 8 lanes are left"):
                await kubelet.admit("pod", {RESOURCE: 1})
            assert kubelet.ledger.entries == {}

    run(story())


def test_hung_allocate_is_answered_at_its_deadline_while_other_calls_work(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        full.hang = threading.Event()
        deadlines = {"device_allocate": 0.3}
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root, deadlines=deadlines) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            async with dialled(host) as plugin:
                hung = asyncio.ensure_future(status_of(plugin.Allocate(allocation("d0"))))
                await kubelet.until(lambda: len(full.asked) == 1)
                await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["d1"]))
                full.mark("d3", healthy=False)
                await kubelet.until_allocatable(RESOURCE, 3)
                assert (await hung)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
                assert len(host.slot.overdue) == 1
                host.slot.deadlines = {}
                release, full.hang = full.hang, None
                await plugin.Allocate(allocation("d0"))  # the same device, while the first call still hangs
                release.set()
                await kubelet.until(lambda: not host.slot.overdue)

    run(story())


def test_preference_of_the_plugin_is_followed(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        full.preference = lambda request: sorted(request.available)[-request.size :]
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            granted = await kubelet.admit("pod", {RESOURCE: 2})
            assert dict(granted[RESOURCE].envs) == {"D2": "1", "D3": "1"}

    run(story())


def test_preference_for_foreign_ids_is_dropped_and_logged(
    full: "Full", root: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        full.preference = lambda request: [DeviceId("nonsense"), request.available[0]]
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            async with dialled(host) as plugin:
                container = pb.ContainerPreferredAllocationRequest(available_deviceIDs=["d0", "d1"], allocation_size=1)
                response = await plugin.GetPreferredAllocation(
                    pb.PreferredAllocationRequest(container_requests=[container])
                )
            assert list(response.container_responses[0].deviceIDs) == ["d0"]
            assert "'nonsense'" in caplog.text

    run(story())


def test_preference_that_is_left_out_leaves_the_choice_to_kubelet(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            async with dialled(host) as plugin:
                response = await plugin.GetPreferredAllocation(
                    pb.PreferredAllocationRequest(container_requests=[pb.ContainerPreferredAllocationRequest()])
                )
            assert list(response.container_responses[0].deviceIDs) == []

    run(story())


def test_preferred_allocation_request_beyond_four_mebibytes_is_read(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            names = [f"{number:060d}" for number in range(80_000)]
            async with dialled(host) as plugin:
                container = pb.ContainerPreferredAllocationRequest(available_deviceIDs=names, allocation_size=1)
                request = pb.PreferredAllocationRequest(container_requests=[container])
                assert request.ByteSize() > 4_194_304
                response = await plugin.GetPreferredAllocation(request)
            assert list(response.container_responses[0].deviceIDs) == names[:1]
            assert isinstance(full.asked[0], DevicePrefer)

    run(story())


def test_prestart_runs_before_each_start_and_fails_while_the_plugin_is_away(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            async with serve_devices(full, kubelet, root):
                await kubelet.until_allocatable(RESOURCE, 4)
                await kubelet.admit("pod", {RESOURCE: 1})
                full.asked.clear()
                await kubelet.start_container("pod")
                assert [type(request).__name__ for request in full.asked] == ["DevicePrestart"]
            await kubelet.until(lambda: kubelet.streams(RESOURCE) == 0)
            with pytest.raises(AdmissionError, match="has been stopped"):
                await kubelet.start_container("pod")

    run(story())


def test_unhealthy_device_lowers_allocatable_and_comes_back(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            minimal.mark("d1", healthy=False)
            host.tasks[RESOURCE].refresh()
            await kubelet.until_allocatable(RESOURCE, 3)
            assert kubelet.capacity(RESOURCE) == 4
            minimal.mark("d1", healthy=True)
            host.tasks[RESOURCE].refresh()
            await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_refresh_lists_at_once(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root, poll=3600) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            minimal.mark("d1", healthy=False)
            host.tasks[RESOURCE].refresh()
            await kubelet.until_allocatable(RESOURCE, 3)

    run(story())


def test_failing_list_keeps_the_last_one_and_says_why(
    minimal: "Minimal", root: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            minimal.failure = PluginError("the bus is stuck")
            await kubelet.until(lambda: "the bus is stuck" in host.tasks[RESOURCE].status().error)
            assert kubelet.allocatable(RESOURCE) == 4
            before = minimal.listings
            await kubelet.until(lambda: minimal.listings > before + 2)
            assert caplog.text.count("the bus is stuck") == 1
            minimal.failure = None
            await kubelet.until(lambda: host.tasks[RESOURCE].status().error == "")

    run(story())


def test_list_that_would_overflow_is_not_sent_and_the_last_one_is_unhealthy_where_it_lacks_devices(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            long = [Device(DeviceId(f"{number:063d}")) for number in range(20_000)]
            minimal.devices = [minimal.devices[0], *long]
            await kubelet.until(lambda: str(LIST_LIMIT) in host.tasks[RESOURCE].status().error)
            assert str(worst_case_size(minimal.devices)) in host.tasks[RESOURCE].status().error
            await kubelet.until_allocatable(RESOURCE, 1)
            assert (kubelet.capacity(RESOURCE), kubelet.streams(RESOURCE)) == (4, 1)

    run(story())


def test_largest_list_arrives_when_every_device_is_unhealthy(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        minimal.devices = [Device(DeviceId(f"{number:060d}"), healthy=False) for number in range(13_900)]
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until(lambda: kubelet.capacity(RESOURCE) == 13_900)
            assert kubelet.streams(RESOURCE) == 1

    run(story())


def test_dead_stream_takes_no_list_from_a_live_one(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            async with dialled(host) as one, dialled(host) as other:
                dead, live = one.ListAndWatch(pb.Empty()), other.ListAndWatch(pb.Empty())
                for stream in (dead, live):
                    first = await stream.read()
                    assert isinstance(first, pb.ListAndWatchResponse)
                assert host.tasks[RESOURCE].status().streams == 3
                dead.cancel()
                await kubelet.until(lambda: host.tasks[RESOURCE].status().streams == 2)
                minimal.mark("d0", healthy=False)
                second = await live.read()
                assert isinstance(second, pb.ListAndWatchResponse)
                assert [device.health for device in second.devices] == ["Unhealthy"] + ["Healthy"] * 3
                await kubelet.until_allocatable(RESOURCE, 3)
                live.cancel()

    run(story())


def test_equal_lists_are_sent_once(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            minimal.devices = [
                Device(device.id, reason="another", grant=Grant(env={"NEW": "1"})) for device in minimal.devices[::-1]
            ]
            before = minimal.listings
            await kubelet.until(lambda: minimal.listings > before + 2)
            assert kubelet.resources[RESOURCE].lists == 1
            granted = await kubelet.admit("pod", {RESOURCE: 1})
            assert dict(granted[RESOURCE].envs) == {"NEW": "1"}, "the newest grant counts all the same"

    run(story())


def test_grant_that_cannot_be_sent_is_an_internal_error(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        full.devices = [Device(DeviceId("d0"), grant=Grant(cdi=("no cdi name",)))]
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 1)
            with pytest.raises(AdmissionError, match=r"code = Internal desc = .*vendor.com/class=name"):
                await kubelet.admit("pod", {RESOURCE: 1})

    run(story())
