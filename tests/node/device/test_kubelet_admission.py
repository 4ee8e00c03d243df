"""The stand-in gives devices to pods as kubelet does."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing import AdmissionError, Kubelet
from nodeplug.testing.kubelet import Timeouts, UnknownResourceError
from nodeplug.testing.kubelet.admission import merged
from nodeplug.testing.kubelet.recording import RecordingPlugin

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE, OTHER = "example.com/thing", "example.com/other"
FOUR = {f"d{number}": True for number in range(4)}
BOTH = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


@asynccontextmanager
async def registered(
    kubelet: Kubelet, options: pb.DevicePluginOptions = BOTH, resource: str = RESOURCE, **more: Any
) -> AsyncIterator[RecordingPlugin]:
    plugin = RecordingPlugin(resource, kubelet.device_plugins, dict(FOUR), options=options, **more)
    await plugin.register()
    await kubelet.until_allocatable(resource, 4)
    plugin.calls.clear()
    try:
        yield plugin
    finally:
        await plugin.stop()


def verbs(plugin: RecordingPlugin) -> list[str]:
    return [call.split()[1] for call in plugin.calls]


def test_resource_without_a_list_is_refused_to_test_authors(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            with pytest.raises(UnknownResourceError, match="wait with until_allocatable, or pass lenient"):
                await kubelet.admit("pod", {RESOURCE: 1})

    run(story())


def test_resource_without_a_list_is_skipped_silently_when_lenient(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            kubelet.hold_streams = True
            plugin = RecordingPlugin(RESOURCE, kubelet.device_plugins, dict(FOUR))
            await plugin.register()
            assert kubelet.streams(RESOURCE) == 0
            assert await kubelet.admit("pod", {RESOURCE: 1}, lenient=True) == {}, "registered is not listed"
            await plugin.stop()

    run(story())


def test_container_that_was_skipped_gets_its_devices_at_its_start(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            await kubelet.admit("early", {RESOURCE: 1}, lenient=True)
            async with registered(kubelet, pb.DevicePluginOptions()) as plugin:
                assert (await kubelet.start_container("early")).envs == {"GOT": "1"}
                assert verbs(plugin) == ["Allocate"]

    run(story())


def test_size_is_the_total_and_preference_is_asked_even_when_all_are_wanted(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, registered(kubelet) as plugin:
            await kubelet.admit("pod", {RESOURCE: 4})
            assert "GetPreferredAllocation of 4 available, 0 to include, 4 in all, no deadline" in plugin.calls[0]

    run(story())


def test_second_container_must_include_what_the_init_container_left(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, registered(kubelet) as plugin:
            await kubelet.admit("pod", {RESOURCE: 2}, container="prepare", init=True)
            await kubelet.admit("pod", {RESOURCE: 1}, container="left")
            plugin.calls.clear()
            await kubelet.admit("pod", {RESOURCE: 2}, container="right")
            assert "GetPreferredAllocation of 3 available, 1 to include, 2 in all" in plugin.calls[0]
            first, second, third = plugin.allocated
            assert second | (third & first) == first

    run(story())


def test_restartable_init_container_keeps_its_devices(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, registered(kubelet) as plugin:
            await kubelet.admit("pod", {RESOURCE: 1}, container="sidecar", init=True, restartable=True)
            await kubelet.admit("pod", {RESOURCE: 1})
            first, second = plugin.allocated
            assert not first & second

    run(story())


@pytest.mark.parametrize(("old_style", "fails"), [(False, True), (True, False)])
def test_limit_of_zero_fails_on_new_kubelets_alone_when_nothing_is_healthy(
    root: Path, run: Run, *, old_style: bool, fails: bool
) -> None:
    async def story() -> None:
        async with Kubelet(root, old_style=old_style) as kubelet, registered(kubelet) as plugin:
            await kubelet.admit("fine", {RESOURCE: 0})
            plugin.mark(**dict.fromkeys(FOUR, False))
            await kubelet.until_allocatable(RESOURCE, 0)
            if fails:
                with pytest.raises(AdmissionError, match="no healthy devices present"):
                    await kubelet.admit("pod", {RESOURCE: 0})
            else:
                await kubelet.admit("pod", {RESOURCE: 0})
            assert plugin.calls == []

    run(story())


def test_changed_request_is_refused_in_kubelets_words(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, registered(kubelet):
            await kubelet.admit("pod", {RESOURCE: 1})
            words = r'pod ".*" container "main" changed request for resource "example.com/thing" from 1 to 2'
            with pytest.raises(AdmissionError, match=words):
                await kubelet.admit("pod", {RESOURCE: 2})

    run(story())


def test_ids_of_a_failed_preference_stay_in_use_until_the_set_is_made_anew(root: Path, run: Run) -> None:
    """Kubelet takes aligned ids first, asks then, and gives nothing back when that fails."""

    async def story() -> None:
        nodes = {"d0": [0], "d1": [0], "d2": [1], "d3": [1]}
        async with Kubelet(root) as kubelet, registered(kubelet, nodes=nodes) as plugin:
            plugin.failure = "prefer"
            with pytest.raises(AdmissionError, match=r"GetPreferredAllocation rpc failed with err: .*no taste"):
                await kubelet.admit("pod", {RESOURCE: 3}, numa=[0])
            plugin.failure = ""
            with pytest.raises(AdmissionError, match="Requested: 4, Available: 2"):
                await kubelet.admit("big", {RESOURCE: 4})
            plugin.failure = "allocate"
            with pytest.raises(AdmissionError, match="sold out"):
                await kubelet.admit("unlucky", {RESOURCE: 1})
            plugin.failure = ""
            await kubelet.admit("lucky", {RESOURCE: 4})

    run(story())


def test_devices_of_an_unhappy_pod_are_free_for_the_next(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, registered(kubelet):
            await kubelet.admit("pod", {RESOURCE: 3}, container="left")
            with pytest.raises(AdmissionError, match="Requested: 2, Available: 1"):
                await kubelet.admit("pod", {RESOURCE: 2}, container="right")
            await kubelet.admit("next", {RESOURCE: 4})

    run(story())


def test_concurrent_allocates_share_no_device_even_without_a_preference(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, registered(kubelet) as plugin:
            plugin.hold.clear()
            asked = [asyncio.create_task(kubelet.admit(f"pod{number}", {RESOURCE: 1})) for number in range(4)]
            await kubelet.until(lambda: len(plugin.calls) == 4)
            plugin.hold.set()
            await asyncio.gather(*asked)
            assert len(frozenset().union(*plugin.allocated)) == 4

    run(story())


def test_ids_of_a_running_allocate_are_not_given_again_when_a_pod_goes_meanwhile(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, registered(kubelet, pb.DevicePluginOptions()) as plugin:
            await kubelet.admit("going", {RESOURCE: 1})
            plugin.hold.clear()
            slow = asyncio.create_task(kubelet.admit("slow", {RESOURCE: 2}))
            await kubelet.until(lambda: len(plugin.allocated) == 2)
            kubelet.remove_pod("going")
            other = asyncio.create_task(kubelet.admit("other", {RESOURCE: 2}))
            await kubelet.until(lambda: len(plugin.allocated) == 3)
            plugin.hold.set()
            await asyncio.gather(slow, other)
            assert not plugin.allocated[1] & plugin.allocated[2]

    run(story())


def test_kubelet_waits_for_a_hung_allocate_without_end(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root, timeouts=Timeouts(grace=0.3, prestart=0.03)) as kubelet, registered(kubelet) as plugin:
            plugin.hold.clear()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await kubelet.admit("pod", {RESOURCE: 1})
            plugin.hold.set()
            await kubelet.admit("next", {RESOURCE: 4})

    run(story())


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("prestart", "PreStartContainer rpc failed with err: rpc error: code = Internal desc = not warm"),
        ("hang", "code = DeadlineExceeded desc = context deadline exceeded"),
        ("away", "PreStartContainer rpc failed with err: endpoint .* has been stopped"),
    ],
)
def test_container_does_not_start_without_prestart(root: Path, run: Run, failure: str, words: str) -> None:
    async def story() -> None:
        async with Kubelet(root, timeouts=Timeouts(prestart=0.3)) as kubelet, registered(kubelet) as plugin:
            await kubelet.admit("pod", {RESOURCE: 1})
            if failure == "hang":
                plugin.hold.clear()
            elif failure == "away":
                await plugin.stop()
                await kubelet.until_allocatable(RESOURCE, 0)
            plugin.failure = failure
            with pytest.raises(AdmissionError, match=words):
                await kubelet.start_container("pod")

    run(story())


def test_prestart_comes_before_every_start_with_all_ids(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root, timeouts=Timeouts(prestart=20)) as kubelet, registered(kubelet) as plugin:
            await kubelet.admit("pod", {RESOURCE: 3})
            plugin.calls.clear()
            for _ in range(2):
                await kubelet.start_container("pod")
            assert plugin.calls == [f"{RESOURCE}: PreStartContainer with 3, 20 s"] * 2

    run(story())


def test_either_of_two_conflicting_answers_survives() -> None:
    def answer(value: str) -> pb.ContainerAllocateResponse:
        return pb.ContainerAllocateResponse(
            envs={"SHARED": value, value: "1"},
            mounts=[pb.Mount(container_path="/m", host_path=value)],
            devices=[pb.DeviceSpec(container_path="/d", host_path=value, permissions="rw")],
        )

    whole = merged([answer("a"), answer("b")])
    assert whole.envs == {"SHARED": "a", "a": "1", "b": "1"}
    assert [mount.host_path for mount in whole.mounts] == ["a"]
    assert [device.host_path for device in whole.devices] == ["a"]


def test_pod_status_calls_a_vanished_device_healthy(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, registered(kubelet) as plugin:
            await kubelet.admit("pod", {RESOURCE: 4})
            plugin.healthy = {"d0": True}
            plugin.mark(d1=False)
            await kubelet.until(lambda: kubelet.capacity(RESOURCE) == 2)
            wanted = {"d0": "Healthy", "d1": "Unhealthy", "d2": "Healthy", "d3": "Healthy"}
            assert kubelet.allocated_resources_status("pod") == {RESOURCE: wanted}

    run(story())


def test_container_is_not_restarted_on_a_device_that_is_no_longer_healthy(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, registered(kubelet) as plugin:
            await kubelet.admit("pod", {RESOURCE: 4})
            plugin.mark(d0=False)
            await kubelet.until_allocatable(RESOURCE, 3)
            with pytest.raises(AdmissionError, match="previously allocated devices are no longer healthy"):
                await kubelet.admit("pod", {RESOURCE: 4})

    run(story())


def test_list_of_a_replaced_plugin_counts_all_the_same(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, registered(kubelet) as old:
            new = RecordingPlugin(RESOURCE, kubelet.device_plugins, {"n0": True}, generation=7)
            await new.register()
            await kubelet.until_allocatable(RESOURCE, 1)
            old.mark(d0=False)
            await kubelet.until_allocatable(RESOURCE, 3)
            await new.stop()

    run(story())


def test_same_seed_gives_the_same_devices(root: Path, run: Run) -> None:
    async def once(seed: int, folder: Path) -> list[frozenset[str]]:
        async with Kubelet(folder, seed=seed) as kubelet, registered(kubelet, pb.DevicePluginOptions()) as plugin:
            for number in range(3):
                await kubelet.admit(f"pod{number}", {RESOURCE: 1})
            return plugin.allocated

    async def story() -> None:
        first, second = [await once(3, root / name) for name in ("a", "b")]
        assert first == second
        assert len({str(await once(seed, root / str(seed))) for seed in range(6)}) > 1

    run(story())


@pytest.mark.parametrize(("topology", "aligned"), [("single-numa-node", True), ("none", False)])
def test_devices_of_one_numa_node_are_taken_together(root: Path, run: Run, topology: Any, *, aligned: bool) -> None:
    async def story() -> None:
        nodes = {"d0": [0], "d1": [1], "d2": [0], "d3": [1]}
        together = set()
        for seed in range(8):
            async with (
                Kubelet(root / str(seed), seed=seed, topology=topology) as kubelet,
                registered(kubelet, pb.DevicePluginOptions(), nodes=nodes) as plugin,
            ):
                await kubelet.admit("pod", {RESOURCE: 2})
                together.add(len({nodes[name][0] for name in plugin.allocated[0]}) == 1)
        assert together == {True} if aligned else False in together

    run(story())


def test_pod_that_fits_on_no_single_node_is_rejected_by_a_strict_policy(root: Path, run: Run) -> None:
    async def story() -> None:
        nodes = {"d0": [0], "d1": [1], "d2": [0], "d3": [1]}
        async with Kubelet(root, topology="single-numa-node") as kubelet, registered(kubelet, nodes=nodes):
            with pytest.raises(AdmissionError, match="cannot be allocated with Topology locality"):
                await kubelet.admit("pod", {RESOURCE: 3})

    run(story())


@pytest.mark.parametrize(("old_style", "rejected"), [(True, True), (False, False)])
def test_empty_topology_is_none_on_new_kubelets_alone(root: Path, run: Run, *, old_style: bool, rejected: bool) -> None:
    async def story() -> None:
        kubelet = Kubelet(root, old_style=old_style, topology="restricted")
        async with kubelet, registered(kubelet, nodes={"d0": []}):
            if rejected:
                with pytest.raises(AdmissionError, match="Topology locality"):
                    await kubelet.admit("pod", {RESOURCE: 1})
            else:
                await kubelet.admit("pod", {RESOURCE: 1})

    run(story())
