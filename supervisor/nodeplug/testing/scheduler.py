"""kube-scheduler acted out, as far as an extender sees it.

Owns: the calls of one scheduling cycle in its order, what kube-scheduler makes of each answer, and its words for a pod
that does not fit.
Refuses: the scheduler's own filters and scores: the nodes of a cycle are those that these have left, and only extenders
choose among them.

Sources: kube-scheduler 1.36, pkg/scheduler/extender.go and schedule_one.go.
"""

import http.client
import json
import ssl
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import urlsplit

from nodeplug.contract.errors import PluginError

Object = Mapping[str, Any]
VERBS: Final = ("filter", "prioritize", "preempt", "bind")
_TIMES: Final = 10
"""MaxNodeScore / MaxExtenderPriority."""


class ExtenderFailure(PluginError):
    """kube-scheduler takes the answer for an error; the message has its words."""


class Unschedulable(PluginError):
    """No node is left; the message is that of the pod's event."""


def pod(name: str, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """Return a v1 Pod as the API server would; `labels` goes into its metadata, the rest into its spec."""
    labels = spec.pop("labels", {})
    metadata = {"name": name, "namespace": namespace, "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{namespace}/{name}"))}
    containers = [{"name": "main", "image": "example.com/image", "resources": {}}]
    whole = {"containers": containers, "schedulerName": "default-scheduler", "priority": 0, **spec}
    return {"metadata": {**metadata, "labels": labels}, "spec": whole, "status": {"phase": "Pending"}}


def node(name: str, **allocatable: str) -> dict[str, Any]:
    """Return a v1 Node with so much to give, such as `cpu="4"`."""
    given = {"cpu": "4", "memory": "8Gi", "pods": "110", **allocatable}
    status = {"capacity": given, "allocatable": given, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {}, "status": status}


@dataclass(frozen=True, slots=True)
class Filtered:
    """What is left of the nodes, and why others are not; as `ExtenderVerdict`."""

    nodes: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)

    @property
    def event(self) -> str:
        """The text of the event of a pod that has no node: nodes are counted by equal reasons."""
        reasons = Counter({**self.failed, **self.unresolvable}.values())
        whole = len({*self.nodes, *self.failed, *self.unresolvable})
        told = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        return f"0/{whole} nodes are available: {told}."


