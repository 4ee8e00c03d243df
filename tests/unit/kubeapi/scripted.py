"""An API server that answers as it is told, byte by byte, and keeps what it was asked.

Owns: one listening socket on loopback, and a list of answers, which go to requests in their order.
Refuses: to know the API: what it says is the test's.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from nodeplug.kubeapi.access import Access, Material
from nodeplug.kubeapi.client import Bounds, Client
from nodeplug.kubeapi.credentials import Credentials

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def respond(code: int, body: object, **headers: str) -> bytes:
    """Write a response; names of headers have `_` for `-`."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {code} Whatever", f"Content-Length: {len(data)}", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def refuse(code: int, reason: str, message: str = "no", **headers: str) -> bytes:
    """Write a refusal as an API server does."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return respond(code, {**status, "code": code}, **headers)


def chunk(event: object) -> bytes:
    """Write one line of a watch."""
    line = (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n"
    return f"{len(line):x}\r\n".encode() + line + b"\r\n"


def stream(*events: object, end: bool = True) -> bytes:
    """Write a watch with these changes; without its `end` more may follow."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(map(chunk, events)) + (b"0\r\n\r\n" if end else b"")


def event(kind: str, name: str, version: int, **more: Any) -> dict[str, Any]:
    """Return a change of an object."""
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": str(version)}, **more}}


def listed(*names: str, version: int = 1, further: str = "") -> bytes:
    """Write a list of objects."""
    items = [{"metadata": {"name": name}} for name in names]
    return respond(200, {"metadata": {"resourceVersion": str(version), "continue": further}, "items": items})


def changed(written: dict[str, Any]) -> str:
    """Return what happened to which object."""
    return f"{written['type']} {written['object']['metadata']['name']}"


@dataclass
class Asked:
    """One request that came."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Scripted:
    """The server; after its last answer it closes each connection that asks."""

    answers: list[Answer]
    tls: ssl.SSLContext | None = None
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    at_once: int = 0
    most: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def client(self, **bounds: Any) -> Client:
        """Make a client of it; it does not pause long."""
        access = Access(f"http://127.0.0.1:{self.port}", source="a test")
        return self.client_of(access, **bounds)

    def client_of(self, access: Access, **bounds: Any) -> Client:
        return Client(Credentials(access), Bounds(**{"pause": 0.01, "longest_pause": 0.02, **bounds}))

    def over_tls(self, authority: bytes, **more: Any) -> Access:
        """Say how it is reached over TLS."""
        server = f"https://127.0.0.1:{self.port}"
        return Access(server, authority=Material(authority), source="a test", **more)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            while True:
                self.asked.append(await _request(reader, number))
                if not self.answers:
                    break
                answer = self.answers.pop(0)
                self.at_once += 1
                self.most = max(self.most, self.at_once)
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                else:
                    await answer(writer)
                self.at_once -= 1
                if writer.is_closing():
                    break
        writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, ssl=self.tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _request(reader: asyncio.StreamReader, connection: int) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(head[0], headers, body, connection)
