"""What kubelet asks of an API server, in memory and over HTTP on a private node's loopback.

Owns: objects of any kind by path, list, watch, create, update, patch and delete as kubelet's client calls them, and the
end of a pod's life: it is marked first, and gone when kubelet deletes it.
Refuses: what other components do: admission, scheduling, controllers, users, TLS. Nothing but kubelet and the test
reaches it.
"""

import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from tests.real.consumers.private_node import PrivateNode

Object = dict[str, Any]
_KINDS: Final = {
    "nodes": "Node",
    "pods": "Pod",
    "services": "Service",
    "secrets": "Secret",
    "configmaps": "ConfigMap",
    "events": "Event",
    "leases": "Lease",
    "csinodes": "CSINode",
    "csidrivers": "CSIDriver",
    "persistentvolumes": "PersistentVolume",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "runtimeclasses": "RuntimeClass",
}
_MERGE_KEYS: Final = {"conditions": "type", "addresses": "type", "podIPs": "ip"}
"""Lists whose elements a strategic merge patch names by a key (patchMergeKey in k8s.io/api); others are replaced."""


@dataclass(frozen=True)
class Where:
    """A path of the API: `/api/v1/namespaces/{namespace}/{resource}/{name}/{part}` or a shorter one."""

    version: str
    resource: str
    namespace: str = ""
    name: str = ""
    part: str = ""

    @classmethod
    def parse(cls, path: str) -> "Where":
        """Read a request's path, without its query."""
        words = path.strip("/").split("/")
        version, rest = ("v1", words[2:]) if words[0] == "api" else ("/".join(words[1:3]), words[3:])
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        resource, name, part, *_ = [*rest, "", "", ""]
        return cls(version, resource, namespace, name, part)

    @property
    def kind(self) -> str:
        """The kind of the objects there."""
        return _KINDS.get(self.resource, "Unknown")

    @property
    def key(self) -> tuple[str, str, str]:
        """What an object is stored under, whichever part of it is asked for."""
        return self.resource, self.namespace, self.name


def merge(target: Object, patch: Mapping[str, Any]) -> None:
    """Apply a strategic merge patch in place, as far as kubelet sends them for nodes and pods."""
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        elif isinstance(value, list) and key in _MERGE_KEYS:
            target[key] = _merged(target.get(key) or [], value, _MERGE_KEYS[key])
        else:
            target[key] = value


def _merged(old: list[Object], changes: list[Object], name: str) -> list[Object]:
    found = {element[name]: element for element in old}
    for change in changes:
        if change.get("$patch") == "delete":
            found.pop(change[name], None)
        else:
            merge(found.setdefault(change[name], {}), change)
    return list(found.values())


