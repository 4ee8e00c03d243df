"""Scheduler extenders, in the terms of kube-scheduler's `extender/v1`.

Owns: one value per verb.
Refuses: HTTP and JSON. Pods and nodes are the decoded API objects, as kube-scheduler sent them; only read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodeplug.contract.values.requests import Request

__all__ = [
    "ExtenderBind",
    "ExtenderFilter",
    "ExtenderPreempt",
    "ExtenderPrioritize",
    "ExtenderRequest",
    "ExtenderVerdict",
    "ExtenderVictims",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderRequest(Request):
    """What every verb of an extender carries.

    Attributes:
        claim: the name under which the scheduler asked.
    """

    claim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderFilter(ExtenderRequest):
    """Which of the nodes can run the pod?

    Attributes:
        pod: the v1 Pod that is to be scheduled.
        nodes: the candidates by name, in the scheduler's order, each with its v1 Node, or None where the scheduler
            sends only names (`nodeCacheCapable`) and the daemon does not follow nodes, or knows none of that name.
    """

    pod: Mapping[str, Any]
    nodes: Mapping[str, Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderVerdict:
    """The result of filter. A reason is a constant text: the scheduler counts nodes by equal texts.

    Attributes:
        nodes: names of the request that can run the pod.
        failed: why others cannot, by name; preempting pods there may help. A node that is in none of the three counts
            as failed, without a reason.
        unresolvable: why others never can, by name; preemption skips them.
    """

    nodes: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderPrioritize(ExtenderRequest):
    """How well does each node suit the pod? Return a score from 0 to 10 by name; a missing node has 0.

    Attributes:
        pod: the v1 Pod that is to be scheduled.
        nodes: those that are left, as in `ExtenderFilter`.
    """

    pod: Mapping[str, Any]
    nodes: Mapping[str, Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderVictims:
    """Pods of one node that would be evicted.

    Attributes:
        pods: their UIDs.
        pdb_violations: how many disruption budgets that violates.
        objects: of a request, the v1 Pods by UID where the scheduler sends them (not with `nodeCacheCapable`) or the
            daemon follows the cluster; a result needs none.
    """

    pods: tuple[str, ...]
    pdb_violations: int = 0
    objects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderPreempt(ExtenderRequest):
    """Which victims make room for the pod? Return a subset of the nodes, each with pods of that node.

    Attributes:
        pod: the v1 Pod that is to be scheduled.
        victims: what the scheduler would evict, by node.
    """

    pod: Mapping[str, Any]
    victims: Mapping[str, ExtenderVictims]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderBind(ExtenderRequest):
    """Bind a pod to a node; succeed when it is bound there already.

    Attributes:
        namespace: of the pod.
        pod: its name.
        uid: of the pod.
        node: the name of the Node.
    """

    namespace: str
    pod: str
    uid: str
    node: str
