"""`/healthz`, `/readyz` and `/metrics`.

Owns: one listening socket and the threads that answer on it, beside the event loop, so that a scrape is answered even
when the loop is not.
Refuses: to know what ready means: it asks what it was given. Those callables run in its threads; they must read
values that the loop replaces as a whole, never what the loop changes in place.
"""

import errno
import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from nodeplug.config import parse_address
from nodeplug.errors import InvalidRequest, PluginError

Readiness = Callable[[], tuple[bool, Mapping[str, str]]]
"""Whether every plugin serves, and by plugin the reason why one does not."""
Liveness = Callable[[], str]
"""Why the daemon should be restarted, or an empty text."""
_SILENCE: Final = 10.0
_TURN: Final = 60.0
"""Seconds between two looks of the listening thread at nothing; `close` wakes it."""
_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"


class _Quiet(WSGIRequestHandler):
    """Answers one connection, and gives up on a silent one."""

    timeout = _SILENCE

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the overridden method
        """Write nothing: probes come every few seconds."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, family: socket.AddressFamily, address: tuple[Any, ...]) -> None:
        self.address_family = family
        super().__init__((str(address[0]), int(address[1])), _Quiet)

    def server_bind(self) -> None:
        """Bind without the reverse look-up of the host name that the base class makes: it can take seconds.

        Connections of a daemon that has just ended must not keep its successor off the port (socket(7), SO_REUSEADDR);
        a port that somebody listens on is refused all the same.
        """
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: a client that goes away in the middle is no event."""


class Endpoints:
    """Serves until it is closed."""

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        readiness: Readiness,
        liveness: Liveness = lambda: "",
    ) -> None:
        """Listen and answer, in a daemon thread.

        Args:
            address: `host:port`; port 0 takes a free one.
            registry: what `/metrics` shows.
            readiness: asked by `/readyz`.
            liveness: asked by `/healthz`.

        Raises:
            InvalidRequest: the address has another form or names no host.
            PluginError: the port is taken, or cannot be used.
        """
        host, port = parse_address(address)
        application = _Application(registry, readiness, liveness)
        try:
            # An empty host means every address.
            flags = socket.AI_PASSIVE
            family, _, _, _, target = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)[0]
            self._server = _Server(family, target)
        except socket.gaierror as error:
            raise InvalidRequest(f"listen = {address!r} names no address of this host: {error.strerror}") from error
        except OSError as error:
            hint = "another process listens there" if error.errno == errno.EADDRINUSE else str(error.strerror)
            raise PluginError(
                f"cannot serve /healthz, /readyz and /metrics on {address}: {hint}; set supervisor.listen to another "
                "address, or to '' to switch them off"
            ) from error
        self._server.set_app(application)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_TURN,), name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        # A listening socket that is shut down is readable, which ends the wait of the thread at once (shutdown(2)).
        self._server.socket.shutdown(socket.SHUT_RD)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Application:
    """The three paths, as a WSGI application."""

    def __init__(self, registry: CollectorRegistry, readiness: Readiness, liveness: Liveness) -> None:
        self._readiness = readiness
        self._liveness = liveness
        self._routes: Mapping[str, WSGIApplication] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": make_wsgi_app(registry),
        }

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        route = self._routes.get(environ.get("PATH_INFO", ""))
        if route is None:
            paths = ", ".join(self._routes)
            return _answer(start, HTTPStatus.NOT_FOUND, f"there are: {paths}\n")
        method = environ["REQUEST_METHOD"]
        if method not in {"GET", "HEAD"}:
            return _answer(start, HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", ("Allow", "GET, HEAD"))
        body = route({**environ, "REQUEST_METHOD": "GET"}, start)
        return [] if method == "HEAD" else body

    def _healthz(self, _: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        reason = self._liveness()
        status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
        return _answer(start, status, f"{reason or 'ok'}\n")

    def _readyz(self, _: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        ready, reasons = self._readiness()
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _answer(start, status, json.dumps({"ready": ready, "reasons": dict(reasons)}) + "\n", form=_JSON)


def _answer(
    start: StartResponse, status: HTTPStatus, text: str, *headers: tuple[str, str], form: str = _TEXT
) -> Iterable[bytes]:
    body = text.encode()
    start(f"{status.value} {status.phrase}", [("Content-Type", form), ("Content-Length", str(len(body))), *headers])
    return [body]
