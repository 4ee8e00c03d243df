"""What a registration leaves to be seen: outcomes in the metrics, and nothing on the disk."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeplug.device.kubelet import KubeletFolders, Mode
from nodeplug.device.resource import ResourceTask
from nodeplug.device.sockets import socket_path
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.process.lane import Lane
from nodeplug.testing.kubelet import Kubelet

if TYPE_CHECKING:
    from tests.node.device.conftest import Minimal

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE = "example.com/thing"


@asynccontextmanager
async def serve(
    plugin: object, kubelet: Kubelet, runner: Runner, mode: Mode = "register", lane: Lane | None = None
) -> AsyncIterator[ResourceTask]:
    """Serve the plugin's resource with a runner of the test's own."""
    registry = Registry()
    registry.load("thing", plugin, "tests")
    paths = KubeletFolders(kubelet.device_plugins, kubelet.plugins_registry, lane or Lane("kubelet's folders"))
    task = ResourceTask(registry.route("device", RESOURCE), runner, paths, mode=mode, watch_interval=0.05)
    running = asyncio.create_task(task.run())
    try:
        yield task
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize("mode", ["register", "watcher"])
def test_each_try_to_register_is_told_with_its_outcome(minimal: "Minimal", root: Path, run: Run, mode: Mode) -> None:
    seen: list[tuple[str, str, bool]] = []

    async def story() -> None:
        kubelet = Kubelet(root, watch_plugins=mode == "watcher")
        kubelet.refuse = "not today"
        runner = Runner(finished=lambda call, error: seen.append((call.verb, call.claim, error is None)))
        async with kubelet, serve(minimal, kubelet, runner, mode):
            await kubelet.until(lambda: ("Register", f"device:{RESOURCE}", False) in seen)
            kubelet.refuse = ""
            if mode == "watcher":
                kubelet.watcher.known.clear()  # kubelet tries again by itself
            await kubelet.until(lambda: ("Register", f"device:{RESOURCE}", True) in seen)

    run(story())


def test_dead_sockets_of_other_resources_and_of_the_other_mode_are_removed(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    """A killed daemon may be followed by one that offers something else, or registers another way."""

    async def story() -> None:
        async with Kubelet(root) as kubelet:
            folders = kubelet.device_plugins, kubelet.plugins_registry
            left = [socket_path(folder, name) for folder in folders for name in (RESOURCE, "example.com/former")]
            for path in left:
                with socket.socket(socket.AF_UNIX) as dead:
                    dead.bind(str(path))
            async with serve(minimal, kubelet, Runner()):
                await kubelet.until_allocatable(RESOURCE, 4)
                assert [path for path in left if path.exists()] == []

    run(story())


class Slow(Lane):
    """A folder that takes its time, as on a busy disk, once that is so."""

    def __init__(self, busy: Callable[[], object] = lambda: True) -> None:
        super().__init__("slow")
        self._busy = busy

    async def run(self, *work: Any) -> Any:
        if self._busy():
            await asyncio.sleep(0.2)
        return await super().run(*work)


def test_a_kubelet_that_was_killed_as_soon_as_it_had_registered_a_resource_is_away(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve(minimal, kubelet, Runner(), lane=Slow()) as task:
            await kubelet.until(lambda: task.status().registered)
            await kubelet.kill()
            await kubelet.until(lambda: "registering again" in task.status().error or "away" in task.status().error)
            await kubelet.until(lambda: task.status().error.startswith("kubelet has been away since "))

    run(story())


def test_a_stream_that_opened_during_a_look_counts_when_our_socket_goes_in_that_time(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    async def story() -> None:
        kubelet, tasks = Kubelet(root), list[ResourceTask]()
        lane = Slow(lambda: tasks and tasks[0].status().registered)
        async with kubelet, serve(minimal, kubelet, Runner(), lane=lane) as task:
            tasks.append(task)
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.until(lambda: task.status().registered)
            kubelet.refuse, kubelet.hold_streams = "not now", True
            (ours,) = kubelet.device_plugins.glob("nodeplug-*.sock")
            ours.unlink()
            await kubelet.until(lambda: "not now" in task.status().error)
            await asyncio.sleep(1.5)  # longer than a second without a stream, from which on kubelet counts as away
            kubelet.refuse = ""
            await kubelet.until(lambda: task.status().registered)

    run(story())


def test_that_kubelets_folder_hangs_is_logged_once_and_forgotten_when_it_answers(
    minimal: "Minimal", root: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        lane, thawed = Lane("kubelet's folder", 1.0), threading.Event()  # as long as a thread may be late
        async with Kubelet(root) as kubelet, serve(minimal, kubelet, Runner(), lane=lane) as task:
            await kubelet.until(lambda: task.status().registered)
            lane.begin(thawed.wait)
            await kubelet.until(lambda: "does not answer (for 2 s)" in task.status().error)
            assert task.status().registered
            thawed.set()
            await kubelet.until(lambda: not task.status().error)
            assert caplog.text.count("does not answer") == 1

    run(story())
