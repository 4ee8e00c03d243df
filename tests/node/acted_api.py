"""An API server acted out: its objects are in memory, and it fails as it is told.

Owns: list, watch, get, merge patches and Bindings over HTTP on loopback, and one fault at a time.
Refuses: what a real server checks: schemas, rights and names are for tests/real.
"""

import io
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, Self

from nodeplug.testing.acted_api.handler import ApiHandler, Listening
from nodeplug.testing.acted_api.store import Object, Store, Where, merged

Fault = Literal[
    "", "away", "silent", "busy", "broken", "conflict", "gone", "half", "mute watch", "lost answer", "absent"
]
NETWORK: Final = "nodeplug.io/v1alpha1"
DEFINITION: Final = "k8s.cni.cncf.io/v1"
_CODES: Final = {"busy": 429, "broken": 500, "conflict": 409, "gone": 410, "absent": 404}


class ActedApi:
    """The server.

    Attributes:
        fault: what happens to requests at present.
        affects: to which, by method and path; by default all.
        asked: every request, as `GET pods default/web`.
        bound: every pod that was bound, as `web to node-1`.
    """

    def __init__(self) -> None:
        self.store = Store()
        self.fault: Fault = ""
        self.affects: Callable[[str, Where], bool] = lambda *_: True
        self.asked: list[str] = []
        self.bound: list[str] = []
        self.ended = threading.Event()
        self.watching: set[socket.socket] = set()
        handler = type("Handler", (_Handler,), {"api": self})
        self._listening = Listening(handler)

    @property
    def kubeconfig(self) -> str:
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

    def put(self, version: str, resource: str, name: str, namespace: str = "", **found: Any) -> Object:
        where = Where(version, resource, namespace, name)
        before = self.store.get(where) or {"metadata": {"name": name, "generation": 0}}
        metadata = {**before["metadata"], **found.pop("metadata", {})}
        metadata["generation"] = before["metadata"].get("generation", 0) + 1
        return self.store.put(where, {**before, **found, "metadata": metadata})

    def pod(self, name: str, annotations: Mapping[str, str], node: str = "node-1", **metadata: Any) -> Object:
        about = {"annotations": dict(annotations), **metadata}
        return self.put("v1", "pods", name, "default", metadata=about, spec={"nodeName": node})

    def definition(self, name: str, config: Any, namespace: str = "default", **metadata: Any) -> None:
        text = config if isinstance(config, str) else json.dumps(config)
        spec = {"config": text}
        self.put(DEFINITION, "network-attachment-definitions", name, namespace, spec=spec, metadata=metadata)

    def network(self, name: str, **spec: Any) -> None:
        self.put(NETWORK, "networks", name, spec=spec)

    def node(self, **labels: str) -> None:
        self.put("v1", "nodes", "node-1", metadata={"labels": labels})

    def get(self, resource: str, name: str, namespace: str = "") -> Object:
        return self.store.get(Where("", resource, namespace, name)) or {}

    def remove(self, resource: str, name: str, namespace: str = "") -> None:
        self.store.remove(Where("", resource, namespace, name))

    def status_of(self, pod: str) -> list[dict[str, Any]] | None:
        """Return the network status of a pod, or None without one."""
        annotations = (self.get("pods", pod, "default").get("metadata") or {}).get("annotations") or {}
        text = annotations.get("k8s.v1.cni.cncf.io/network-status")
        return None if text is None else json.loads(text)

    def of_network(self, name: str) -> Mapping[str, Any]:
        """Return what the node says of a network."""
        nodes = (self.get("networks", name).get("status") or {}).get("nodes") or {}
        return nodes.get("node-1") or {}

    def close(self) -> None:
        self.ended.set()
        self.store.close()
        self._listening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(ApiHandler):
    api: ActedApi

    def _serve(self) -> None:
        (where, query), body = self.asked(), self.body()
        watches = query.get("watch") == "1"
        self.api.asked.append(f"{'WATCH' if watches else self.command} {where.resource} {where.namespace}/{where.name}")
        if self.api.fault and self.api.affects(self.command, where):
            self._fail(self.api.fault, where, query, body, watches=watches)
        else:
            self._answer(where, query, body, watches=watches)

    do_GET = do_PATCH = do_POST = _serve  # noqa: N815 - so http.server finds them

    def _fail(self, fault: Fault, where: Where, query: dict[str, str], body: Object, *, watches: bool) -> None:
        if fault == "lost answer":
            self.wfile = io.BytesIO()
            self._answer(where, query, body, watches=watches)
        if fault in {"away", "lost answer"}:
            self.close_connection = True
        elif fault == "silent":
            self.api.ended.wait(60)
            self.close_connection = True
        elif fault == "half":
            self.head(200, 1000)
            self.wfile.write(b'{"kind": "Pod", "metadata": {"na')
            self.close_connection = True
        elif fault == "mute watch" and watches:
            self.head(200, None)
            self.api.ended.wait(60)
        elif fault == "mute watch" or (fault == "gone" and not watches):
            self._answer(where, query, {}, watches=watches)
        else:
            self._refuse(
                _CODES[fault],
                {"busy": "TooManyRequests", "gone": "Expired", "absent": "NotFound"}.get(fault, "InternalError"),
            )

    def _answer(self, where: Where, query: dict[str, str], body: Object, *, watches: bool) -> None:
        store, selector = self.api.store, query.get("fieldSelector", "")
        if self.command == "PATCH":
            self._patch(where, body)
        elif self.command == "POST":
            self._bind(where, body)
        elif watches:
            self.head(200, None)
            self._stream(where, store.watched(where, selector, int(query.get("resourceVersion") or 0), 300))
        elif where.name:
            found = store.get(where)
            self.answer(200, found) if found is not None else self._refuse(404, "NotFound")
        else:
            page = (int(query.get(key) or 0) for key in ("continue", "limit"))
            self.answer(200, store.listed(where, selector, *page))

    def _stream(self, where: Where, events: Iterator[Object]) -> None:
        self.api.watching.add(self.connection)
        try:
            if self.api.fault and self.api.affects(self.command, where):  # it began between a look at this and the cut
                return
            for event in events:
                self.wfile.write(json.dumps(event).encode() + b"\n")
        finally:
            self.api.watching.discard(self.connection)

    def _patch(self, where: Where, patch: Object) -> None:
        found = self.api.store.get(where)
        if found is None:
            self._refuse(404, "NotFound")
        elif patch.get("metadata", {}).get("uid") not in {None, found["metadata"]["uid"]}:
            self._refuse(409, "Conflict")
        else:
            self.answer(200, self.api.store.put(where, merged(found, patch)))

    def _bind(self, where: Where, binding: Object) -> None:
        """Bind a pod (kubernetes, pkg/registry/core/pod/storage)."""
        assert where.part == "binding"
        found = self.api.store.get(where)
        if found is None:
            self._refuse(404, "NotFound")
        elif binding["metadata"]["uid"] != found["metadata"]["uid"] or found["spec"].get("nodeName"):
            self._refuse(409, "Conflict")
        else:
            self.api.bound.append(f"{where.name} to {binding['target']['name']}")
            self.api.store.put(where, {**found, "spec": {**found["spec"], "nodeName": binding["target"]["name"]}})
            self.answer(201, {"kind": "Status", "status": "Success", "code": 201})

    def _refuse(self, code: int, reason: str) -> None:
        self.refuse(code, reason, f"acted out: {reason}")
