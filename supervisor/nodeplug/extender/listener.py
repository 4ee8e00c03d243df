"""Where kube-scheduler finds the extenders: a socket that listens, its certificate, and how both are.

Owns: listening, again and again until it succeeds, since a port that is taken must not cost the node its networks; the
socket that one daemon leaves to the next; and what people are told.
Refuses: requests (`service`), and the files of certificates (`certificates`).
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nodeplug.config import ExtenderSection, parse_address
from nodeplug.contract.errors import PluginError
from nodeplug.contract.inputs import EXTENDER_BODY
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.contract.sockets import KeptSockets
from nodeplug.extender.certificates import Certificates
from nodeplug.extender.codec import VERBS
from nodeplug.extender.followed import BlockingScheduling, FollowedCluster
from nodeplug.extender.service import ExtenderService
from nodeplug.hosting.registry import Registry
from nodeplug.http.server import Bounds, HttpServer, listen
from nodeplug.process.aside import aside

LOG: Final = logging.getLogger(__name__)
LOOK: Final = 5.0
"""Seconds between two looks at the certificate, and between two attempts to listen."""
_IDLE: Final = 120.0
"""Longer than a Go client keeps a connection (90 s): the side that ends it first must be the one that asks."""
_CONNECTIONS: Final = 256
_BODIES: Final = 2
"""How many of the largest bodies are held at once; a scheduler works on one pod, and Bindings are short."""


@dataclass(slots=True)
class Listener:
    """Serves extenders at an address. Event loop only.

    Attributes:
        section: of the configuration.
        registry: knows the claims.
        service: answers.
        kept: holds the listening socket, also for the next daemon.
        cluster: what is followed of it; None without `follow`.
        problem: why it cannot listen; empty if it can, and before it was tried.
    """

    section: ExtenderSection
    registry: Registry
    service: ExtenderService
    kept: KeptSockets
    cluster: FollowedCluster | None = None
    problem: str = ""
    _port: int = 0
    _server: HttpServer | None = None
    _certificates: Certificates | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.section.tls_cert:
            self._certificates = Certificates(self.section.tls_cert, self.section.tls_key, self.section.client_ca)

    def scheduling(self) -> ClusterScheduling:
        """Return what plugins are given. Any thread."""
        return ClusterScheduling() if self.cluster is None else BlockingScheduling(self.cluster)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(), name="serve kube-scheduler")
            if self.cluster is not None:
                group.create_task(self.cluster.run(), name="follow the cluster for kube-scheduler")

    async def _listen(self) -> None:
        try:
            while True:
                await self._look()
                await asyncio.sleep(LOOK)
        finally:
            if self._server is not None:
                await self._server.stop()

    async def _look(self) -> None:
        told = self.trouble
        try:
            if self._certificates is not None:
                await self._certificates.look()
            if self._server is None and (self._certificates is None or self._certificates.loaded is not None):
                await self._start()
        except PluginError as error:
            self.problem = f"{error}; listen of [extender] names another address"
        except Exception:
            LOG.exception("scheduler extenders cannot be served; it is tried again")
            self.problem = "it cannot listen; the log has the traceback"
        if self.trouble and self.trouble != told:
            LOG.warning("scheduler extenders: %s", self.trouble)

    async def _start(self) -> None:
        tls = self._certificates.context if self._certificates is not None else None
        most = self.section.max_body
        bounds = Bounds(_CONNECTIONS, EXTENDER_BODY.seconds, _IDLE, body=most, bodies=_BODIES * most)
        listener = await aside(self._listener, "listen for kube-scheduler")
        self._port = listener.getsockname()[1]
        self._server = HttpServer(listener, self.service.answer, bounds, tls)
        await self._server.start()
        self.problem = ""
        LOG.info("serving scheduler extenders at %s", self.address)

    def _listener(self) -> socket.socket:
        """Return what the daemon before has left for the same address, or listen."""
        address = self.section.listen
        for name in self.kept.names():
            if name != address:
                self.kept.drop(name)
        left = self.kept.get(address)
        if left is not None:
            left.setblocking(False)
            return left
        listener = listen(*parse_address(address))
        self.kept.keep(address, listener)
        return listener

    @property
    def address(self) -> str:
        """What a `urlPrefix` begins with; a configured port 0 is the one that was free."""
        host, _, port = self.section.listen.rpartition(":")
        return f"http{'' if self._certificates is None else 's'}://{host}:{self._port or port}"

    @property
    def trouble(self) -> str:
        """What is wrong, or will be soon; empty if nothing is."""
        certificate = self._certificates.trouble if self._certificates is not None else ""
        return certificate or self.problem or (self.cluster.trouble if self.cluster is not None else "")

    def hold(self) -> None:
        """Let new calls wait, because another daemon is about to take over."""
        self.service.hold()

    def release(self) -> None:
        """Let them in again."""
        self.service.release()

    def status(self) -> Mapping[str, Any] | None:
        """Describe it."""
        loaded = self._certificates.loaded if self._certificates is not None else None
        return {
            "address": self.address,
            "listens": self._server is not None,
            "problem": self.trouble,
            "connections": self._server.connections if self._server is not None else 0,
            "certificate_expires": loaded.not_after if loaded is not None else None,
            "cluster": self.cluster.status() if self.cluster is not None else None,
            "clients_need_certificate": bool(self.section.client_ca),
            "extenders": [
                {"name": route.claim.name, "plugin": route.plugin, "verbs": _verbs(route.hooks)}
                for route in self.registry.routes("extender")
            ],
        }


def _verbs(hooks: frozenset[str]) -> list[str]:
    return [name for name, verb in VERBS.items() if verb.hook in hooks]
