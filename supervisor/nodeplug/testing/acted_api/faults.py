"""A server of objects that fails as it is told, and writes down what it was asked.

Owns: one fault at a time, what it affects, watches that are cut off, and the list of requests.
Refuses: to answer what does not fail: that is for the server's own handler.
"""

import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, Self

from nodeplug.testing.acted_api.handler import ApiHandler, Listening
from nodeplug.testing.acted_api.store import Object, Store, Where

Fault = Literal[
    "", "away", "silent", "slow", "busy", "broken", "conflict", "gone", "half", "mute watch", "lost answer", "absent"
]
"""No answer, none for long, a late one, an HTTP status, half an answer, a silent watch, an answer lost on its way."""
_CODES: Final = {"busy": 429, "broken": 500, "conflict": 409, "gone": 410, "absent": 404}
_REASONS: Final = {"busy": "TooManyRequests", "gone": "Expired", "absent": "NotFound", "conflict": "Conflict"}


class ActedServer:
    """A server on loopback whose objects are in memory.

    Args:
        handler: how requests are answered that do not fail.

    Attributes:
        store: its objects.
        fault: what happens to requests at present.
        affects: to which, by method and path; by default all.
        delay: seconds by which an answer is late with the fault `slow`.
        asked: every request, as `GET pods default/web`.
    """

    def __init__(self, handler: "type[FaultyHandler]") -> None:
        self.store = Store()
        self.fault: Fault = ""
        self.affects: Callable[[str, Where], bool] = lambda *_: True
        self.delay = 0.5
        self.asked: list[str] = []
        self.ended = threading.Event()
        self.watching: set[socket.socket] = set()
        self._listening = Listening(type("Handler", (handler,), {"api": self}))

    @property
    def kubeconfig(self) -> str:
        """What a client needs to find the server; it is YAML, and goes into a file."""
        return self._listening.kubeconfig

    @contextmanager
    def failing(self, fault: Fault, affects: Callable[[str, Where], bool] = lambda *_: True) -> Iterator[None]:
        """Fail for the length of a block; whoever watches is cut off before and after it."""
        self.affects, self.fault = affects, fault
        self.cut()
        try:
            yield
        finally:
            self.fault = ""
            self.cut()

    def cut(self) -> None:
        """Break every watch that is open."""
        for connection in list(self.watching):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and every watch."""
        self.ended.set()
        self.store.close()
        self._listening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FaultyHandler(ApiHandler):
    """One connection to an `ActedServer`."""

    api: Any
    """The server: an `ActedServer` of the class that the handler is made for."""

    def serve(self, where: Where, query: dict[str, str], body: Any, *, watches: bool) -> None:
        """Answer a request that does not fail."""
        raise NotImplementedError

    def _request(self) -> None:
        (where, query), body = self.asked(), self.body()
        watches = query.get("watch") in {"1", "true"}
        rehearsed = " (dry run)" if query.get("dryRun") else ""
        verb = "WATCH" if watches else self.command
        self.api.asked.append(f"{verb} {where.resource} {where.namespace}/{where.name}{rehearsed}")
        if self.api.fault and self.api.affects(self.command, where):
            self._fail(self.api.fault, where, query, body, watches=watches)
        else:
            self.serve(where, query, body, watches=watches)

    do_GET = do_PATCH = do_POST = do_PUT = do_DELETE = _request  # noqa: N815 - so http.server finds them

    def _fail(self, fault: Fault, where: Where, query: dict[str, str], body: Any, *, watches: bool) -> None:
        if fault == "lost answer":
            self.wfile = io.BytesIO()
            self.serve(where, query, body, watches=watches)
        if fault in {"away", "lost answer"}:
            self.close_connection = True
        elif fault == "silent":
            self.api.ended.wait(60)
            self.close_connection = True
        elif fault == "slow":
            self.api.ended.wait(self.api.delay)
            self.serve(where, query, body, watches=watches)
        elif fault == "half":
            self.head(200, 1000)
            self.wfile.write(b'{"kind": "Pod", "metadata": {"na')
            self.close_connection = True
        elif fault == "mute watch" and watches:
            self.head(200, None)
            self.api.ended.wait(60)
        elif fault == "mute watch" or (fault == "gone" and not watches):
            self.serve(where, query, {}, watches=watches)
        else:
            reason = _REASONS.get(fault, "InternalError")
            self.refuse(_CODES[fault], reason, f"acted out: {reason}")

    def watch(self, where: Where, query: dict[str, str]) -> None:
        """Send the changes of a collection, until somebody cuts the connection or its time is over."""
        since, seconds = int(query.get("resourceVersion") or 0), float(query.get("timeoutSeconds") or 300)
        self.head(200, None)
        self.api.watching.add(self.connection)
        try:
            # It began between a look at the fault and the cut.
            if self.api.fault not in {"", "slow"} and self.api.affects(self.command, where):
                return
            for event in self.api.store.watched(where, query.get("fieldSelector", ""), since, seconds):
                self.wfile.write(json.dumps(event).encode() + b"\n")
        finally:
            self.api.watching.discard(self.connection)

    def refuse_missing(self, found: Object | None) -> bool:
        """Refuse if there is no object, and return whether that is so."""
        if found is None:
            self.refuse(404, "NotFound", "acted out: NotFound")
        return found is None
