"""Kubelet's plugin watcher: the other way in which plugins become known, by a socket in plugins_registry.

Owns: finding sockets and noticing their removal, the handshake with its three timeouts, retries.
Refuses: tables of resources: the owner handles the result of a registration.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from nodeplug.pb import pluginregistration_v1_pb2 as pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as pb_grpc
from nodeplug.testing.kubelet.endpoint import CHANNEL_OPTIONS, in_go
from nodeplug.testing.kubelet.registration import API_VERSION, Refused, check_registration
from nodeplug.testing.kubelet.timeouts import Timeouts

_LONGEST: Final = 244
"""Times the first pause is the longest one (2 min 2 s after 0.5 s)."""
Identity = tuple[int, int]


@dataclass(slots=True)
class _Retry:
    """When a socket is tried again, and the pause after that."""

    due: float
    pause: float


@dataclass(slots=True)
class Watcher:
    """Dials every socket of its folder and of the folders below, and forgets those that are gone.

    Attributes:
        folder: plugins_registry.
        accept: called with resource and socket once GetInfo is right; raises Refused.
        forget: called with resource and socket when that is gone.
        timeouts: of the handshake and of the pauses.
        poll: seconds between two scans.
        known: the registered sockets, and what is registered there.
        refusals: why sockets were refused, in order.
    """

    folder: Path
    accept: Callable[[str, Path], Awaitable[None]]
    forget: Callable[[str, Path], Awaitable[None]]
    timeouts: Timeouts = field(default_factory=Timeouts)
    poll: float = 0.02
    known: dict[Path, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    _seen: dict[Path, Identity] = field(default_factory=dict)
    _retries: dict[Path, _Retry] = field(default_factory=dict)

    async def run(self) -> None:
        """Look at the folder until cancelled."""
        while True:
            present = self._present()
            for path in [path for path in self._seen if self._seen[path] != present.get(path)]:
                del self._seen[path]
                self._retries.pop(path, None)
                if (name := self.known.pop(path, None)) is not None:
                    await self.forget(name, path)
            self._seen = present
            for path in sorted(path for path in present if path not in self.known and self._due(path)):
                await self._try(path)
            await asyncio.sleep(self.poll)

    def reset(self) -> None:
        """Know nothing, as after a start."""
        self.known.clear()
        self._seen.clear()
        self._retries.clear()

    def _present(self) -> dict[Path, Identity]:
        found: dict[Path, Identity] = {}
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_socket() and not path.name.startswith("."):
                    status = path.stat()
                    found[path] = (status.st_ino, status.st_ctime_ns)
        return found

    def _due(self, path: Path) -> bool:
        return path not in self._retries or time.monotonic() >= self._retries[path].due

    async def _try(self, path: Path) -> None:
        try:
            await self._greet(path)
        except (Refused, TimeoutError, grpc.aio.AioRpcError) as error:
            self.refusals.append(_reason(error, path))
            last = self._retries.get(path)
            pause = self.timeouts.retry if last is None else min(last.pause * 2, _LONGEST * self.timeouts.retry)
            self._retries[path] = _Retry(time.monotonic() + pause, pause)
        else:
            self._retries.pop(path, None)

    async def _greet(self, path: Path) -> None:
        async with grpc.aio.insecure_channel(f"unix:{path}", CHANNEL_OPTIONS) as channel:
            async with asyncio.timeout(self.timeouts.dial):
                await channel.channel_ready()
            stub = pb_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(pb.InfoRequest(), timeout=self.timeouts.info)
            try:
                _validate(info, path)
            except Refused as error:
                await self._notify(stub, str(error))
                raise
            self.known[path] = info.name  # from here on it is not retried, whatever the result
            try:
                await self.accept(info.name, Path(info.endpoint) if info.endpoint else path)
            except Refused as error:
                self.refusals.append(f"RegisterPlugin error -- plugin registration failed with err: {error}")
                await self._notify(stub, self.refusals[-1])
            else:
                await self._notify(stub, "")

    async def _notify(self, stub: "pb_grpc.RegistrationAsyncStub", error: str) -> None:
        status = pb.RegistrationStatus(plugin_registered=not error, error=error)
        with suppress(grpc.aio.AioRpcError):  # kubelet only logs that the plugin cannot be notified
            await stub.NotifyRegistrationStatus(status, timeout=self.timeouts.notify)


def _validate(info: pb.PluginInfo, path: Path) -> None:
    """Check what a plugin says of itself; a plugin that fails is told so, and asked again after a pause."""
    if info.type != "DevicePlugin":
        raise Refused(f"RegisterPlugin error -- no handler registered for plugin type: {info.type} at socket {path}")
    failed = "RegisterPlugin error -- plugin validation failed with err: "
    if API_VERSION not in info.supported_versions:
        versions = " ".join(info.supported_versions)
        raise Refused(f"{failed}manager version, {API_VERSION}, is not among plugin supported versions [{versions}]")
    try:
        check_registration(API_VERSION, info.name)
    except Refused as error:
        raise Refused(f"{failed}invalid name of device plugin socket: {error}") from None


def _reason(error: Exception, path: Path) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return (
            f"RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {path}, err: {in_go(error)}"
        )
    if isinstance(error, TimeoutError):
        return f"RegisterPlugin error -- dial failed at socket {path}, err: context deadline exceeded"
    return str(error)
