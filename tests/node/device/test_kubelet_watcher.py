# ruff: noqa: N802 - the names of RPCs
"""The stand-in's plugin watcher behaves as kubelet's."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as device_grpc
from nodeplug.pb import pluginregistration_v1_pb2 as pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as pb_grpc
from nodeplug.testing import Kubelet
from nodeplug.testing.kubelet import Timeouts
from nodeplug.testing.kubelet.recording import RecordingPlugin

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE = "example.com/thing"
FAST = Timeouts(dial=0.2, info=0.2, notify=0.2, retry=0.1)


@dataclass(eq=False)
class Introduction(pb_grpc.RegistrationServicer):
    """What a plugin says of itself in the watcher's folder, and what it is told."""

    info: pb.PluginInfo
    asked: int = 0
    told: list[pb.RegistrationStatus] = field(default_factory=list)
    hang: str = ""

    async def GetInfo(self, request: pb.InfoRequest, context: Any) -> pb.PluginInfo:
        self.asked += 1
        if self.hang == "info":
            await asyncio.sleep(60)
        return self.info

    async def NotifyRegistrationStatus(
        self, request: pb.RegistrationStatus, context: Any
    ) -> pb.RegistrationStatusResponse:
        self.told.append(request)
        if self.hang == "notify":
            await asyncio.sleep(60)
        return pb.RegistrationStatusResponse()


def introduction(**changes: Any) -> Introduction:
    info: dict[str, Any] = {"type": "DevicePlugin", "name": RESOURCE, "supported_versions": ["v1beta1"], **changes}
    return Introduction(pb.PluginInfo(**info))


@asynccontextmanager
async def shown(kubelet: Kubelet, said: Introduction, name: str = "plugin.sock") -> AsyncIterator[RecordingPlugin]:
    """Serve a plugin of two devices in the watcher's folder."""
    plugin = RecordingPlugin(RESOURCE, kubelet.plugins_registry, {"a": True, "b": True})
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(said, server)
    device_grpc.add_DevicePluginServicer_to_server(plugin, server)
    (kubelet.plugins_registry / name).parent.mkdir(exist_ok=True)
    server.add_insecure_port(f"unix:{kubelet.plugins_registry / name}")
    await server.start()
    try:
        yield plugin
    finally:
        await server.stop(None)


@pytest.mark.parametrize("name", ["plugin.sock", "sub/plugin.sock"])
def test_socket_is_found_and_told_so(root: Path, run: Run, name: str) -> None:
    async def story() -> None:
        said = introduction()
        async with Kubelet(root, watch_plugins=True) as kubelet, shown(kubelet, said, name) as plugin:
            await kubelet.until_allocatable(RESOURCE, 2)
            await kubelet.until(lambda: bool(said.told))
            assert said.told[0].plugin_registered
            assert "GetDevicePluginOptions" in plugin.calls[0]

    run(story())


def test_hidden_socket_is_not_looked_at(root: Path, run: Run) -> None:
    async def story() -> None:
        hidden, plain = introduction(), introduction()
        async with (
            Kubelet(root, watch_plugins=True) as kubelet,
            shown(kubelet, hidden, ".hidden.sock"),
            shown(kubelet, plain),
        ):
            await kubelet.until_allocatable(RESOURCE, 2)
            assert hidden.asked == 0

    run(story())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin at socket"),
        ({"supported_versions": ["v9"]}, "manager version, v1beta1, is not among plugin supported versions [v9]"),
        ({"name": "noslash"}, 'invalid name of device plugin socket: the ResourceName "noslash" is invalid'),
    ],
)
def test_plugin_that_is_refused_is_told_why_and_asked_again(
    root: Path, run: Run, changes: dict[str, Any], words: str
) -> None:
    async def story() -> None:
        said = introduction(**changes)
        async with Kubelet(root, watch_plugins=True, timeouts=FAST) as kubelet, shown(kubelet, said):
            await kubelet.until(lambda: len(said.told) == 2)
            assert not said.told[0].plugin_registered
            assert words in said.told[0].error
            assert kubelet.registrations == []

    run(story())


def test_plugin_whose_registration_fails_is_not_tried_again(root: Path, run: Run) -> None:
    async def story() -> None:
        said = introduction()
        async with Kubelet(root, watch_plugins=True, timeouts=FAST) as kubelet:
            async with shown(kubelet, said) as plugin:
                plugin.failure = "options"
                await kubelet.until(lambda: bool(said.told))
                assert "plugin registration failed with err: failed to get device plugin options" in said.told[0].error
                plugin.failure = ""
                await asyncio.sleep(0.5)
                assert said.asked == 1
            async with shown(kubelet, said):  # a new socket is a new plugin
                await kubelet.until_allocatable(RESOURCE, 2)

    run(story())


def test_plugin_that_does_not_say_what_it_is_has_one_second(root: Path, run: Run) -> None:
    async def story() -> None:
        said = introduction()
        said.hang = "info"
        async with Kubelet(root, watch_plugins=True, timeouts=FAST) as kubelet, shown(kubelet, said):
            await kubelet.until(lambda: said.asked == 2)
            assert "failed to get plugin info using RPC GetInfo" in kubelet.watcher.refusals[0]
            assert "code = DeadlineExceeded" in kubelet.watcher.refusals[0]

    run(story())


def test_plugin_that_does_not_listen_to_the_outcome_is_registered(root: Path, run: Run) -> None:
    async def story() -> None:
        said = introduction()
        said.hang = "notify"
        async with Kubelet(root, watch_plugins=True, timeouts=FAST) as kubelet, shown(kubelet, said):
            await kubelet.until_allocatable(RESOURCE, 2)
            await asyncio.sleep(0.5)
            assert kubelet.allocatable(RESOURCE) == 2

    run(story())


def test_plugin_in_another_socket_than_its_introduction_is_dialled_there(root: Path, run: Run) -> None:
    async def story() -> None:
        elsewhere = RecordingPlugin(RESOURCE, root, {"far": True})
        await elsewhere.serve()
        said = introduction(endpoint=str(elsewhere.socket))
        async with Kubelet(root, watch_plugins=True) as kubelet, shown(kubelet, said) as plugin:
            await kubelet.until_allocatable(RESOURCE, 1)
            assert plugin.calls == []
        await elsewhere.stop()

    run(story())
