"""A proxy before a real kube-apiserver that ends its client at a chosen request, as a crash at that moment would.

Owns: which request it is, whether the server has done it by then, and that its answer never arrives.
Refuses: to change requests and answers, but for the credentials: whoever asks here has those of the proxy.
"""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal, Self
from urllib.parse import parse_qs, urlsplit

from tests.real.consumers.control_plane import PORT, TRUSTING, ControlPlane

from nodeplug.testing.acted_api.store import Where, kubeconfig_of

Moment = Literal["before", "after", "ahead"]
"""Of a crash: the server has not seen the request, or has done it and the answer is lost. What is `ahead` is no crash:
it is done, and then the request goes on."""
_CHUNK: Final = 1 << 16
_PASSED_ON: Final = ("Content-Type", "Accept", "User-Agent")


@dataclass
class Crash:
    """The end of a client at one request.

    Attributes:
        number: of the request, from 0, among those that count.
        moment: when.
        counts: whether a request is one of those, by its verb and path.
        end: ends the client.
        seen: those that came, such as `POST persistentvolumes`; the last is the one at which the client ended.
        happened: it has ended.
    """

    number: int
    moment: Moment
    counts: Callable[[str, Where], bool]
    end: Callable[[], None]
    seen: list[str] = field(default_factory=list)
    happened: threading.Event = field(default_factory=threading.Event)

    def is_at(self, verb: str, where: Where) -> bool:
        """Count a request, and say whether it is the one."""
        if self.happened.is_set() or not self.counts(verb, where):
            return False
        self.seen.append(" ".join(filter(None, (verb, where.resource, where.part))))
        return len(self.seen) == self.number + 1

    def happen(self) -> None:
        """End the client."""
        self.end()
        self.happened.set()


class ApiProxy:
    """The proxy, on the loopback of the test.

    Args:
        control: the control plane.
        token: with which it asks; it may be given later.

    Attributes:
        crash: what is to happen; None to pass everything on.
    """

    def __init__(self, control: ControlPlane, token: str = "") -> None:
        self.control, self.token = control, token
        self.crash: Crash | None = None
        self._counting = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def kubeconfig(self) -> str:
        """What a client needs to find it."""
        return kubeconfig_of(f"http://127.0.0.1:{self._server.server_address[1]}")

    def crash_at(self, verb: str, where: Where) -> Crash | None:
        """Return the crash that is to happen at this request, or None."""
        crash = self.crash
        with self._counting:  # requests come at the same time
            return crash if crash is not None and crash.is_at(verb, where) else None

    def upstream(self) -> http.client.HTTPSConnection:
        """Return a connection to the server itself."""
        with self.control.node.netns.entered():  # the connection stays in the namespace that it was opened in
            connection = http.client.HTTPSConnection("127.0.0.1", PORT, context=TRUSTING)
            connection.connect()
        return connection

    def close(self) -> None:
        """End it; watches that are open end with their client."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: ApiProxy

    def _relay(self) -> None:
        address = urlsplit(self.path)
        watches = parse_qs(address.query).get("watch") in (["1"], ["true"])
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        crash = None if watches else self.proxy.crash_at(self.command, Where.parse(address.path))
        if crash is not None and crash.moment == "before":
            self._crash(crash)
            return
        if crash is not None and crash.moment == "ahead":
            crash.happen()
            crash = None
        connection = self.proxy.upstream()
        try:
            headers = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
            headers["Authorization"] = f"Bearer {self.proxy.token}"
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            if watches:
                self._stream(answer)
                return
            data = answer.read()
        finally:
            connection.close()
        if crash is not None:
            self._crash(crash)
            return
        self._head(answer, ("Content-Length", str(len(data))))
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _relay  # noqa: N815 - so http.server finds them

    def _crash(self, crash: Crash) -> None:
        self.close_connection = True
        crash.happen()

    def _head(self, answer: http.client.HTTPResponse, length: tuple[str, str]) -> None:
        self.send_response(answer.status)
        for name in ("Content-Type", "Retry-After"):
            if value := answer.headers.get(name):
                self.send_header(name, value)
        self.send_header(*length)
        self.end_headers()

    def _stream(self, answer: http.client.HTTPResponse) -> None:
        self.close_connection = True
        self._head(answer, ("Transfer-Encoding", "chunked"))
        for piece in _pieces(answer):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def handle(self) -> None:
        with suppress(ConnectionError, http.client.HTTPException):  # the client, or the server, went away
            super().handle()

    def log_message(self, *_: object) -> None:
        """Say nothing: the daemon's log tells what failed."""


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := answer.read1(_CHUNK):
        yield piece
