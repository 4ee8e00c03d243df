"""An API server with the objects of Dynamic Resource Allocation, for one node: slices, claims, classes.

    with ResourceApi("node-1") as api:
        (folder / "kubeconfig").write_text(api.kubeconfig)

Owns: create, get, list, watch, update, merge patch and delete of them, the refusal of slices that no server takes, and
what a server makes of an object: canonical amounts, generations, fields that go with a missing feature gate.
Refuses: rights, classes' expressions, and who allocates (`Scheduler`).
"""

import random
import string
from collections.abc import Collection, Mapping
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest
from nodeplug.testing.acted_api.faults import ActedServer, FaultyHandler
from nodeplug.testing.acted_api.store import Object, Where, copied, merged, now
from nodeplug.testing.dra.gates import without_gates
from nodeplug.testing.dra.quantities import canonical_counters, canonical_device
from nodeplug.testing.dra.validation import mistakes_of

VERSION: Final = "resource.k8s.io/v1"
_KINDS: Final = {"resourceslices": "ResourceSlice", "resourceclaims": "ResourceClaim", "deviceclasses": "DeviceClass"}
_HISTORY: Final = 2000
"""Changes that who watches may have missed; a server that runs for long would fill the memory otherwise."""
_SUFFIX: Final = 5
"""Characters that the server appends to a `generateName`."""


class Refused(Exception):
    """The server does not do it.

    Attributes:
        code: of HTTP.
        reason: the word of the Status, such as `Invalid`.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class ResourceApi(ActedServer):
    """The server.

    Args:
        node: the name of the only node.
        lacks: feature gates that it does not have, such as `{"DRAConsumableCapacity", "DRADeviceTaints"}`: their fields
            vanish without a word.

    Attributes:
        lacks: may be changed while it runs, as by an upgrade.
    """

    def __init__(self, node: str = "node-1", *, lacks: Collection[str] = ()) -> None:
        self.node, self.lacks = node, frozenset(lacks)
        super().__init__(_Handler)
        self.store.history = _HISTORY
        self.store.put(Where("v1", "nodes", "", node), {"metadata": {"name": node, "labels": {}}})

    # --- objects, without HTTP --------------------------------------------------------------------------------------

    def get(self, resource: str, name: str, namespace: str = "") -> Object | None:
        """Return an object as it is stored, or None."""
        return self.store.get(Where(VERSION, resource, namespace, name))

    def listed(self, resource: str, selector: str = "", namespace: str = "") -> list[Object]:
        """Return the objects that a field selector selects, by name."""
        found = self.store.listed(Where(VERSION, resource, namespace), selector)["items"]
        return sorted(map(copied, found), key=lambda one: str(one["metadata"]["name"]))

    def slices(self, driver: str = "") -> list[Object]:
        """Return the slices of a driver, or all, by name."""
        return self.listed("resourceslices", f"spec.driver={driver}" if driver else "")

    def wipe(self, driver: str = "") -> int:
        """Delete the slices of the node, or those of one driver, as kubelet does; return how many there were."""
        selector = f"spec.nodeName={self.node}" + (f",spec.driver={driver}" if driver else "")
        found = self.listed("resourceslices", selector)
        for one in found:
            self.remove("resourceslices", one["metadata"]["name"])
        return len(found)

    # --- requests, of a client or of somebody else in the cluster -----------------------------------------------------

    def create(self, resource: str, made: Mapping[str, Any], namespace: str = "", *, rehearsed: bool = False) -> Object:
        """Create an object; `rehearsed` tells what would become of it.

        Raises:
            Refused: there is one of that name, or it is no valid object.
        """
        metadata = dict(made.get("metadata") or {})
        if not metadata.get("name") and metadata.get("generateName"):
            letters = string.ascii_lowercase + string.digits
            metadata["name"] = metadata["generateName"] + "".join(random.choices(letters, k=_SUFFIX))  # noqa: S311
        where = Where(VERSION, resource, namespace, str(metadata.get("name", "")))
        with self.store.changed:
            if self.store.get(where) is not None:
                raise Refused(409, "AlreadyExists", f'{resource} "{where.name}" already exists')
            for name in ("uid", "resourceVersion", "creationTimestamp"):
                metadata.pop(name, None)
            whole = self._whole(where, {**made, "metadata": {**metadata, "generation": 1}}, None)
            return whole if rehearsed else self.store.put(where, whole)

    def replace(
        self, resource: str, name: str, changed: Mapping[str, Any], namespace: str = "", *, rehearsed: bool = False
    ) -> Object:
        """Replace an object, which has the resource version and the uid that are given, if any are.

        Raises:
            Refused: there is no such object or another one, or it becomes no valid object.
        """
        where = Where(VERSION, resource, namespace, name)
        with self.store.changed:
            before = self._there(where)
            metadata = changed.get("metadata") or {}
            for key in ("resourceVersion", "uid"):
                if metadata.get(key) not in {None, "", before["metadata"][key]}:
                    text = "the object has been modified; please apply your changes to the latest version and try again"
                    raise Refused(409, "Conflict", f'{resource} "{name}": {text}')
            whole = self._whole(where, changed, before)
            if whole == before:  # a server writes nothing then, and no watch says anything
                return before
            if whole.get("spec") != before.get("spec"):
                whole["metadata"]["generation"] = int(before["metadata"].get("generation", 0)) + 1
            return whole if rehearsed else self.store.put(where, whole)

    def change(
        self, resource: str, name: str, patch: Mapping[str, Any], namespace: str = "", *, rehearsed: bool = False
    ) -> Object:
        """Apply a merge patch.

        Raises:
            Refused: there is no such object or another one, or it becomes no valid object.
        """
        with self.store.changed:
            before = self._there(Where(VERSION, resource, namespace, name))
            return self.replace(resource, name, merged(before, patch), namespace, rehearsed=rehearsed)

    def remove(
        self,
        resource: str,
        name: str,
        namespace: str = "",
        *,
        preconditions: Mapping[str, str] | None = None,
        rehearsed: bool = False,
    ) -> Object:
        """Delete an object, and return what it was.

        Args:
            resource: of which kind.
            name: of the object.
            namespace: of the object.
            preconditions: what its metadata must have, such as a uid.
            rehearsed: only tell.

        Raises:
            Refused: there is no such object, or another one.
        """
        where = Where(VERSION, resource, namespace, name)
        with self.store.changed:
            before = self._there(where)
            for key, wanted in (preconditions or {}).items():
                if before["metadata"].get(key) != wanted:
                    raise Refused(409, "Conflict", f"Precondition failed: {key} in precondition: {wanted}")
            return before if rehearsed else self.store.remove(where) or before

    def _there(self, where: Where) -> Object:
        found = self.store.get(where)
        if found is None:
            raise Refused(404, "NotFound", f'{where.resource} "{where.name}" not found')
        return found

    def _whole(self, where: Where, sent: Mapping[str, Any], before: Object | None) -> Object:
        kind = _KINDS.get(where.resource, where.kind)
        whole = without_gates({"kind": kind, **sent}, self.lacks)
        whole |= {"apiVersion": VERSION, "kind": kind}
        whole["metadata"] = {**(before or {}).get("metadata", {}), **whole["metadata"], "name": where.name}
        for name in ("uid", "resourceVersion", "creationTimestamp", "generation"):
            if before is not None:
                whole["metadata"][name] = before["metadata"][name]
        if kind == "ResourceSlice":
            if mistakes := mistakes_of(whole, before):
                text = f'ResourceSlice.resource.k8s.io "{where.name}" is invalid: {"; ".join(mistakes)}'
                raise Refused(422, "Invalid", text)
            whole["spec"] = _completed(whole["spec"])
        return whole


def _completed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a slice as the server stores it."""
    found = dict(spec)
    if spec.get("devices"):
        found["devices"] = [_with_times(canonical_device(one)) for one in spec["devices"]]
    if spec.get("sharedCounters"):
        found["sharedCounters"] = [canonical_counters(one) for one in spec["sharedCounters"]]
    return found