@dataclass
class Store:
    """Every object, and every change since the start, for those who watch."""

    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    changes: list[tuple[str, tuple[str, str, str], Object]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False

    def put(self, where: Where, found: Object) -> Object:
        """Store a new state of an object, and tell the watchers."""
        with self.changed:
            what = "MODIFIED" if where.key in self.objects else "ADDED"
            found |= {"apiVersion": where.version, "kind": where.kind}
            metadata = found.setdefault("metadata", {})
            metadata.setdefault("name", where.name)
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", now())
            if where.namespace:
                metadata["namespace"] = where.namespace
            return self._tell(what, where, found)

    def remove(self, where: Where) -> Object | None:
        """Remove an object, and tell the watchers; None when there is none."""
        with self.changed:
            found = self.objects.get(where.key)
            return found and self._tell("DELETED", where, found)

    def _tell(self, what: str, where: Where, found: Object) -> Object:
        copy: Object = json.loads(json.dumps(found))
        copy["metadata"]["resourceVersion"] = str(len(self.changes) + 1)
        if what == "DELETED":
            del self.objects[where.key]
        else:
            self.objects[where.key] = copy
        self.changes.append((what, where.key, copy))
        self.changed.notify_all()
        return copy

    def get(self, where: Where) -> Object | None:
        """Return a copy of an object, which may be changed and put back."""
        with self.changed:
            found = self.objects.get(where.key)
            return json.loads(json.dumps(found)) if found else None

    def listed(self, where: Where, selector: str, begin: int = 0, limit: int = 0) -> Object:
        """Return a list object, or a page of one."""
        with self.changed:
            found = [entry for key, entry in self.objects.items() if selects(where, selector, key, entry)]
            items = found[begin : begin + limit] if limit else found
            metadata = {"resourceVersion": str(len(self.changes))}
            if begin + len(items) < len(found):
                metadata["continue"] = str(begin + len(items))
            return {"apiVersion": where.version, "kind": f"{where.kind}List", "metadata": metadata, "items": items}

    def watched(self, where: Where, selector: str, since: int, seconds: float) -> Iterator[Object]:
        """Yield what changes after a resource version, until the time is over."""
        end = time.monotonic() + seconds
        while not self.closed and time.monotonic() < end:
            news = self._changes_after(since, end - time.monotonic())
            for number, (what, key, entry) in enumerate(news, since):
                if selects(where, selector, key, entry):
                    yield {"type": what, "object": entry}
                elif what == "MODIFIED" and self._selected_before(number, where, selector, key):
                    yield {"type": "DELETED", "object": entry}
            since += len(news)

    def listed_and_watched(self, where: Where, selector: str, seconds: float) -> Iterator[Object]:
        """Yield what is there, a bookmark that says so (KEP 3157), and what changes then."""
        found = self.listed(where, selector)
        for entry in found["items"]:
            yield {"type": "ADDED", "object": entry}
        metadata = {**found["metadata"], "annotations": {"k8s.io/initial-events-end": "true"}}
        yield {"type": "BOOKMARK", "object": {"apiVersion": where.version, "kind": where.kind, "metadata": metadata}}
        yield from self.watched(where, selector, int(found["metadata"]["resourceVersion"]), seconds)

    def _selected_before(self, number: int, where: Where, selector: str, key: tuple[str, str, str]) -> bool:
        """Whether the state of an object before a change was in a collection."""
        before = next((entry for _, known, entry in reversed(self.changes[:number]) if known == key), None)
        return before is not None and selects(where, selector, key, before)

    def _changes_after(self, since: int, seconds: float) -> list[tuple[str, tuple[str, str, str], Object]]:
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.changes) > since, seconds)
            return self.changes[since:]

    def close(self) -> None:
        """End every watch."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def selects(where: Where, selector: str, key: tuple[str, str, str], entry: Mapping[str, Any]) -> bool:
    """Whether an object is in a collection and has the fields that a field selector names."""
    if key[0] != where.resource or where.namespace not in {"", key[1]}:
        return False
    for term in filter(None, selector.split(",")):
        path, _, wanted = term.partition("=")
        value: Any = entry
        for word in path.removesuffix("!").split("."):
            value = value.get(word, "") if isinstance(value, Mapping) else ""
        if (value == wanted) == path.endswith("!"):
            return False
    return True


def now() -> str:
    """Return the time as the API writes it (RFC 3339)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def do_GET(self) -> None:
        where, query = self._asked()
        selector = query.get("fieldSelector", "")
        if query.get("watch") in {"1", "true"}:
            seconds = float(query.get("timeoutSeconds", 300))
            if query.get("sendInitialEvents") == "true":  # of clients since 1.35, instead of a list
                self._stream(self.store.listed_and_watched(where, selector, seconds))
                return
            self._stream(self.store.watched(where, selector, int(query.get("resourceVersion") or 0), seconds))
        elif where.name:
            self._answer_with(self.store.get(where))
        else:
            self._answer(HTTPStatus.OK, self.store.listed(where, selector))

    def do_POST(self) -> None:
        where, body = self._asked()[0], self._body()
        new = Where(where.version, where.resource, where.namespace, body["metadata"].get("name", str(uuid.uuid4())))
        if self.store.get(new) is not None:
            self._refuse(HTTPStatus.CONFLICT, "AlreadyExists")
        else:
            self._answer(HTTPStatus.CREATED, self.store.put(new, body))

    def do_PUT(self) -> None:
        where, body = self._asked()[0], self._body()
        with self.store.changed:
            found = self.store.get(where)
            known = body["metadata"].get("resourceVersion")
            if found is not None and known not in {None, found["metadata"]["resourceVersion"]}:
                self._refuse(HTTPStatus.CONFLICT, "Conflict")  # two writers that read the same would lose one change
            else:
                self._answer(HTTPStatus.OK, self.store.put(where, body))

    def do_PATCH(self) -> None:
        where, patch = self._asked()[0], self._body()
        found = self.store.get(where)
        if found is not None:
            merge(found, patch)
            found = self.store.put(where, found)
        self._answer_with(found)

    def do_DELETE(self) -> None:
        self._body()
        self._answer_with(self.store.remove(self._asked()[0]))

    def _asked(self) -> tuple[Where, dict[str, str]]:
        address = urlsplit(self.path)
        return Where.parse(address.path), {key: values[-1] for key, values in parse_qs(address.query).items()}

    def _body(self) -> Object:
        return dict(json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}"))

    def _answer_with(self, found: Object | None) -> None:
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "NotFound")
        else:
            self._answer(HTTPStatus.OK, found)

    def _refuse(self, code: HTTPStatus, reason: str) -> None:
        status = {"status": "Failure", "reason": reason, "message": f"{reason}: {self.path}", "code": code.value}
        self._answer(code, {"apiVersion": "v1", "kind": "Status", "metadata": {}, **status})

    def _answer(self, code: HTTPStatus, found: Mapping[str, Any]) -> None:
        data = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[Object]) -> None:
        self.close_connection = True  # no length: the stream ends with the connection
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.flush()
        for event in events:
            self.wfile.write(json.dumps(event).encode() + b"\n")
            self.wfile.flush()

    def handle(self) -> None:
        with suppress(ConnectionError):  # kubelet went away
            super().handle()

    def log_message(self, *_: object) -> None:
        """Say nothing: kubelet's log tells what failed."""