class Scheduler:
    """One extender of a kube-scheduler's configuration, asked as it would be.

    Args:
        url_prefix: `http://127.0.0.1:9810/example`.
        node_cache_capable: send names of nodes instead of whole ones.
        weight: of the scores.
        verbs: for which the configuration has a verb.
        managed_resources: names of extended resources; only pods that ask for one are shown. None: all pods are.
        ignorable: go on without the extender if it fails.
        timeout: seconds, `httpTimeout`.
        tls: for `https`.
    """

    def __init__(
        self,
        url_prefix: str,
        *,
        node_cache_capable: bool = True,
        weight: int = 1,
        verbs: Collection[str] = VERBS,
        managed_resources: Collection[str] = (),
        ignorable: bool = False,
        timeout: float = 5.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url_prefix = url_prefix.rstrip("/")
        self.node_cache_capable, self.weight, self.ignorable = node_cache_capable, weight, ignorable
        self.verbs, self.managed_resources = frozenset(verbs), frozenset(managed_resources)
        place = urlsplit(self.url_prefix)
        self._path = place.path
        self._connection = (
            http.client.HTTPSConnection(place.netloc, timeout=timeout, context=tls)
            if place.scheme == "https"
            else http.client.HTTPConnection(place.netloc, timeout=timeout)
        )

    # --- a cycle --------------------------------------------------------------------------------------------------

    def schedule(self, pod: Object, nodes: Sequence[str] | Mapping[str, Object]) -> str:
        """Find a node for a pod and bind it; return the node's name.

        Args:
            pod: a v1 Pod.
            nodes: names, or v1 Nodes by name: those that the scheduler's own filters have left.

        Raises:
            Unschedulable: no node is left.
            ExtenderFailure: filter or bind failed.
        """
        wanted = self.interested(pod)
        left: Sequence[str] = list(nodes)
        if wanted and left and "filter" in self.verbs:
            try:
                verdict = self.filter(pod, nodes)
            except ExtenderFailure:
                if not self.ignorable:
                    raise
            else:
                if not verdict.nodes:
                    raise Unschedulable(verdict.event)
                left = verdict.nodes
        if not left:
            raise Unschedulable("0/0 nodes are available.")
        chosen = left[0]
        if wanted and len(left) > 1 and "prioritize" in self.verbs:  # one node needs no score
            scores = self.prioritize(pod, {name: nodes[name] for name in left} if isinstance(nodes, Mapping) else left)
            chosen = max(left, key=lambda name: scores.get(name, 0))
        if wanted and "bind" in self.verbs:
            self.bind(pod, chosen)
        return chosen

    def interested(self, pod: Object) -> bool:
        """Whether the extender is asked about a pod: a container, or init container, has a managed resource."""
        if not self.managed_resources:
            return True
        spec = pod.get("spec", {})
        for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
            resources = container.get("resources") or {}
            for asked in ("requests", "limits"):
                if not self.managed_resources.isdisjoint(resources.get(asked) or {}):
                    return True
        return False

    def filter(self, pod: Object, nodes: Sequence[str] | Mapping[str, Object]) -> Filtered:
        """Ask which nodes can run a pod.

        Raises:
            ExtenderFailure: as kube-scheduler takes it; a cycle ends then.
        """
        result = self.ask("filter", self._args(pod, nodes))
        if result.get("Error"):
            raise ExtenderFailure(str(result["Error"]))
        names: Any = result.get("NodeNames")
        if not (self.node_cache_capable and names is not None):
            items = (result.get("Nodes") or {}).get("items") or []
            names = [one["metadata"]["name"] for one in items]
            if isinstance(nodes, Mapping) and (changed := [one for one in items if one != _sent(nodes, one)]):
                raise ExtenderFailure(f"node {changed[0]['metadata']['name']} comes back changed")
        sent = frozenset(nodes)
        for name in names:
            if name not in sent:
                raise ExtenderFailure(
                    f"extender {self.url_prefix!r} claims a filtered node {name!r} which is not found in the input "
                    "node list"
                )
        failed, never = result.get("FailedNodes") or {}, result.get("FailedAndUnresolvableNodes") or {}
        return Filtered(tuple(names), failed, never)

    def prioritize(self, pod: Object, nodes: Sequence[str] | Mapping[str, Object]) -> Mapping[str, int]:
        """Ask for scores; return what is added to the scheduler's own. A failure counts as no opinion."""
        try:
            result = self.ask("prioritize", self._args(pod, nodes))
        except ExtenderFailure:
            return {}
        return {one["Host"]: one["Score"] * self.weight * _TIMES for one in result}

    def preempt(self, pod: Object, victims: Mapping[str, Sequence[Object]]) -> Mapping[str, tuple[str, ...]]:
        """Ask which pods shall go, from v1 Pods by node; return UIDs by node.

        Raises:
            ExtenderFailure: the verb failed, or a victim is no pod of its node.
        """
        known = {name: {one["metadata"]["uid"] for one in pods} for name, pods in victims.items()}
        meta = {
            name: {"Pods": [{"UID": uid} for uid in sorted(uids)], "NumPDBViolations": 0}
            for name, uids in known.items()
        }
        whole = {name: {"Pods": list(pods), "NumPDBViolations": 0} for name, pods in victims.items()}
        names = self.node_cache_capable
        args = {
            "Pod": pod,
            "NodeNameToVictims": None if names else whole,
            "NodeNameToMetaVictims": meta if names else None,
        }
        result = self.ask("preempt", args).get("NodeNameToMetaVictims") or {}
        chosen = {name: tuple(one["UID"] for one in told["Pods"] or ()) for name, told in result.items()}
        for name, uids in chosen.items():
            if unknown := [uid for uid in uids if uid not in known.get(name, ())]:
                raise ExtenderFailure(f"extender: {self.url_prefix} claims to preempt pod {unknown[0]} on node {name}")
        return chosen

    def bind(self, pod: Object, node: str) -> None:
        """Have a pod bound.

        Raises:
            ExtenderFailure: it is not; the scheduler forgets where it wanted the pod, and tries again.
        """
        metadata = pod["metadata"]
        args = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        result = self.ask("bind", {**args, "Node": node})
        if result.get("Error"):
            raise ExtenderFailure(str(result["Error"]))

    # --- the wire -------------------------------------------------------------------------------------------------

    def _args(self, pod: Object, nodes: Sequence[str] | Mapping[str, Object]) -> Object:
        if self.node_cache_capable:
            return {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        items = list(nodes.values()) if isinstance(nodes, Mapping) else list(map(node, nodes))
        return {"Pod": pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}

    def ask(self, verb: str, args: Object) -> Any:
        """Post one call and return what was answered.

        Raises:
            ExtenderFailure: there is no answer, or its status is not 200: its body is not read then.
        """
        url = f"{self.url_prefix}/{verb}"
        body = json.dumps(args, separators=(",", ":"))
        try:
            answer = self._post(verb, body)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ExtenderFailure(f'Post "{url}": {error}') from None
        status, told = answer
        if status != HTTPStatus.OK:
            raise ExtenderFailure(f"failed {verb} with extender at URL {url}, code {status}", details=_shown(told))
        return json.loads(told)

    def _post(self, verb: str, body: str) -> tuple[int, bytes]:
        self._connection.request("POST", f"{self._path}/{verb}", body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shown(told: bytes) -> str:
    return told.decode(errors="replace").strip()


def _sent(nodes: Mapping[str, Object], returned: Object) -> Object | None:
    return nodes.get(returned["metadata"]["name"])
