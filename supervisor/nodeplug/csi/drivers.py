"""The CSI drivers of this node: one per volume claim, served and registered with kubelet.

Owns: the two sockets of each driver, at paths that never change, what kubelet has said about each registration, and a
note of what is served: a later daemon removes what nobody serves any more.
Refuses: the calls on them (`identity`, `node`, `controller`), and to give up: every second it compares what is there
with what should be.

Registration is kubelet's plugin watcher (pkg/kubelet/pluginmanager): it dials every socket in its folder, asks for the
driver's name and socket, and tells the verdict. It keys drivers by the path of that socket, and removes them by name;
so a second path for one driver would remove the first.
"""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import grpc.aio

from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import write_durably
from nodeplug.contract.values import Secrets
from nodeplug.csi import codec, controller, identity, node
from nodeplug.csi.driver import Driver
from nodeplug.hosting.call import Call
from nodeplug.hosting.front import Front
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.pb import pluginregistration_v1_pb2 as pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as pb_grpc
from nodeplug.process.lane import Lane
from nodeplug.process.private_socket import Bound, serve
from nodeplug.volumes.ledger import UNPUBLISHING
from nodeplug.volumes.service import Volumes

if TYPE_CHECKING:
    from nodeplug.contract.values import VolumeClaim

LOG: Final = logging.getLogger(__name__)
INTERVAL: Final = 1.0
"""Seconds between two looks at what should be served."""
_VERSIONS: Final = ("1.0.0",)
_OPTIONS: Final = (("grpc.so_reuseport", 0),)
_STOP_GRACE: Final = 1.0
_AFTER_REFUSAL: Final = 2.0
"""Seconds without a socket after which kubelet has forgotten that it refused one: it looks every second."""
_LONGEST: Final = 120.0
UNANSWERED: Final = 150.0
"""Seconds without a verdict after which a driver is announced anew: kubelet gives NodeGetInfo two minutes."""
_DOUBLED: Final = 3
"""Times that this is doubled: kubelet may not run at all, or have no API server for hours."""


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
        problem: why it is not registered; empty while it is, or nobody has said anything yet.
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
            self._socket = await serve(server, self.lane, lambda: _bound(self.path, server))
            self._server, old = server, self._server
            await _stop(old)
        if time.monotonic() < self._not_before:
            await self._withdraw()
            return
        if self._registration is None or not await self.lane.run(self._registration.is_there):
            self.registered = False
            registrar = grpc.aio.server(options=_OPTIONS)
            pb_grpc.add_RegistrationServicer_to_server(_Registration(self), registrar)
            announced = registration_of(self.registrations, self.driver.name)
            self._registration = await serve(registrar, self.lane, lambda: _bound(announced, registrar))
            self._registrar, old = registrar, self._registrar
            await _stop(old)
            self._announced, self._asked = time.monotonic(), False
        self.problem = "" if self.registered else self._unanswered()
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
        if self._refusals:
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
            LOG.info("CSI driver %s is registered with kubelet", self.driver.name)
            return
        self.registered, self.problem = False, f"kubelet refused it: {verdict.error}"
        pause = min(_AFTER_REFUSAL * 2 ** min(self._refusals, 10), _LONGEST)
        self._refusals += 1
        self._not_before = time.monotonic() + pause
        LOG.warning("CSI driver %s: %s; it is announced again in %g s", self.driver.name, self.problem, pause)

    async def _withdraw(self) -> None:
        """Take the driver from kubelet."""
        registration, self._registration = self._registration, None
        registrar, self._registrar = self._registrar, None
        if registration is not None:
            await self.lane.run(registration.remove)
        await _stop(registrar)

    async def end(self, *, withdraw: bool) -> None:
        """Stop serving; `withdraw` also takes the driver from kubelet, which otherwise waits for the next daemon."""
        if withdraw:
            with suppress(PluginError):
                await self._withdraw()
                if self._socket is not None:
                    await self.lane.run(self._socket.remove)
        await _stop(self._registrar)
        await _stop(self._server)


async def _stop(server: grpc.aio.Server | None) -> None:
    if server is not None:
        await server.stop(_STOP_GRACE)


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