class ApiServer:
    """The server of one private node.

    Args:
        node: in whose network namespace it listens.
    """

    def __init__(self, node: PrivateNode) -> None:
        self.node, self.store = node, Store()
        handler = type("Handler", (_Handler,), {"store": self.store})
        with node.netns.entered():  # the socket stays in the namespace that it was opened in
            self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def kubeconfig(self) -> str:
        """What a kubelet needs to find it."""
        return kubeconfig_of(f"http://127.0.0.1:{self._server.server_address[1]}")

    def put(self, resource: str, found: Object) -> Object:
        """Store an object of the core API; its metadata has a name, and a namespace unless it is a node."""
        metadata = found["metadata"]
        return self.store.put(Where("v1", resource, metadata.get("namespace", ""), metadata["name"]), dict(found))

    def get(self, resource: str, name: str, namespace: str = "default") -> Object | None:
        """Return an object of the core API, or None."""
        return self.store.get(Where("v1", resource, namespace, name))

    def scheduled(self) -> list[str]:
        """Return the names of all pods that are not gone yet."""
        return [entry["metadata"]["name"] for entry in self.store.listed(Where("v1", "pods"), "")["items"]]

    def schedule(self, manifest: Mapping[str, Any]) -> None:
        """Put a pod that was written for `pod()` on this node, with the defaults that an API server fills in."""
        found = json.loads(json.dumps(manifest))
        spec = found["spec"]
        defaults = {"restartPolicy": "Always", "dnsPolicy": "Default", "enableServiceLinks": False}
        found["spec"] = {**defaults, "securityContext": {}, **spec, "nodeName": self.node.name}
        for container in spec["containers"]:
            container |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
            container["resources"]["requests"] = dict(container["resources"]["limits"])
        self.put("pods", {**found, "status": {"phase": "Pending"}})

    def delete(self, name: str, namespace: str = "default") -> None:
        """Ask for the end of a pod; kubelet removes the object when the pod has ended."""
        found = self.get("pods", name, namespace)
        if found is not None:
            grace = found["spec"]["terminationGracePeriodSeconds"]
            found["metadata"] |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace}
            self.put("pods", found)

    def close(self) -> None:
        """End it and every connection that watches."""
        self.store.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kubeconfig_of(url: str) -> str:
    """Return what a client without credentials needs to find an API server; JSON is YAML too."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": {"server": url}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": ""}}],
            "current-context": "here",
        }
    )
