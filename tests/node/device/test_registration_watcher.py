"""Registrations that kubelet makes by itself, from its plugin watcher's folder."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeplug.testing.devices import serve_devices
from nodeplug.testing.kubelet import Kubelet

if TYPE_CHECKING:
    from tests.node.device.conftest import Full, Minimal

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE = "example.com/thing"


def own_sockets(folder: Path) -> list[Path]:
    return sorted(folder.glob("nodeplug-*.sock"))


def test_watched_plugin_is_found_by_kubelet(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with (
            Kubelet(root, watch_plugins=True) as kubelet,
            serve_devices(full, kubelet, root, mode="watcher") as host,
        ):
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.until(lambda: host.tasks[RESOURCE].status().registered)
            assert own_sockets(kubelet.device_plugins) == []
            assert len(kubelet.registrations) == 1
            granted = await kubelet.admit("pod", {RESOURCE: 1})
            assert len(granted[RESOURCE].envs) == 1

    run(story())


def test_watched_plugin_is_found_again_by_a_restarted_kubelet(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with (
            Kubelet(root, watch_plugins=True) as kubelet,
            serve_devices(minimal, kubelet, root, mode="watcher"),
        ):
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.restart()
            await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_watched_plugin_deregisters_by_taking_its_socket_away(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root, watch_plugins=True) as kubelet:
            async with serve_devices(minimal, kubelet, root, mode="watcher"):
                await kubelet.until_allocatable(RESOURCE, 4)
            assert own_sockets(kubelet.plugins_registry) == []
            await kubelet.until_allocatable(RESOURCE, 0)

    run(story())


def test_watched_plugin_without_a_stream_shows_a_new_socket(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with (
            Kubelet(root, watch_plugins=True) as kubelet,
            serve_devices(minimal, kubelet, root, mode="watcher", watchdog=0.3),
        ):
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.drop_streams(RESOURCE)
            await kubelet.until(lambda: len(kubelet.registrations) == 2)
            await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_watcher_that_refuses_is_quoted(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root, watch_plugins=True) as kubelet:
            kubelet.refuse = "no room"
            async with serve_devices(minimal, kubelet, root, mode="watcher") as host:
                await kubelet.until(
                    lambda: "registration failed with err: no room" in host.tasks[RESOURCE].status().error
                )
                assert not host.tasks[RESOURCE].status().registered

    run(story())
