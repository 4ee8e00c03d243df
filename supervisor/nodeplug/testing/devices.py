"""Run a device plugin as the daemon does, without the daemon: for tests against `nodeplug.testing.kubelet.Kubelet`.

Owns: a registry, a runner and one task per claimed resource, for the length of a test.
Refuses: configuration and `host`: construct the plugin yourself.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from nodeplug.device.checkpoint import CHECKPOINT
from nodeplug.device.kubelet import KubeletFolders, Mode
from nodeplug.device.podresources import PodResources
from nodeplug.device.resource import ResourceTask
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Slot
from nodeplug.testing.kubelet import Kubelet

_POLL = 0.05


@dataclass(frozen=True, slots=True)
class DeviceHost:
    """What runs.

    Attributes:
        tasks: by resource, with `status()` and `refresh()`.
        slot: of the plugin; holds calls in flight and overdue ones.
        runner: calls its hooks.
        podresources: the poller that reports releases.
    """

    tasks: Mapping[str, ResourceTask]
    slot: Slot
    runner: Runner
    podresources: PodResources


@asynccontextmanager
async def serve_devices(
    plugin: object,
    kubelet: Kubelet,
    state: Path,
    *,
    mode: Mode = "register",
    deadlines: Mapping[str, float] = MappingProxyType({}),
    poll: float = _POLL,
    watchdog: float = 10.0,
    unsynced_grace: float = 60.0,
) -> AsyncIterator[DeviceHost]:
    """Serve every device resource that a plugin claims.

    Args:
        plugin: constructed; its `start` is not called.
        kubelet: the stand-in, running or not.
        state: a folder in which the poller keeps what it saw; the same one again acts as a restart of the daemon.
        mode: how to register.
        deadlines: seconds by hook, instead of the daemon's defaults.
        poll: seconds between two listings, checks of kubelet.sock and polls of podresources.
        watchdog: seconds without a stream before registering again.
        unsynced_grace: seconds for which a response of podresources without any pod is ignored.
    """
    host = _compose(plugin, kubelet, state, mode, deadlines, poll, watchdog, unsynced_grace)
    running = [asyncio.create_task(task.run(), name=name) for name, task in host.tasks.items()]
    running.append(asyncio.create_task(host.podresources.run(), name="podresources"))
    try:
        yield host
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


def _compose(
    plugin: object,
    kubelet: Kubelet,
    state: Path,
    mode: Mode,
    deadlines: Mapping[str, float],
    poll: float,
    watchdog: float,
    unsynced_grace: float,
) -> DeviceHost:
    registry = Registry()
    registry.load("plugin", plugin, "the test", deadlines)
    runner = Runner()
    paths = KubeletFolders(kubelet.device_plugins, kubelet.plugins_registry)
    tasks = {
        route.claim.name: ResourceTask(
            route, runner, paths, mode=mode, poll_interval=poll, watch_interval=poll, watchdog=watchdog
        )
        for route in registry.routes("device")
    }
    podresources = PodResources(
        kubelet.podresources_socket,
        state / "device-holders.json",
        lambda: registry.routes("device"),
        runner,
        interval=poll,
        unsynced_grace=unsynced_grace,
        checkpoint=kubelet.device_plugins / CHECKPOINT,
    )
    return DeviceHost(tasks, registry.slots["plugin"], runner, podresources)
