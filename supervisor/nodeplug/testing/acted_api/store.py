"""The objects of an API server in memory, and who watches them.

Owns: objects of any kind by path, their resource versions, lists and pages, field selectors, watches, and the patches
that clients send.
Refuses: HTTP (`handler`), and what a server refuses of an object's contents.
"""

import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
    "resourceslices": "ResourceSlice",
    "resourceclaims": "ResourceClaim",
    "deviceclasses": "DeviceClass",
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


def merged(found: Any, patch: Any) -> Any:
    """Return what a merge patch (RFC 7386) makes of a value."""
    if not isinstance(patch, dict):
        return patch
    base = found if isinstance(found, dict) else {}
    kept = {key: value for key, value in base.items() if key not in patch}
    return kept | {key: merged(base.get(key), value) for key, value in patch.items() if value is not None}


@dataclass
class Store:
    """Every object, and the changes since the start, for those who watch.

    Attributes:
        history: how many changes are kept at least; 0 means all. Who watches from before the first is told to list.
        forgotten: how many are not kept any more.
    """

    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    changes: list[tuple[str, tuple[str, str, str], Object]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False
    history: int = 0
    forgotten: int = 0

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
        copy = copied(found)
        copy["metadata"]["resourceVersion"] = str(self._version + 1)
        if what == "DELETED":
            del self.objects[where.key]
        else:
            self.objects[where.key] = copy
        self.changes.append((what, where.key, copy))
        if self.history and len(self.changes) > 2 * self.history:
            del self.changes[: self.history]
            self.forgotten += self.history
        self.changed.notify_all()
        return copied(copy)

    @property
    def _version(self) -> int:
        return self.forgotten + len(self.changes)

    def get(self, where: Where) -> Object | None:
        """Return a copy of an object, which may be changed and put back."""
        with self.changed:
            found = self.objects.get(where.key)
            return copied(found) if found else None

    def listed(self, where: Where, selector: str, begin: int = 0, limit: int = 0) -> Object:
        """Return a list object, or a page of one."""
        with self.changed:
            found = [entry for key, entry in self.objects.items() if selects(where, selector, key, entry)]
            items = found[begin : begin + limit] if limit else found
            metadata = {"resourceVersion": str(self._version)}
            if begin + len(items) < len(found):
                metadata["continue"] = str(begin + len(items))
            return {"apiVersion": where.version, "kind": f"{where.kind}List", "metadata": metadata, "items": items}

    def watched(self, where: Where, selector: str, since: int, seconds: float) -> Iterator[Object]:
        """Yield what changes after a resource version, until the time is over."""
        end = time.monotonic() + seconds
        while not self.closed and time.monotonic() < end:
            news = self._changes_after(since, end - time.monotonic())
            if news is None:
                status = {"kind": "Status", "code": 410, "reason": "Expired", "message": f"{since} is too old"}
                yield {"type": "ERROR", "object": status}
                return
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
        if key[0] != where.resource:  # most changes, where there is much of everything
            return False
        with self.changed:
            earlier = self.changes[: max(0, number - self.forgotten)]
        before = next((entry for _, known, entry in reversed(earlier) if known == key), None)
        return before is not None and selects(where, selector, key, before)

    def _changes_after(self, since: int, seconds: float) -> list[tuple[str, tuple[str, str, str], Object]] | None:
        """Wait for changes after a resource version; None if some of them are forgotten."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or self._version > since, seconds)
            return None if since < self.forgotten else self.changes[since - self.forgotten :]

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


def copied(found: Object) -> Object:
    """Return a copy of an object, as if it had been sent and received."""
    copy: Object = json.loads(json.dumps(found))
    return copy


def now() -> str:
    """Return the time as the API writes it (RFC 3339)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


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
