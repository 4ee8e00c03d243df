"""One connection to the API server: HTTP/1.1 by h11, on asyncio's streams.

Owns: connecting, one request after another, bounds on head and body, and noticing a peer that is gone without a word.
Refuses: what is asked and answered (`client`), trying again, and redirects: an API server sends none.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import h11

from nodeplug.kubeapi.access import Access
from nodeplug.kubeapi.refusals import Unreachable
from nodeplug.process.lane import Lane

_CHUNK: Final = 1 << 16
_HEAD: Final = 64 << 10
_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""A watch waits in silence: without it, a peer that lost its power would be noticed by nobody (tcp(7), seconds)."""


class TooLarge(Unreachable):
    """The server sends more than a client of ours takes."""


@dataclass(frozen=True, slots=True)
class Head:
    """The begin of a response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]


class Connection:
    """A connection that is open; one request at a time.

    Attributes:
        tls: with what it was made.
        used: how many requests were sent.
        since: when the last one ended, on the monotonic clock.
    """

    def __init__(
        self, access: Access, tls: ssl.SSLContext | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.tls = tls
        self.used = 0
        self.since = 0.0
        self._where = f"{access.host}:{access.port}"
        self._host = f"[{access.host}]" if ":" in access.host else access.host
        self._host += f":{access.port}"
        self._reader, self._writer = reader, writer
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD)

    @classmethod
    async def open(
        cls, access: Access, tls: ssl.SSLContext | None, names: Lane, late: float | None = None
    ) -> "Connection":
        """Connect to the first address that answers.

        An address that drops packets does not answer at all, so each gets its share of the time; the last has no limit
        here but the caller's.

        Args:
            access: to whom.
            tls: the context; None without TLS.
            names: where a name is resolved.
            late: until when there is time, on the clock of the event loop; None shares no time.

        Raises:
            Unreachable: nobody answers, or the certificate is not to be trusted.
        """
        where = f"{access.host}:{access.port}"
        failure: Exception = OSError("it has no address")
        name = (access.server_name or access.host) if tls is not None else None
        addresses = await _addresses(access, names)
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                async with asyncio.timeout_at(_share(late, left)):
                    streams = await asyncio.open_connection(
                        address, access.port, ssl=tls, server_hostname=name, limit=_CHUNK
                    )
            except ssl.SSLCertVerificationError as error:
                raise Unreachable(
                    f"the certificate of the API server {where} is not to be trusted: {error.verify_message}; look at "
                    f"certificate-authority and tls-server-name in {access.source}"
                ) from None
            except (OSError, ssl.SSLError) as error:
                failure = error
                continue
            _keep_alive(streams[1])
            return cls(access, tls, *streams)
        raise Unreachable(f"cannot reach the API server {where}: {_why(failure)}") from None

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent, as far as one can see from here."""
        ready = self._protocol.our_state is h11.IDLE and self._protocol.their_state is h11.IDLE
        return ready and not self._reader.at_eof() and not self._writer.is_closing()

    async def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Head:
        """Send a request, and return the begin of the response.

        Raises:
            Unreachable: the connection broke off.
        """
        self.used += 1
        sent = {"Host": self._host, **headers}
        if body or method not in {"GET", "DELETE"}:
            sent["Content-Length"] = str(len(body))
        parts = [h11.Request(method=method, target=target, headers=list(sent.items())), h11.Data(data=body)]
        parts = [*parts, h11.EndOfMessage()] if body else [parts[0], h11.EndOfMessage()]
        with self._failures():
            self._writer.write(b"".join(self._protocol.send(part) or b"" for part in parts))
            await self._writer.drain()
            while True:
                event = await self._event()
                if isinstance(event, h11.Response):
                    names = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
                    return Head(event.status_code, dict(names))
                if not isinstance(event, h11.InformationalResponse):
                    raise Unreachable(f"the API server {self._where} closed the connection without an answer")

    async def body(self, limit: int) -> bytes:
        """Return the whole body.

        Raises:
            TooLarge: it has more than `limit` bytes.
            Unreachable: the connection broke off.
        """
        whole = bytearray()
        async for piece in self.pieces():
            whole += piece
            if len(whole) > limit:
                raise TooLarge(f"the API server {self._where} answered with more than {limit >> 20} MiB")
        return bytes(whole)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes, and be ready for the next request at its end.

        Raises:
            Unreachable: the connection broke off.
        """
        with self._failures():
            while isinstance(event := await self._event(), h11.Data):
                yield bytes(event.data)
            if not isinstance(event, h11.EndOfMessage):
                raise Unreachable(f"the API server {self._where} closed the connection within an answer")
            if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
                self._protocol.start_next_cycle()

    async def _event(self) -> object:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            self._protocol.receive_data(await self._reader.read(_CHUNK))
        return event

    def _failures(self) -> "_Failures":
        return _Failures(self._where)

    async def close(self) -> None:
        """End it, without waiting for the peer."""
        self._writer.transport.abort()
        with suppress(OSError, ssl.SSLError):
            await self._writer.wait_closed()


@dataclass(frozen=True, slots=True)
class _Failures:
    """Turns what breaks in a connection into one error."""

    where: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError | h11.ProtocolError) and not isinstance(error, TimeoutError):
            raise Unreachable(f"the connection to the API server {self.where} broke: {_why(error)}") from None


async def _addresses(access: Access, names: Lane) -> list[str]:
    try:
        return [str(ipaddress.ip_address(access.host))]
    except ValueError:
        pass
    try:
        found = await names.run(lambda: socket.getaddrinfo(access.host, access.port, type=socket.SOCK_STREAM))
    except OSError as error:
        raise Unreachable(f"cannot find the API server {access.host}: {_why(error)}; look at {access.source}") from None
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def _share(late: float | None, left: int) -> float | None:
    """Return until when one of the addresses that are left may take; None if nobody waits behind it."""
    now = asyncio.get_running_loop().time()
    return None if late is None or left == 1 else now + (late - now) / left


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, seconds)


def _why(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
