"""HTTP as the clients of an API server speak it: requests in, objects, refusals and streams of changes out.

Owns: the wire of one request, and the socket and thread of a server.
Refuses: to decide: which objects there are, and who may do what, is the server's that uses it.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from nodeplug.testing.acted_api.store import Object, Where, kubeconfig_of


class ApiHandler(BaseHTTPRequestHandler):
    """One connection of a client; a server's own class has the methods `do_GET` and so on."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body that waits for the head to be acknowledged is 40 ms late

    def asked(self) -> tuple[Where, dict[str, str]]:
        """Return what the request is about, and its query."""
        address = urlsplit(self.path)
        return Where.parse(address.path), {key: values[-1] for key, values in parse_qs(address.query).items()}

    def body(self) -> Any:
        """Read the body of the request; none is an empty object."""
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def answer(self, code: int, found: Mapping[str, Any]) -> None:
        """Send an object."""
        data = json.dumps(found).encode()
        self.head(code, len(data))
        self.wfile.write(data)

    def answer_with(self, found: Object | None) -> None:
        """Send an object, or that there is none."""
        if found is None:
            self.refuse(HTTPStatus.NOT_FOUND, "NotFound")
        else:
            self.answer(HTTPStatus.OK, found)

    def refuse(self, code: int, reason: str, message: str = "") -> None:
        """Send a Status that says why not."""
        status = {"status": "Failure", "reason": reason, "message": message or f"{reason}: {self.path}", "code": code}
        self.answer(code, {"apiVersion": "v1", "kind": "Status", "metadata": {}, **status})

    def stream(self, events: Iterable[Object]) -> None:
        """Send changes as they come."""
        self.head(HTTPStatus.OK, None)
        for event in events:
            self.wfile.write(json.dumps(event).encode() + b"\n")
            self.wfile.flush()

    def head(self, code: int, length: int | None) -> None:
        """Send the head of a response; one without a length ends with the connection."""
        self.send_response(int(code))
        self.send_header("Content-Type", "application/json")
        if length is None:
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.flush()

    def handle(self) -> None:
        """Serve the connection until the client goes away."""
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Say nothing: who asks says what failed."""


class Listening:
    """The socket and the thread of a server on loopback.

    Args:
        handler: a class made from `ApiHandler`; its attributes are what all connections share.
        within: in what the socket is opened, such as an entered network namespace, in which it stays.
    """

    def __init__(self, handler: type[ApiHandler], within: AbstractContextManager[object] | None = None) -> None:
        with within or nullcontext():
            self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def kubeconfig(self) -> str:
        """What a client needs to find the server."""
        return kubeconfig_of(f"http://127.0.0.1:{self._server.server_address[1]}")

    def close(self) -> None:
        """Listen no longer; connections that are open go on."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
