"""What kubelet asks of an API server, in memory and over HTTP on a private node's loopback.

Owns: list, watch, create, update, patch and delete as kubelet's client calls them, and the end of a pod's life: it is
marked first, and gone when kubelet deletes it.
Refuses: what other components do: admission, scheduling, controllers, users, TLS. Nothing but kubelet and the test
reaches it.
"""

import json
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Self

from tests.real.consumers.private_node import PrivateNode

from nodeplug.testing.acted_api.handler import ApiHandler, Listening
from nodeplug.testing.acted_api.store import Object, Store, Where, merge, now


class _Handler(ApiHandler):
    store: Store

    def do_GET(self) -> None:  # noqa: N802 - so http.server finds it
        where, query = self.asked()
        selector = query.get("fieldSelector", "")
        if query.get("watch") in {"1", "true"}:
            seconds = float(query.get("timeoutSeconds", 300))
            if query.get("sendInitialEvents") == "true":  # of clients since 1.35, instead of a list
                self.stream(self.store.listed_and_watched(where, selector, seconds))
                return
            self.stream(self.store.watched(where, selector, int(query.get("resourceVersion") or 0), seconds))
        elif where.name:
            self.answer_with(self.store.get(where))
        else:
            self.answer(HTTPStatus.OK, self.store.listed(where, selector))

    def do_POST(self) -> None:  # noqa: N802 - so http.server finds it
        where, body = self.asked()[0], self.body()
        new = Where(where.version, where.resource, where.namespace, body["metadata"].get("name", str(uuid.uuid4())))
        if self.store.get(new) is not None:
            self.refuse(HTTPStatus.CONFLICT, "AlreadyExists")
        else:
            self.answer(HTTPStatus.CREATED, self.store.put(new, body))

    def do_PUT(self) -> None:  # noqa: N802 - so http.server finds it
        where, body = self.asked()[0], self.body()
        with self.store.changed:
            found = self.store.get(where)
            known = body["metadata"].get("resourceVersion")
            if found is not None and known not in {None, found["metadata"]["resourceVersion"]}:
                self.refuse(HTTPStatus.CONFLICT, "Conflict")  # two writers that read the same would lose one change
            else:
                self.answer(HTTPStatus.OK, self.store.put(where, body))

    def do_PATCH(self) -> None:  # noqa: N802 - so http.server finds it
        where, patch = self.asked()[0], self.body()
        found = self.store.get(where)
        if found is not None:
            merge(found, patch)
            found = self.store.put(where, found)
        self.answer_with(found)

    def do_DELETE(self) -> None:  # noqa: N802 - so http.server finds it
        self.body()
        self.answer_with(self.store.remove(self.asked()[0]))


class ApiServer:
    """The server of one private node.

    Args:
        node: in whose network namespace it listens.
    """

    def __init__(self, node: PrivateNode) -> None:
        self.node, self.store = node, Store()
        handler = type("Handler", (_Handler,), {"store": self.store})
        self._listening = Listening(handler, node.netns.entered())

    @property
    def kubeconfig(self) -> str:
        """What a kubelet needs to find it."""
        return self._listening.kubeconfig

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
        self._listening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
