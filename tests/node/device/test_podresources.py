"""Releases, as derived from podresources."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeplug import DeviceReleased, PluginError, ResourceName
from nodeplug.device.podresources import PodResources
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.testing import Kubelet, serve_devices

if TYPE_CHECKING:
    from tests.node.device.conftest import Full, Minimal

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE = "example.com/thing"


async def two_looks() -> None:
    """Let the poller see the present state for sure."""
    await asyncio.sleep(0.3)


def test_holders_are_known(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("web-0", {RESOURCE: 2}, namespace="shop", container="main")

            def held() -> list[tuple[str, str, str]]:
                table = host.podresources.holders().get(ResourceName(RESOURCE), {})
                return [(holder.namespace, holder.pod, holder.container) for holder in table.values()]

            # Its checkpoint knows the pod before kubelet names it.
            await kubelet.until(lambda: held() == [("shop", "web-0", "main")] * 2)

    run(story())


def test_what_is_shown_is_on_the_disk_after_an_end_in_the_same_moment(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            async with serve_devices(minimal, kubelet, root) as host:
                await kubelet.until_allocatable(RESOURCE, 4)
                await kubelet.admit("pod", {RESOURCE: 3})
                async with asyncio.timeout(20):
                    while not host.podresources.present:
                        await asyncio.sleep(0)  # the end is to come while the look is still being written
            (holder,) = json.loads((root / "device-holders.json").read_bytes())["holders"]
            assert (holder["pod"], len(holder["ids"])) == ("pod", 3)

    run(story())


def test_release_is_told_once_when_the_pod_is_gone(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("other", {})
            await kubelet.admit("pod", {RESOURCE: 4}, container="work")
            await kubelet.until(lambda: bool(host.podresources.present))
            assert full.releases() == []
            kubelet.remove_pod("pod")
            await kubelet.until(lambda: bool(full.releases()))
            await two_looks()
            ids = tuple(device.id for device in full.devices)
            assert full.releases() == [
                DeviceReleased(
                    resource=ResourceName(RESOURCE), ids=ids, namespace="default", pod="pod", container="work"
                )
            ]

    run(story())


def test_release_during_a_pause_of_the_daemon_is_told_after_it(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            await kubelet.admit("other", {})
            async with serve_devices(full, kubelet, root) as host:
                await kubelet.until_allocatable(RESOURCE, 4)
                await kubelet.admit("pod", {RESOURCE: 1})
                await kubelet.until(lambda: bool(host.podresources.present))
                await two_looks()
            kubelet.remove_pod("pod")
            assert full.releases() == []
            async with serve_devices(full, kubelet, root):
                await kubelet.until(lambda: bool(full.releases()))
                await two_looks()
            async with serve_devices(full, kubelet, root):
                await two_looks()
            assert [release.pod for release in full.releases()] == ["pod"]

    run(story())


def test_release_that_failed_is_told_again(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("other", {})
            await kubelet.admit("pod", {RESOURCE: 1})
            await kubelet.until(lambda: bool(host.podresources.present))
            full.errors["device_released"] = PluginError("busy")
            kubelet.remove_pod("pod")
            await kubelet.until(lambda: len(full.releases()) >= 2)
            full.errors.clear()
            await kubelet.until(lambda: not host.podresources.untold(ResourceName(RESOURCE)))
            told = len(full.releases())
            await two_looks()
            assert len(full.releases()) == told

    run(story())


def test_kubelet_that_knows_no_pods_yet_releases_nothing(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("pod", {RESOURCE: 1})
            await kubelet.until(lambda: bool(host.podresources.present))
            kubelet.pods_known = False
            await kubelet.restart()
            await kubelet.until(lambda: not host.podresources.present)
            await two_looks()
            kubelet.pods_known = True
            await kubelet.until(lambda: bool(host.podresources.present))
            await two_looks()
            assert full.releases() == []

    run(story())


def test_restarted_kubelet_that_knows_its_static_pods_alone_releases_nothing(
    full: "Full", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("proxy", {})
            await kubelet.admit("pod", {RESOURCE: 1})
            await kubelet.until(lambda: bool(host.podresources.present))
            kubelet.static_pods = {"proxy"}
            kubelet.pods_known = False
            await kubelet.restart()
            await kubelet.until(lambda: not host.podresources.present)
            await two_looks()
            kubelet.pods_known = True
            await kubelet.until(lambda: bool(host.podresources.present))
            assert full.releases() == []

    run(story())


def test_last_pod_of_a_node_is_released_after_the_grace(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root, unsynced_grace=0.2) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("pod", {RESOURCE: 1})
            await kubelet.until(lambda: bool(host.podresources.present))
            kubelet.remove_pod("pod")
            await kubelet.until(lambda: len(full.releases()) == 1)

    run(story())


def test_rate_limit_slows_the_poller_down_and_loses_nothing(
    full: "Full", root: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("other", {})
            await kubelet.admit("pod", {RESOURCE: 1})
            await kubelet.until(lambda: bool(host.podresources.present))
            kubelet.limited = True
            await kubelet.until(lambda: "rate limit" in host.podresources.error)
            kubelet.remove_pod("pod")
            await two_looks()
            assert caplog.text.count("rejected by rate limit") == 1
            kubelet.limited = False
            await kubelet.until(lambda: len(full.releases()) == 1)

    run(story())


def test_absent_podresources_socket_is_tolerated(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            await kubelet.until(kubelet.podresources_socket.exists)
            kubelet.podresources_socket.unlink()
            async with serve_devices(minimal, kubelet, root) as host:
                await kubelet.until_allocatable(RESOURCE, 4)
                await kubelet.until(lambda: "podresources" in host.podresources.error)
                await kubelet.restart()
                await kubelet.until(lambda: host.podresources.error == "")

    run(story())


def test_damaged_state_is_set_aside(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        state = root / "device-holders.json"
        state.write_text("{")
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("pod", {RESOURCE: 1})
            await kubelet.until((root / "device-holders.damaged").exists)
            await kubelet.until(state.exists)

    run(story())


def test_device_of_an_init_container_moves_on_without_a_release(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            first = await kubelet.admit("pod", {RESOURCE: 1}, container="prepare", init=True)
            second = await kubelet.admit("pod", {RESOURCE: 1}, container="work")
            assert first[RESOURCE].envs == second[RESOURCE].envs
            await kubelet.until(lambda: bool(host.podresources.present))
            await two_looks()
            assert full.releases() == []

    run(story())


def test_a_grant_during_a_look_leads_to_another_one_soon(minimal: "Minimal", root: Path, run: Run) -> None:
    registry = Registry()
    registry.load("thing", minimal, "test")
    asked = 0

    def routes() -> Sequence[Route]:
        nonlocal asked
        asked += 1
        if asked == 2:  # kubelet has answered the first look, which is not over
            poller.soon()
        return registry.routes("device")

    async def story() -> None:
        async with Kubelet(root) as kubelet:
            poller.socket = kubelet.podresources_socket
            polling = asyncio.create_task(poller.run())
            await kubelet.until(lambda: asked > 2)
            polling.cancel()

    poller = PodResources(root / "none", root / "holders.json", routes, Runner(), interval=3600)
    run(story())