def _with_times(device: dict[str, Any]) -> dict[str, Any]:
    """Say since when a taint is there: the server does, where nobody else has."""
    if device.get("taints"):
        device["taints"] = [{"timeAdded": now(), **taint} for taint in device["taints"]]
    return device


class _Handler(FaultyHandler):
    api: ResourceApi

    def serve(self, where: Where, query: dict[str, str], body: Any, *, watches: bool) -> None:
        if self.command == "GET":
            self._read(where, query, watches=watches)
            return
        if where.resource not in _KINDS:
            self.refuse(403, "Forbidden", f"{self.command} of {where.resource} is not for drivers")
            return
        rehearsed = bool(query.get("dryRun"))
        try:
            self._write(where, body, rehearsed=rehearsed)
        except Refused as error:
            self.refuse(error.code, error.reason, str(error))
        except InvalidRequest as error:
            self.refuse(400, "BadRequest", error.message)

    def _write(self, where: Where, body: Any, *, rehearsed: bool) -> None:
        api, resource, namespace = self.api, where.resource, where.namespace
        if self.command == "POST":
            self.answer(201, api.create(resource, body, namespace, rehearsed=rehearsed))
        elif self.command == "PUT":
            self.answer(200, api.replace(resource, where.name, body, namespace, rehearsed=rehearsed))
        elif self.command == "DELETE":
            conditions = body.get("preconditions")
            gone = api.remove(resource, where.name, namespace, preconditions=conditions, rehearsed=rehearsed)
            self.answer(200, gone)
        elif self.headers.get("Content-Type") == "application/merge-patch+json":
            self.answer(200, api.change(resource, where.name, body, namespace, rehearsed=rehearsed))
        else:
            self.refuse(415, "UnsupportedMediaType", "this server takes merge patches alone")

    def _read(self, where: Where, query: dict[str, str], *, watches: bool) -> None:
        store = self.api.store
        if watches:
            self.watch(where, query)
        elif where.name:
            self.answer_with(store.get(where))
        else:
            page = (int(query.get(key) or 0) for key in ("continue", "limit"))
            self.answer(200, store.listed(where, query.get("fieldSelector", ""), *page))
