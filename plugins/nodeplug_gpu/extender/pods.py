"""Where a pod is on its way from kube-scheduler to its end.

Owns: reading a v1 Pod: its identity, its node, when it was bound, and whether it holds nothing for ever.
Refuses: what it wants (`wants`).
"""

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]


def uid_of(pod: Object) -> str:
    """Return a pod's UID."""
    return str((pod.get("metadata") or {}).get("uid", ""))


def node_of(pod: Object) -> str:
    """Return the name of the node to which a pod is bound; empty if it is not."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def is_finished(pod: Object) -> bool:
    """Whether a pod holds nothing for ever: its containers have ended, or kubelet has rejected it."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def bound_at(pod: Object) -> str:
    """Return when a pod was bound, with seconds, as the server has times; pods of one second are in no order by it.

    Source: kube-apiserver, pkg/registry/core/pod/storage (assignPod sets the condition PodScheduled).
    """
    conditions = (pod.get("status") or {}).get("conditions") or ()
    times = [str(one.get("lastTransitionTime")) for one in conditions if one.get("type") == "PodScheduled"]
    return max(times, default="")
