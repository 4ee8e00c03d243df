"""What a plugin says about itself to the cluster: what belongs into the Node object, and what concerns single pods.

Owns: one value for all of it, as it is now.
Refuses: requests of the API server, whose writer the host is: a plugin names what holds, never what to change.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

__all__ = ["ClusterReport", "NodeCondition", "NodeConfigMap", "PodReport", "PodWarning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """A condition of the Node, beside those of kubelet. It is removed when it is no longer reported.

    Attributes:
        type: with a domain, such as `example.com/WornOut`: those without one are kubelet's and the cluster's.
        reason: one word in CamelCase, for programs.
        message: a sentence for people.
        status: whether it holds; `True` is the trouble, as with `MemoryPressure`.
    """

    type: str
    reason: str
    message: str
    status: Literal["True", "False", "Unknown"] = "True"


@dataclass(frozen=True, slots=True)
class PodWarning:
    """What is wrong with a pod now. It becomes an event of the pod when it begins, and is counted while it lasts.

    Attributes:
        reason: one word in CamelCase, for programs.
        note: a sentence for people, at most 1 kB; numbers that change all the time make no new event.
    """

    reason: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
    """What a plugin knows of one pod on this node.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        uid: of the pod; empty if the plugin does not know it.
        annotations: of the pod, whatever they were before; they stay when they are no longer reported, and go with it.
        defaults: annotations that are written only where the pod has none of that name.
        warnings: what is wrong with it.
    """

    namespace: str
    name: str
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[PodWarning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfigMap:
    """A ConfigMap about this node, for programs that look for one.

    Attributes:
        namespace: where.
        name: ends with `-` and the node's name, so that no two nodes write the same one.
        data: all that this node has in it; nothing removes what was there.
    """

    namespace: str
    name: str
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What of a plugin the cluster is to know, as it is now. What is no longer reported is removed.

    Attributes:
        labels: of the Node.
        annotations: of the Node; all plugins together have 64 KiB.
        conditions: of the Node.
        pods: what concerns single pods of this node.
        config_maps: for programs that look for them.
    """

    _: KW_ONLY
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[NodeCondition, ...] = ()
    pods: tuple[PodReport, ...] = ()
    config_maps: tuple[NodeConfigMap, ...] = ()
