"""kube-scheduler and the claim controller acted out, as far as claims are concerned.

    scheduler = Scheduler(api)
    scheduler.add_class("gpu", 'device.driver == "gpu.nodeplug.io"')
    scheduler.claim("one", {"name": "gpu", "exactly": {"deviceClassName": "gpu"}})
    scheduler.place("pod-1", ["one"])

Owns: writing allocations and reservations into claims, pods that wait, and what becomes of claims when a pod is gone.
Refuses: pods and nodes: there is one node, and a pod is a name.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from nodeplug.testing.acted_api.store import Object, now
from nodeplug.testing.dra.accounts import Accounts
from nodeplug.testing.dra.allocation import Chosen, Need, Search, config_for, needs_of, results_for
from nodeplug.testing.dra.pools import seen_in
from nodeplug.testing.dra.resource_api import ResourceApi
from nodeplug.testing.dra.selectors import SelectorFailure

_CLAIMS = "resourceclaims"


class Pending(Exception):
    """A pod waits: its claims cannot be allocated; the message is that of its event, and says why."""


def uid_of(pod: str, namespace: str = "default") -> str:
    """Return the uid of a pod that is acted out."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{namespace}/{pod}"))


class Scheduler:
    """The scheduler of one node.

    Args:
        api: where slices and claims are.

    Attributes:
        pending: why pods wait, by namespace and name.
    """

    def __init__(self, api: ResourceApi) -> None:
        self.api = api
        self.pending: dict[tuple[str, str], str] = {}
        self._waiting: dict[tuple[str, str], tuple[str, ...]] = {}

    # --- objects ----------------------------------------------------------------------------------------------------

    def add_class(self, name: str, *expressions: str, config: Sequence[Mapping[str, Any]] = ()) -> Object:
        """Create a DeviceClass of the devices that all expressions select."""
        selectors = [{"cel": {"expression": one}} for one in expressions]
        made = {"metadata": {"name": name}, "spec": {"selectors": selectors, "config": list(config)}}
        return self.api.create("deviceclasses", made)

    def claim(
        self, name: str, *requests: Mapping[str, Any], namespace: str = "default", pod: str = "", **devices: Any
    ) -> Object:
        """Create a claim.

        Args:
            name: of the claim.
            requests: as `spec.devices.requests` has them.
            namespace: of the claim.
            pod: whose it is, as of a claim made from a template: it goes with the pod.
            devices: more of `spec.devices`: constraints, config.
        """
        metadata: dict[str, Any] = {"name": name}
        if pod:
            owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid_of(pod, namespace), "controller": True}
            metadata["ownerReferences"] = [owner]
        spec = {"devices": {"requests": list(requests), **devices}}
        return self.api.create(_CLAIMS, {"metadata": metadata, "spec": spec}, namespace)

    # --- pods -------------------------------------------------------------------------------------------------------

    def place(self, pod: str, claims: Sequence[str], namespace: str = "default") -> list[Object]:
        """Allocate what claims of a pod are not allocated yet, all or none, and reserve all for the pod.

        Returns:
            The claims as they are then.

        Raises:
            Pending: not possible now; the pod waits, and `retry` tries again.
            LookupError: there is no such claim.
        """
        key = (namespace, pod)
        with self.api.store.changed:  # nothing of a cycle is seen half done
            found = [self._claim(name, namespace) for name in claims]
            try:
                allocated = self._allocated(found)
            except Pending as error:
                self.pending[key], self._waiting[key] = str(error), tuple(claims)
                raise
            self.pending.pop(key, None)
            self._waiting.pop(key, None)
            return [self._reserved(one, pod, namespace) for one in allocated]

    def retry(self) -> list[str]:
        """Try every pod that waits again, in their order; return those that wait no longer."""
        placed = []
        for (namespace, pod), claims in list(self._waiting.items()):
            try:
                self.place(pod, claims, namespace)
            except Pending:
                continue
            placed.append(pod)
        return placed

    def free(self, pod: str, namespace: str = "default") -> None:
        """Do what controllers do when a pod's object is gone: its claims are free at once.

        For an ordinary end, call it when kubelet has unprepared the pod's claims; before that, it is what a deletion
        with `--force` does: the next pod may get the same devices while the old one's claims are still prepared.
        """
        for store in (self.pending, self._waiting):
            store.pop((namespace, pod), None)
        uid = uid_of(pod, namespace)
        with self.api.store.changed:
            for claim in self.api.listed(_CLAIMS, namespace=namespace):
                name, status = claim["metadata"]["name"], claim.get("status") or {}
                users = [one for one in status.get("reservedFor") or () if one["uid"] != uid]
                owned = any(one["uid"] == uid for one in claim["metadata"].get("ownerReferences") or ())
                if owned or (not users and claim["metadata"].get("deletionTimestamp")):
                    self.api.remove(_CLAIMS, name, namespace)
                elif len(users) != len(status.get("reservedFor") or ()):
                    left = {"reservedFor": users} if users else {"reservedFor": None, "allocation": None}
                    self.api.change(_CLAIMS, name, {"status": left}, namespace)

    def delete(self, name: str, namespace: str = "default") -> None:
        """Delete a claim; one that pods use is only marked, and goes with the last of them."""
        claim = self._claim(name, namespace)
        if (claim.get("status") or {}).get("reservedFor"):
            self.api.change(_CLAIMS, name, {"metadata": {"deletionTimestamp": now()}}, namespace)
        else:
            self.api.remove(_CLAIMS, name, namespace)

    # --- a cycle ----------------------------------------------------------------------------------------------------

    def _allocated(self, claims: Sequence[Object]) -> list[Object]:
        todo = [one for one in claims if not (one.get("status") or {}).get("allocation")]
        if not todo:
            return list(claims)
        classes = {str(one["metadata"]["name"]): one for one in self.api.listed("deviceclasses")}
        seen = seen_in(self.api.slices(), self.api.node)
        search = Search(seen.candidates)
        try:
            needs = [need for index, claim in enumerate(todo) for need in needs_of(claim, index, classes)]
            chosen = search.requests(needs, Accounts.of(self.api.listed(_CLAIMS)))
        except (SelectorFailure, LookupError) as error:
            raise Pending(f"0/1 nodes are available: {error}") from None
        if chosen is None:
            ignored = "".join(f"; incomplete pool {one}" for one in seen.incomplete)
            raise Pending(f"0/1 nodes are available: 1 cannot allocate all claims. ({search}{ignored})")
        for index, claim in enumerate(todo):
            self._write(claim, index, chosen, classes)
        return [self._claim(one["metadata"]["name"], one["metadata"]["namespace"]) for one in claims]

    def _write(self, claim: Object, index: int, chosen: Chosen, classes: Mapping[str, Object]) -> None:
        used: list[Need] = list(dict.fromkeys(need for need, _ in chosen if need.claim == index))
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [self.api.node]}]}]
        allocation = {
            "devices": {"results": results_for(chosen, index), "config": config_for(claim, used, classes)},
            "nodeSelector": {"nodeSelectorTerms": terms},
            "allocationTimestamp": now(),
        }
        metadata = claim["metadata"]
        self.api.change(_CLAIMS, metadata["name"], {"status": {"allocation": allocation}}, metadata["namespace"])

    def _reserved(self, claim: Object, pod: str, namespace: str) -> Object:
        users = list((claim.get("status") or {}).get("reservedFor") or ())
        user = {"resource": "pods", "name": pod, "uid": uid_of(pod, namespace)}
        if user in users:
            return claim
        return self.api.change(
            _CLAIMS, claim["metadata"]["name"], {"status": {"reservedFor": [*users, user]}}, namespace
        )

    def _claim(self, name: str, namespace: str) -> Object:
        found = self.api.get(_CLAIMS, name, namespace)
        if found is None:
            raise LookupError(f"there is no claim {namespace}/{name}")
        return found
