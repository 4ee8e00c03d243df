"""HTTP/1.1 on the event loop, with limits: for probes, scrapes and any other front that speaks HTTP.

Owns: one listening socket, and the limits on what a stranger can hold: the number of connections, the time of one
request from its first byte to the last byte of its response (of the TLS handshake before it, too), idle time, the size
of head and body, and of all bodies together. h11 knows the protocol, the standard library TLS.
Refuses: threads, paths and methods: it asks one application, which must not block.

At the limit, a new connection replaces the oldest one that has not sent a whole request, so a prober is served however
many silent connections there are. If all of them are being answered, the new one is closed at once.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import h11

from nodeplug.contract.errors import InvalidRequest, PluginError
from nodeplug.contract.inputs import HTTP_BODY

LOG: Final = logging.getLogger(__name__)
_CHUNK: Final = 1 << 14
_BACKLOG: Final = 128
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one listening socket.

    Attributes:
        connections: how many at once.
        request: seconds from connecting, or from the first byte of a later request, to the end of its response.
        idle: seconds that a connection may wait for its next request.
        head: bytes of request line and headers.
        body: bytes.
        bodies: bytes of all bodies that are being received or answered; None: as many as connections can have.
    """

    connections: int = 64
    request: float = HTTP_BODY.seconds
    idle: float = 60.0
    head: int = 16 << 10
    body: int = HTTP_BODY.size
    bodies: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """One response."""

    status: HTTPStatus
    body: bytes
    form: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


Application = Callable[[Request], Awaitable[Response]]
Tls = Callable[[], ssl.SSLContext]
"""Returns what a new connection is encrypted with: certificates are renewed while the daemon runs."""


def listen(host: str, port: int) -> socket.socket:
    """Bind and listen; an empty host means every address.

    SO_REUSEADDR (socket(7)): connections of a daemon that has just ended must not block the port. A port on which
    another process listens is still refused.

    Raises:
        InvalidRequest: the host is no address of this machine.
        PluginError: the port is taken, or cannot be used.
    """
    where = f"{host or '*'}:{port}"
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise InvalidRequest(f"{host!r} names no address of this host: {error.strerror}") from error
    family, _, _, _, target = found[0]
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        hint = "another process listens there" if error.errno == errno.EADDRINUSE else str(error.strerror)
        raise PluginError(f"cannot listen on {where}: {hint}") from error
    return listener


class HttpServer:
    """Serves one application on one listening socket, which it closes at the end."""

    def __init__(
        self, listener: socket.socket, application: Application, bounds: Bounds = Bounds(), tls: Tls | None = None
    ) -> None:
        self._listener = listener
        self._application = application
        self._bounds = bounds
        self._tls = tls
        self._held = _Held(bounds.bodies)
        self._refusals: set[str] = set()
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, asyncio.Task[None]] = {}

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    async def start(self) -> None:
        """Accept and answer, until `stop`."""
        self._server = await asyncio.start_server(self._accepted, sock=self._listener, limit=self._bounds.head)

    async def stop(self) -> None:
        """Stop listening, and end every connection."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection, or close it."""
        if len(self._connections) >= self._bounds.connections and not self._evict():
            writer.transport.abort()
            return
        if self._tls is not None:
            writer.transport.pause_reading()  # type: ignore[attr-defined] # the handshake is not the stream's to read
        connection = _Connection(reader, writer, self._bounds, self._held, self._evict_holder)
        task = asyncio.get_running_loop().create_task(self._serve(connection), name="http-connection")
        self._connections[connection] = task
        task.add_done_callback(lambda _: self._connections.pop(connection, None))

    def _evict(self) -> bool:
        """End the oldest connection that has not sent a whole request; return whether there was one."""
        return self._end_first(lambda one: not one.answering)

    def _evict_holder(self, asking: "_Connection") -> bool:
        """Make room for a body: end the oldest other connection with a part of one; return whether there was one.

        Otherwise whoever sends a body slowly would keep all others out.
        """
        return self._end_first(lambda one: one is not asking and not one.answering and one.holding > 0)

    def _end_first(self, is_wanted: "Callable[[_Connection], bool]") -> bool:
        for connection, task in self._connections.items():
            if is_wanted(connection):
                del self._connections[connection]
                connection.writer.transport.abort()
                connection.release()
                task.cancel()
                return True
        return False

    async def _serve(self, connection: "_Connection") -> None:
        try:
            if self._tls is not None:
                async with asyncio.timeout(self._bounds.request):
                    await connection.encrypt(self._tls())
            while await self._serve_one(connection):
                async with asyncio.timeout(self._bounds.idle):
                    await connection.more()
        except ssl.SSLError as error:
            self._tell(error, connection.writer.get_extra_info("peername"))
            connection.writer.transport.abort()
        except (TimeoutError, OSError, asyncio.CancelledError):
            connection.writer.transport.abort()  # too slow, gone, or evicted: there is nobody to answer
        except Exception:
            LOG.exception("an HTTP connection failed")
        finally:
            connection.release()
            connection.writer.close()

    def _tell(self, error: ssl.SSLError, peer: object) -> None:
        """Log why a handshake failed, each reason once: the other end often sees no more than the end of it."""
        reason = error.reason or type(error).__name__
        if reason not in self._refusals:
            self._refusals.add(reason)
            LOG.warning("no TLS with %s: %s; the next failure of this kind is not logged", peer, reason)

    async def _serve_one(self, connection: "_Connection") -> bool:
        """Answer one request within its time; return whether another may follow."""
        async with asyncio.timeout(self._bounds.request):
            try:
                request = await connection.request()
            except h11.RemoteProtocolError as error:
                status = HTTPStatus(error.error_status_hint)
                await connection.send(Response(status, f"{status.phrase}: {error}\n".encode()))
                return False
            if request is None:
                return False
            connection.answering = True
            try:
                response = await self._application(request)
            except Exception:
                LOG.exception("%s %s failed", request.method[:20], request.path[:100])
                response = Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"the daemon failed; its log has the traceback\n")
            await connection.send(response)
            connection.answering = False
            connection.release()
            return connection.next()


