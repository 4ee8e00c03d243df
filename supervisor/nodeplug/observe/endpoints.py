"""`/healthz`, `/readyz` and `/metrics`.

Owns: the responses of the three paths.
Refuses: to know what ready means (it calls what it was given, on the event loop), and to render metrics on the loop:
many series take long, so a thread renders them once for all requests within a second. `nodeplug.http.server` limits
what clients can use.
"""

import json
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from nodeplug.config import parse_address
from nodeplug.contract.errors import PluginError
from nodeplug.http.server import JSON, Bounds, HttpServer, Request, Response, listen
from nodeplug.process.lane import Lane

Readiness = Callable[[], tuple[bool, Mapping[str, str]]]
"""Whether every plugin serves, and for each one that does not, the reason."""
Liveness = Callable[[], str]
"""Why the daemon should be restarted, or an empty string."""
FRESH: Final = 1.0
"""Seconds for which a page of metrics is reused."""
_PATIENCE: Final = 8.0
"""Seconds for rendering a page; shorter than a request's timeout."""


class Endpoints:
    """Listens from the start, and responds between `start` and `stop`. Port 0 takes a free one.

    Raises:
        InvalidRequest: the address is malformed or names no host.
        PluginError: the port is taken, or cannot be used.
    """

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        readiness: Readiness,
        liveness: Liveness = lambda: "",
        bounds: Bounds | None = None,
    ) -> None:
        try:
            listener = listen(*parse_address(address))
        except PluginError as error:
            raise type(error)(
                f"cannot serve /healthz, /readyz and /metrics: {error}; set supervisor.listen to another address, or "
                "to '' to switch them off"
            ) from error
        self.port: Final[int] = listener.getsockname()[1]
        self._readiness = readiness
        self._liveness = liveness
        self._metrics = _Pages(registry)
        self._server = HttpServer(listener, self._answer, bounds or Bounds())

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    async def _answer(self, request: Request) -> Response:
        if request.path not in _PATHS:
            return Response(HTTPStatus.NOT_FOUND, f"there are: {', '.join(_PATHS)}\n".encode())
        if request.method not in {"GET", "HEAD"}:
            allowed = {"Allow": "GET, HEAD"}
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n", headers=allowed)
        if request.path == "/metrics":
            return await self._metrics.page(request.headers.get("accept", ""))
        return self._healthz() if request.path == "/healthz" else self._readyz()

    def _healthz(self) -> Response:
        reason = self._liveness()
        status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
        return Response(status, f"{reason or 'ok'}\n".encode())

    def _readyz(self) -> Response:
        ready, reasons = self._readiness()
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(status, (json.dumps({"ready": ready, "reasons": dict(reasons)}) + "\n").encode(), JSON)


_PATHS: Final = ("/healthz", "/readyz", "/metrics")


class _Pages:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lane = Lane("the writing of metrics", _PATIENCE)
        self._written: dict[str, tuple[float, bytes]] = {}

    async def page(self, accept: str) -> Response:
        encoder, form = choose_encoder(accept)
        page = self._fresh(form)
        if page is None:
            try:
                page = await self._lane.run(lambda: self._write(form, lambda: encoder(self._registry)))
            except PluginError as error:
                return Response(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())
        return Response(HTTPStatus.OK, page, form)

    def _fresh(self, form: str) -> bytes | None:
        at, page = self._written.get(form, (0.0, b""))
        return page if page and time.monotonic() - at < FRESH else None

    def _write(self, form: str, encode: Callable[[], bytes]) -> bytes:
        """Render a page in the worker thread, unless another request has just done so."""
        page = self._fresh(form)
        if page is None:
            page = encode()
            self._written[form] = time.monotonic(), page
        return page
