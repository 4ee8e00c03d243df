"""One driver's two sockets: where kubelet calls it, and where its plugin watcher learns of it.

Owns: their names, which no other instance ever has, what they say of the driver, and removing those of daemons that
have ended.
Refuses: what is answered on the driver's socket (`server`).

Source: kubelet, pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra/plugin. Two instances of a driver may be registered at
once if both of their sockets differ; a registration socket behind which nobody listens counts as an instance for as
long as the file is there.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc.aio

from nodeplug.contract.errors import PluginError
from nodeplug.dra.leftovers import REGISTRATION, remove_dead_sockets
from nodeplug.pb import pluginregistration_v1_pb2 as pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as pb_grpc
from nodeplug.process.lane import Lane, Unanswered
from nodeplug.process.private_socket import Bound, fresh_number, serve, stop

LOG: Final = logging.getLogger(__name__)
VERSIONS: Final = ("v1.DRAPlugin",)
"""What is served, as kubelet names versions: not the name of the gRPC service (pkg/kubelet/cm/dra/plugin)."""
_OPTIONS: Final = (("grpc.so_reuseport", 0),)


@dataclass(slots=True)
class Served:
    """The sockets of one driver. Event loop only.

    Attributes:
        driver: its name.
        plugins: the folder of drivers in kubelet's root.
        registrations: the plugin watcher's folder.
        lane: all work in kubelet's folders.
        services: has a server answer what kubelet asks of the driver.
        registered: kubelet has accepted it.
        problem: why it is not registered; empty while it is.
    """

    driver: str
    plugins: Path
    registrations: Path
    lane: Lane
    services: Callable[[grpc.aio.Server], None]
    registered: bool = False
    problem: str = ""
    _server: grpc.aio.Server | None = None
    _registrar: grpc.aio.Server | None = None
    _socket: Bound | None = None
    _registration: Bound | None = None
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _ended: bool = False

    @property
    def folder(self) -> Path:
        """Where the driver's socket lies."""
        return self.plugins / self.driver

    @property
    def path(self) -> Path | None:
        """Where kubelet calls the driver; None while it is not served."""
        return self._socket.path if self._socket is not None else None

    async def keep(self) -> None:
        """Serve, or serve again if a socket has gone.

        Raises:
            PluginError: a socket cannot be bound.
        """
        if self._socket is None:
            await self.sweep()
        async with self._changing:  # the end may come at each pause
            if not self._ended:
                await self._keep()

    async def _keep(self) -> None:
        if self._socket is None or not await self.lane.run(self._socket.is_there):
            server = grpc.aio.server(options=_OPTIONS)
            self.services(server)
            path = self.folder / f"dra-{fresh_number()}.sock"
            self._socket = await serve(server, self.lane, lambda: Bound.in_folder(path, server))
            self._server, old = server, self._server
            await stop(old)
            await self._withdraw()  # it says where the driver was before
        if self._registration is None or not await self.lane.run(self._registration.is_there):
            self.registered, self.problem = False, self._unasked
            registrar = grpc.aio.server(options=_OPTIONS)
            pb_grpc.add_RegistrationServicer_to_server(_Registration(self), registrar)
            path = self.registrations / f"{self.driver}-{fresh_number()}{REGISTRATION}"
            self._registration = await serve(registrar, self.lane, lambda: Bound.in_folder(path, registrar))
            self._registrar, old = registrar, self._registrar
            await stop(old)

    @property
    def _unasked(self) -> str:
        return f"kubelet has not asked for it: does it run, and is {self.registrations} below its --root-dir?"

    async def sweep(self) -> None:
        """Remove the sockets of instances that have ended; kubelet would call them."""
        with suppress(Unanswered):
            await self.lane.run(self._sweep)

    def _sweep(self) -> None:
        remove_dead_sockets(self.plugins, self.registrations, self.driver)

    def judged(self, verdict: pb.RegistrationStatus) -> None:
        """Take kubelet's verdict; one that refuses asks again by itself, every second."""
        if verdict.plugin_registered:
            if not self.registered:
                LOG.info("DRA driver %s is registered with kubelet", self.driver)
            self.registered, self.problem = True, ""
            return
        problem = f"kubelet refused it: {verdict.error}"
        if problem != self.problem:
            LOG.warning("DRA driver %s: %s", self.driver, problem)
        self.registered, self.problem = False, problem

    async def _withdraw(self) -> None:
        registration, self._registration = self._registration, None
        registrar, self._registrar = self._registrar, None
        if registration is not None:
            with suppress(PluginError):
                await self.lane.run(registration.remove)
        await stop(registrar)
        self.registered = False

    async def end(self) -> None:
        """Stop serving for good, and take both sockets away; kubelet keeps the slices for another 30 s."""
        self._ended = True
        async with self._changing:
            await self._end()

    async def _end(self) -> None:
        await self._withdraw()
        socket, self._socket = self._socket, None
        server, self._server = self._server, None
        if socket is not None:
            with suppress(PluginError):
                await self.lane.run(socket.remove)
        await stop(server)


@dataclass(slots=True)
class _Registration(pb_grpc.RegistrationServicer):
    """What kubelet's plugin watcher asks."""

    served: Served

    async def GetInfo(self, request: pb.InfoRequest, context: Any) -> pb.PluginInfo:  # noqa: N802 - the RPC's name
        del request, context
        return pb.PluginInfo(
            type="DRAPlugin",
            name=self.served.driver,
            endpoint=str(self.served.path),
            supported_versions=VERSIONS,
        )

    async def NotifyRegistrationStatus(  # noqa: N802 - the RPC's name
        self, request: pb.RegistrationStatus, context: Any
    ) -> pb.RegistrationStatusResponse:
        del context
        self.served.judged(request)
        return pb.RegistrationStatusResponse()