class _Held:
    """How many bytes of bodies all connections hold."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._bytes = 0

    def add(self, count: int) -> bool:
        """Count more of them; return whether they fit. Fewer always do."""
        if self._limit is not None and count > 0 and self._bytes + count > self._limit:
            return False
        self._bytes += count
        return True


class _Connection:
    """One peer: bytes to requests, responses to bytes."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        bounds: Bounds,
        held: _Held,
        evict: "Callable[[_Connection], bool]",
    ) -> None:
        self.writer = writer
        self.holding = 0
        self._evict = evict
        self.answering = False
        self._reader = reader
        self._limit = bounds.body
        self._held = held
        self._bodiless = False
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=bounds.head)
        # After drain, the kernel has all bytes: no memory is held for a peer that does not read.
        writer.transport.set_write_buffer_limits(high=0)

    async def encrypt(self, context: ssl.SSLContext) -> None:
        """Shake hands."""
        await self.writer.start_tls(context)
        self.writer.transport.set_write_buffer_limits(high=0)

    def release(self) -> None:
        """Hold no body any more."""
        self._held.add(-self.holding)
        self.holding = 0

    async def more(self) -> None:
        """Receive the next bytes."""
        self._protocol.receive_data(await self._reader.read(_CHUNK))

    async def request(self) -> Request | None:
        """Read one request; None if the peer has closed, h11.RemoteProtocolError if the bytes are not one."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                await self._invite()
                await self.more()
            elif isinstance(event, h11.Request):
                head = event
                self._bodiless = event.method == b"HEAD"
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._limit:
                    raise h11.RemoteProtocolError(f"at most {self._limit} bytes of body", error_status_hint=413)
                while not self._held.add(len(event.data)):
                    if self._evict(self):
                        continue
                    raise h11.RemoteProtocolError("too many bodies at once; ask again", error_status_hint=503)
                self.holding += len(event.data)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return _request(head, bytes(body))
            else:  # closed, or an event that cannot occur here
                return None

    async def _invite(self) -> None:
        if self._protocol.they_are_waiting_for_100_continue:
            self.writer.write(self._bytes(h11.InformationalResponse(status_code=100, headers=[])))
            await self.writer.drain()

    async def send(self, response: Response) -> None:
        """Write a response and wait until the kernel has it."""
        asked = self._protocol.their_state is not h11.ERROR
        headers = {
            "Date": formatdate(usegmt=True),
            "Content-Type": response.form,
            "Content-Length": str(len(response.body)),
            **response.headers,
            **({} if asked else {"Connection": "close"}),
        }
        head = h11.Response(
            status_code=response.status, reason=response.status.phrase.encode(), headers=list(headers.items())
        )
        parts: list[h11.Event] = [head, h11.Data(data=response.body), h11.EndOfMessage()]
        if self._bodiless:
            del parts[1]
        self.writer.write(b"".join(self._bytes(part) for part in parts))
        await self.writer.drain()

    def next(self) -> bool:
        """Prepare for another request; return whether one may follow."""
        if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
            return False
        self._protocol.start_next_cycle()
        return True

    def _bytes(self, event: "h11.Event") -> bytes:
        data: bytes | None = self._protocol.send(event)
        return data or b""


def _request(head: h11.Request, body: bytes) -> Request:
    path = head.target.decode("ascii", "replace").partition("?")[0]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    return Request(head.method.decode("ascii"), path, headers, body)
