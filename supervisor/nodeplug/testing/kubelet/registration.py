"""How plugins become known: the stand-in's Register service and its plugin watcher.

Owns: kubelet's checks and their sentences, the dial back, the order of the handshakes.
Refuses: tables of resources: what comes of a registration is the owner's business.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.pb import pluginregistration_v1_pb2 as watcher_pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as watcher_grpc

_NAME: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Refused(Exception):
    """Kubelet does not take a plugin, with its own sentence."""


def check_registration(version: str, resource: str) -> None:
    """Check what a plugin says of itself.

    Raises:
        Refused: another API version, or no extended resource (IsExtendedResourceName).
    """
    if version != "v1beta1":
        raise Refused(
            f'requested API version "{version}" is not supported by kubelet. Supported version is ["v1beta1"]'
        )
    prefix, slash, name = resource.partition("/")
    native = not slash or "kubernetes.io/" in resource or resource.startswith("requests.")
    if native or not _NAME.fullmatch(name) or not _PREFIX.fullmatch(prefix) or len(prefix) > 244:
        raise Refused(f'the ResourceName "{resource}" is invalid')


@dataclass(slots=True)
class Registrar(pb_grpc.RegistrationServicer):
    """Serves `v1beta1.Registration`.

    Attributes:
        accept: called with each request that passed the checks; raises Refused.
    """

    accept: Callable[[pb.RegisterRequest], Awaitable[None]]

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802 - the RPC's name
        """Check, let the owner dial back, answer; every refusal is UNKNOWN, as grpc-go makes of a plain error."""
        try:
            check_registration(request.version, request.resource_name)
            await self.accept(request)
        except Refused as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.Empty()


@dataclass(slots=True)
class Watcher:
    """Kubelet's plugin watcher: dials every socket of its folder, and forgets those that are gone.

    Attributes:
        folder: plugins_registry.
        accept: called with resource and socket once GetInfo is right; raises Refused.
        forget: called with a socket that is gone.
        poll: seconds between two looks.
    """

    folder: Path
    accept: Callable[[str, Path], Awaitable[None]]
    forget: Callable[[Path], Awaitable[None]]
    poll: float = 0.02
    known: dict[Path, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Look at the folder until cancelled."""
        while True:
            present = {path for path in self.folder.rglob("*") if path.is_socket() and not path.name.startswith(".")}
            for path in self.known.keys() - present:
                del self.known[path]
                await self.forget(path)
            for path in sorted(present - self.known.keys()):
                with suppress(grpc.aio.AioRpcError, TimeoutError):
                    await self._greet(path)
            await asyncio.sleep(self.poll)

    async def _greet(self, path: Path) -> None:
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))
        async with grpc.aio.insecure_channel(f"unix:{path}", options) as channel:
            async with asyncio.timeout(10):
                await channel.channel_ready()
            stub = watcher_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(watcher_pb.InfoRequest(), timeout=1)
            self.known[path] = info.name
            status = watcher_pb.RegistrationStatus(plugin_registered=True)
            try:
                await self._accept(info, path)
            except Refused as error:
                self.refusals.append(str(error))
                status = watcher_pb.RegistrationStatus(plugin_registered=False, error=str(error))
            await stub.NotifyRegistrationStatus(status, timeout=5)

    async def _accept(self, info: watcher_pb.PluginInfo, path: Path) -> None:
        if info.type != "DevicePlugin":
            _refuse(f"no handler registered for plugin type: {info.type} at socket {path}")
        if "v1beta1" not in info.supported_versions:
            _refuse(f"device plugin {info.name} supports none of the versions of kubelet")
        check_registration("v1beta1", info.name)
        await self.accept(info.name, Path(info.endpoint) if info.endpoint else path)


def _refuse(reason: str) -> NoReturn:
    raise Refused(reason)
