"""One CSI driver: its two sockets, at paths that never change, and what kubelet has said about its registration.

Owns: how it is announced to kubelet, withdrawn, and announced again.
Refuses: which drivers there are (`drivers`), and the calls on them (`identity`, `node`, `controller`).

Registration is kubelet's plugin watcher (pkg/kubelet/pluginmanager): it dials every socket in its folder, asks for the
driver's name and socket, and tells the verdict. It keys drivers by the path of that socket, and removes them by name;
so a second path for one driver would remove the first.
"""

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc.aio

from nodeplug.contract.errors import PluginError
from nodeplug.csi import controller, identity, node
from nodeplug.csi.driver import Driver
from nodeplug.pb import pluginregistration_v1_pb2 as pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as pb_grpc
from nodeplug.process.lane import Lane
from nodeplug.process.private_socket import Bound, serve, stop

LOG: Final = logging.getLogger(__name__)
_VERSIONS: Final = ("1.0.0",)
_OPTIONS: Final = (("grpc.so_reuseport", 0),)
_AFTER_REFUSAL: Final = 2.0
"""Seconds without a socket after which kubelet has forgotten that it refused one: it looks every second."""
_LONGEST: Final = 120.0
UNANSWERED: Final = 150.0
"""Seconds without a verdict after which a driver is announced anew: kubelet gives NodeGetInfo two minutes."""
_DOUBLED: Final = 3
"""Times that this is doubled: kubelet may not run at all, or have no API server for hours."""
_ABSENCES: Final = 2
"""Looks in a row that must not find a driver in the CSINode: the first may be older than the registration."""
_LOSSES: Final = 4
"""Times that this is doubled: whatever takes it away may do so each time."""


def registration_of(folder: Path, driver: str) -> Path:
    """Return where kubelet finds a driver."""
    return folder / f"{driver}-reg.sock"


def socket_of(folder: Path, driver: str) -> Path:
    """Return where kubelet calls a driver, below `plugins` in its root."""
    return folder / driver / "csi.sock"


