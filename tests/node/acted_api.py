"""An API server acted out: its objects are in memory, and it fails as it is told.

Owns: list, watch, get, merge patches and Bindings over HTTP on loopback, and one fault at a time.
Refuses: what a real server checks: schemas, rights and names are for tests/real.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from nodeplug.testing.acted_api.faults import ActedServer, Fault, FaultyHandler
from nodeplug.testing.acted_api.store import Object, Where, merged

NETWORK: Final = "nodeplug.io/v1alpha1"
DEFINITION: Final = "k8s.cni.cncf.io/v1"
__all__ = ["DEFINITION", "NETWORK", "ActedApi", "Fault"]


class ActedApi(ActedServer):
    """The server.

    Attributes:
        bound: every pod that was bound, as `web to node-1`.
    """

    def __init__(self) -> None:
        self.bound: list[str] = []
        super().__init__(_Handler)

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


class _Handler(FaultyHandler):
    api: ActedApi

    def serve(self, where: Where, query: dict[str, str], body: Any, *, watches: bool) -> None:
        store, selector = self.api.store, query.get("fieldSelector", "")
        if self.command == "PATCH":
            self._patch(where, body)
        elif self.command == "POST":
            self._bind(where, body)
        elif watches:
            self.watch(where, query)
        elif where.name:
            found = store.get(where)
            self.answer(200, found) if found is not None else self._refuse(404, "NotFound")
        else:
            page = (int(query.get(key) or 0) for key in ("continue", "limit"))
            self.answer(200, store.listed(where, selector, *page))

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
