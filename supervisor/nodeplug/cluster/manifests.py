"""Who may publish for a node: what an administrator applies to a cluster once.

Owns: a ServiceAccount, its rights, and the policy that keeps each node to itself.
Refuses: to apply anything, and the pod that runs the daemon.
"""

from collections.abc import Collection, Iterator
from typing import Final

from nodeplug.cluster.event_objects import CONTROLLER
from nodeplug.kubeapi.printed import Manifest
from nodeplug.kubeapi.resources import Object
from nodeplug.kubeapi.rights import ACCOUNT, account_of_daemons, in_pods, policy, role, rule

MAPS: Final = "kube-system"
"""Where ConfigMaps may be written: gpushare's extender looks there."""
_OWN: Final = "(^|[.])(kubernetes|k8s)[.]io/"


def manifests(namespace: str, publish: Collection[str]) -> list[Manifest]:
    """Return all that a cluster needs for nodes that publish these parts, in the order in which it is applied.

    Args:
        namespace: of the pods that run the daemon.
        publish: as in the configuration.
    """
    made = [account_of_daemons(namespace)]
    made += _policy(namespace)  # before the rights that it limits
    subject = in_pods(namespace).subject
    made += role(ACCOUNT, subject, rules(publish), "All nodes; the policy leaves each its own.")
    if "config-maps" in publish:
        about = "ConfigMaps about nodes, in this namespace alone; the policy leaves each node its own."
        made += role(ACCOUNT, subject, [rule("", "configmaps", "get", "create", "patch")], about, MAPS)
    return made


def rules(publish: Collection[str]) -> list[Object]:
    """Return the rights in the whole cluster."""
    made = [rule("", "nodes", "get", "patch"), rule("", "nodes/status", "patch")]
    if "events" in publish:
        made.append(rule("events.k8s.io", "events", "create", "patch"))
    if "pods" in publish:
        made.append(rule("", "pods", "get", "patch"))
    elif "events" in publish:
        made.append(rule("", "pods", "get"))
    return made


def _policy(namespace: str) -> Iterator[Manifest]:
    core = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"]}
    events = {"apiGroups": ["events.k8s.io"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"]}
    writes = [
        {**core, "resources": ["nodes", "nodes/status", "pods", "pods/*", "configmaps"]},
        {**events, "resources": ["events"]},
    ]
    variables = {
        "kind": "request.resource.resource",
        "part": "has(request.subResource) ? request.subResource : ''",
        "labels": "has(object.metadata.labels) ? object.metadata.labels : {}",
        "before": _of_old("metadata.labels"),
    }
    about = (
        "Leaves each node its own objects, and of these what the daemon writes: no taints, no capacity, no labels of "
        "Kubernetes. A token that is bound to no pod on a node may write nothing."
    )
    return policy(ACCOUNT, in_pods(namespace), writes, variables, _VALIDATIONS, about)


def _of_old(path: str) -> str:
    return f"oldObject != null && has(oldObject.{path}) ? oldObject.{path} : {{}}"


def _when(holds: str, then: str) -> str:
    return f"!({holds}) || ({then})"


def _kept(field: str) -> str:
    """Write that a field is as it was."""
    same = f"object.{field} == oldObject.{field}"
    return f"has(object.{field}) == has(oldObject.{field}) && (!has(object.{field}) || {same})"


_VALIDATIONS: Final = (
    (_when("variables.kind == 'nodes'", "request.name == variables.node"), "a node writes its own Node alone"),
    (
        _when("variables.kind == 'nodes' && variables.part == ''", _kept("spec")),
        "nodeplug changes no taints, nor anything else of a Node's spec",
    ),
    (
        _when(
            "variables.kind == 'nodes'",
            f"variables.before.all(key, !key.matches('{_OWN}') || "
            "(key in variables.labels && variables.labels[key] == variables.before[key])) && "
            f"variables.labels.all(key, !key.matches('{_OWN}') || key in variables.before)",
        ),
        "nodeplug changes no labels of kubernetes.io and k8s.io",
    ),
    (
        _when(
            "variables.kind == 'nodes' && variables.part == 'status' && has(oldObject.status) && has(object.status)",
            f"{_kept('status.capacity')} && {_kept('status.allocatable')} && (!has(oldObject.status.conditions) || "
            "oldObject.status.conditions.all(one, one.type.contains('/') || (has(object.status.conditions) && "
            "object.status.conditions.exists(other, other.type == one.type && other.status == one.status))))",
        ),
        "nodeplug changes no capacity, and no conditions of kubelet",
    ),
    (
        _when(
            "variables.kind == 'pods'",
            "oldObject != null && has(oldObject.spec.nodeName) && oldObject.spec.nodeName == variables.node && "
            f"variables.part == '' && {_kept('spec')} && {_kept('metadata.labels')}",
        ),
        "a node writes annotations alone, of its own pods alone",
    ),
    (
        _when("variables.kind == 'configmaps'", "object.metadata.name.endsWith('-' + variables.node)"),
        "a node writes ConfigMaps alone whose name ends with its own",
    ),
    (
        _when(
            "variables.kind == 'events'",
            f"object.reportingController == '{CONTROLLER}' && variables.node.startsWith(object.reportingInstance)",
        ),
        "a node writes events of its own alone",
    ),
)
"""What has to hold, and what is said where it does not."""