@dataclass(slots=True)
class Served:
    """One driver that is served.

    Attributes:
        registered: kubelet has accepted it.
        problem: why it is not registered; empty while it is, or nobody has said anything yet. One that is registered
            has a problem if the cluster does not know of it.
    """

    driver: Driver
    lane: Lane
    sockets: Path
    registrations: Path
    registered: bool = False
    problem: str = ""
    _server: grpc.aio.Server | None = None
    _registrar: grpc.aio.Server | None = None
    _socket: Bound | None = None
    _registration: Bound | None = None
    _refusals: int = 0
    _not_before: float = 0.0
    _announced: float = 0.0
    _asked: bool = False
    _silences: int = 0
    _lost: str = ""
    _absences: int = 0
    _losses: int = 0

    @property
    def path(self) -> Path:
        """Where kubelet calls the driver."""
        return socket_of(self.sockets, self.driver.name)

    async def keep(self) -> None:
        """Serve, or serve again if a socket has gone; first the driver, then what announces it."""
        if self._socket is None or not await self.lane.run(self._socket.is_there):
            server = grpc.aio.server(options=_OPTIONS)
            identity.serve(self.driver, server)
            node.serve(self.driver, server)
            controller.serve(self.driver, server)
            self._socket = await serve(server, self.lane, lambda: Bound.in_folder(self.path, server))
            self._server, old = server, self._server
            await stop(old)
        if time.monotonic() < self._not_before:
            await self._withdraw()
            return
        if self._registration is None or not await self.lane.run(self._registration.is_there):
            self.registered = False
            registrar = grpc.aio.server(options=_OPTIONS)
            pb_grpc.add_RegistrationServicer_to_server(_Registration(self), registrar)
            announced = registration_of(self.registrations, self.driver.name)
            self._registration = await serve(registrar, self.lane, lambda: Bound.in_folder(announced, registrar))
            self._registrar, old = registrar, self._registrar
            await stop(old)
            self._announced, self._asked = time.monotonic(), False
        self.problem = self._lost if self.registered else self._unanswered()
        if not self.registered and time.monotonic() > self._announced + self.patience:
            LOG.warning("CSI driver %s: %s; it is announced anew", self.driver.name, self.problem)
            self._silences += 1
            self._not_before = time.monotonic() + _AFTER_REFUSAL

    @property
    def patience(self) -> float:
        """Seconds without a verdict after which it is announced anew; longer each time, until there is a verdict."""
        return UNANSWERED * float(2 ** min(self._silences, _DOUBLED))

    def _unanswered(self) -> str:
        """Say what kubelet has done with the registration so far; a refusal is told until it asks again."""
        if self._asked:
            return "kubelet has asked for it, and not said whether it takes it; its log may say why"
        if self._refusals or self._lost:
            return self.problem
        return f"kubelet has not asked for it: does it run, and is {self.registrations} below its --root-dir?"

    def asked(self) -> None:
        """Note that kubelet wants to know who this is."""
        self._asked = True

    def judged(self, verdict: pb.RegistrationStatus) -> None:
        """Take kubelet's verdict; after a refusal the registration is withdrawn for a while and made again.

        Kubelets before 1.26 never ask again by themselves (kubernetes#118317).
        """
        self._silences = 0
        if verdict.plugin_registered:
            self.registered, self.problem, self._refusals = True, "", 0
            self._lost, self._absences = "", 0
            LOG.info("CSI driver %s is registered with kubelet", self.driver.name)
            return
        self.registered, self.problem = False, f"kubelet refused it: {verdict.error}"
        pause = min(_AFTER_REFUSAL * 2 ** min(self._refusals, 10), _LONGEST)
        self._refusals += 1
        self._not_before = time.monotonic() + pause
        LOG.warning("CSI driver %s: %s; it is announced again in %g s", self.driver.name, self.problem, pause)

    def looked(self, absent: str) -> None:
        """Take what the cluster says of a registered driver; one that it does not know of is announced again.

        Args:
            absent: that the CSINode does not list the driver, and what that means; empty if it does.
        """
        if not self.registered:  # kubelet has the next word
            return
        if not absent:
            self._lost, self._absences, self._losses = "", 0, 0
            return
        self._absences += 1
        if self._absences >= _ABSENCES:
            self.problem = self._lost = absent
        if self._absences >= _ABSENCES << min(self._losses, _LOSSES):
            self.registered = False
            self._losses += 1
            self._not_before = time.monotonic() + _AFTER_REFUSAL
            LOG.warning("CSI driver %s: %s; it is announced again", self.driver.name, absent)

    async def _withdraw(self) -> None:
        """Take the driver from kubelet."""
        registration, self._registration = self._registration, None
        registrar, self._registrar = self._registrar, None
        if registration is not None:
            await self.lane.run(registration.remove)
        await stop(registrar)

    async def end(self, *, withdraw: bool) -> None:
        """Stop serving; `withdraw` also takes the driver from kubelet, which otherwise waits for the next daemon."""
        if withdraw:
            with suppress(PluginError):
                await self._withdraw()
                if self._socket is not None:
                    await self.lane.run(self._socket.remove)
        await stop(self._registrar)
        await stop(self._server)


@dataclass(slots=True)
class _Registration(pb_grpc.RegistrationServicer):
    """What kubelet's plugin watcher asks."""

    served: Served

    async def GetInfo(self, request: pb.InfoRequest, context: Any) -> pb.PluginInfo:  # noqa: N802 - the RPC's name
        del request, context
        self.served.asked()
        return pb.PluginInfo(
            type="CSIPlugin",
            name=self.served.driver.name,
            endpoint=str(self.served.path),
            supported_versions=_VERSIONS,
        )

    async def NotifyRegistrationStatus(  # noqa: N802 - the RPC's name
        self, request: pb.RegistrationStatus, context: Any
    ) -> pb.RegistrationStatusResponse:
        del context
        self.served.judged(request)
        return pb.RegistrationStatusResponse()
