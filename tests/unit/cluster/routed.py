"""An API server of one Node that does what a test says to each request.

Owns: the Node's uid, what was applied last, and which requests came.
Refuses: who owns which field: the real server is asked about that (tests/real/test_node_object.py).
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.unit.kubeapi.scripted import Answer, Asked, Scripted, refuse, respond

Fault = Callable[[Asked], Answer | None]
GONE = refuse(404, "NotFound")


class Routed(list[Answer]):
    """The answers of a `Scripted` server, made when they are asked for.

    Attributes:
        server: whose answers these are.
        uid: of the Node; empty while there is none.
        labels: of the Node, as applied last.
        conditions: the same.
        events: that were created, and patches of them.
        fault: answers instead, unless it returns None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.server = Scripted(self)
        self.uid = "u-1"
        self.labels: dict[str, str] = {}
        self.conditions: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.fault: Fault = lambda _: None

    def __bool__(self) -> bool:
        return True

    def pop(self, _: Any = 0) -> Answer:
        """Answer the request that came last."""
        asked = self.server.asked[-1]
        return self.fault(asked) or self._answer(asked)

    def _answer(self, asked: Asked) -> Answer:
        method, path, _ = asked.line.split()
        if "/events" in path:
            self.events.append(asked.json)
            return respond(201, asked.json)
        if not self.uid:
            return GONE
        if method == "PATCH" and asked.json["metadata"]["uid"] != self.uid:
            return refuse(409, "Conflict", "uid mismatch")
        if method == "PATCH" and "/status" in path:
            self.conditions = asked.json.get("status", {}).get("conditions", [])
        elif method == "PATCH":
            self.labels = asked.json["metadata"].get("labels", {})
        metadata = {"name": "here", "uid": self.uid, "labels": self.labels}
        return respond(200, {"metadata": metadata, "status": {"conditions": self.conditions}})

    @property
    def lines(self) -> list[str]:
        """Every request, without its query."""
        return [" ".join(one.line.split()[:2]).partition("?")[0] for one in self.server.asked]

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig of the server."""
        path = folder / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server.port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": ""}}
        path.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "c"}))
        return path


@contextmanager
def failing(routed: Routed, answer: Answer | None) -> Iterator[None]:
    """Give this answer to every request meanwhile."""
    before, routed.fault = routed.fault, lambda _: answer
    yield
    routed.fault = before