@dataclass(slots=True)
class CsiDrivers:
    """All drivers of this node. Event loop only.

    Attributes:
        kubelet: kubelet's root; drivers are served at `plugins/<driver>/csi.sock` below it.
        registrations: the plugin watcher's folder.
        notes: the file with the drivers that were served last.
        node: its name.
        enabled: otherwise only what pods still have of an earlier daemon is served.
        served: by the name of the driver.
        refused: why claims have no driver, by claim.
        trouble: why drivers neither come nor go at present; empty if they do.
    """

    registry: Registry
    runner: Runner
    volumes: Volumes
    kubelet: Path
    registrations: Path
    notes: Path
    node: str
    enabled: bool
    served: dict[str, Served] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""
    _noted: Mapping[str, str] | None = None
    _lane: Lane = field(default_factory=lambda: Lane("kubelet's folders of CSI sockets"))
    _version: str = field(default_factory=lambda: version("nodeplug"))

    async def keep(self) -> None:
        """Serve what is claimed now and what pods still have, and no longer what neither is."""
        try:
            if self._noted is None:
                self._noted = await self._lane.run(self._read_notes)
            wanted = self._wanted()
            gone = {name: claim for name, claim in self._noted.items() if name not in wanted}
            if gone:
                wanted |= await self._still_needed(gone)
            for name in sorted(set(gone) - set(wanted)):
                await self._withdraw(name)
            if wanted != self._noted:
                await self._lane.run(lambda: self._write_notes(wanted))
                self._noted = wanted
        except (PluginError, OSError) as error:  # the disk is full, or kubelet's folder hangs: what is served stays
            trouble = f"drivers stay as they are: {error}; check the disks of {self.notes.parent} and {self.kubelet}"
            if trouble != self.trouble:
                LOG.warning("CSI %s", trouble)
            self.trouble = trouble
            return
        self.trouble = ""
        for name, claim in wanted.items():
            await self._serve(name, claim)

    async def _still_needed(self, gone: Mapping[str, str]) -> dict[str, str]:
        """Return those that nobody claims at present and that are needed: a plugin still loads, or pods have volumes.

        A pod cannot end without the driver of its volumes; nodeplug unmounts them without the plugin.
        """
        if self.enabled and any(slot.loading for slot in self.registry.slots.values()):
            return dict(gone)
        ledger = self.volumes.ledger
        targets = await self._lane.run(ledger.targets)
        used = {one.volume.driver for one in targets if one.phase != UNPUBLISHING}
        return {name: claim for name, claim in gone.items() if claim in used}

    async def _serve(self, name: str, claim: str) -> None:
        if name not in self.served:
            folders = self.kubelet / "plugins" / "kubernetes.io" / "csi"
            driver = Driver(name, claim, self.node, self._version, folders, self.registry, self.runner, self.volumes)
            self.served[name] = Served(driver, self._lane, self.kubelet / "plugins", self.registrations)
        self.served[name].driver.claim = claim
        try:
            await self.served[name].keep()
        except PluginError as error:
            self.served[name].problem = error.message

    async def _withdraw(self, name: str) -> None:
        served = self.served.pop(name, None)
        if served is not None:
            await served.end(withdraw=True)
        else:  # of an earlier daemon
            for path in (registration_of(self.registrations, name), socket_of(self.kubelet / "plugins", name)):
                await self._lane.run(partial(path.unlink, missing_ok=True))
        LOG.info("CSI driver %s is withdrawn: no plugin serves it, and no pod has a volume of it", name)

    def _read_notes(self) -> Mapping[str, str]:
        try:
            document = json.loads(self.notes.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return {str(name): str(claim) for name, claim in document.items()} if isinstance(document, dict) else {}

    def _write_notes(self, wanted: Mapping[str, str]) -> None:
        write_durably(self.notes, json.dumps(wanted).encode())

    def _wanted(self) -> dict[str, str]:
        if not self.enabled:
            return {}
        wanted: dict[str, str] = {}
        refused: dict[str, str] = {}
        for route in self.registry.routes("volume"):
            claim = cast("VolumeClaim", route.claim)
            try:
                name = codec.driver_name(claim)
            except PluginError as error:
                refused[claim.name] = error.message
                continue
            if name in wanted:
                refused[claim.name] = f"its CSI driver would be {name!r}, as that of {wanted[name]!r}"
            else:
                wanted[name] = claim.name
        for claim_name, why in refused.items():
            if self.refused.get(claim_name) != why:
                LOG.warning("volume %s has no CSI driver: %s", claim_name, why)
        self.refused = refused
        return wanted

    async def identify(self, claim: str, options: str) -> dict[str, Any]:
        """Return the CSI driver of a volume claim, and the volumeHandle of the volume that options mean.

        Args:
            claim: `vendor/driver`.
            options: what FlexVolume calls so, in JSON.

        Raises:
            InvalidRequest: the options are not a JSON object of texts.
            NotFound: no plugin has the claim.
            PluginError: the plugin does not run, or refused the options.
        """
        wanted = codec.read_options(options)
        route = self.registry.route("volume", claim)
        call = Call("volume_id", f"volume:{claim}")
        work = self.volumes.run(route, call, lambda steps: steps.identify(wanted, Secrets()))
        handle = await Front(self.runner).serve(call, work)
        return {"driver": codec.driver_name(cast("VolumeClaim", route.claim)), "volume_handle": handle}

    def status(self) -> list[dict[str, Any]]:
        """Describe every driver, and every claim that has none."""
        served = [
            {
                "driver": name,
                "claim": one.driver.claim,
                "inline": cast("VolumeClaim", one.driver.claimed.claim).inline,
                "block": cast("VolumeClaim", one.driver.claimed.claim).block,
                "registered": one.registered,
                "problem": one.problem,
            }
            for name, one in self.served.items()
        ]
        refused = {"driver": "", "inline": False, "block": False, "registered": False}
        return served + [{**refused, "claim": claim, "problem": why} for claim, why in self.refused.items()]

    async def end(self) -> None:
        """Stop serving; kubelet keeps the registrations for the next daemon."""
        await asyncio.gather(*[one.end(withdraw=False) for one in self.served.values()])


def _bound(path: Path, server: grpc.aio.Server) -> Bound:
    """Bind a server in a folder that kubelet may not have made yet."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise PluginError(f"cannot make {path.parent}: {error}") from error
    return Bound.at(path, server)
