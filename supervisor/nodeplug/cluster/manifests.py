"""Who may publish for a node: what an administrator applies to a cluster once.

Owns: a ServiceAccount, its rights, and the policy that keeps each node to itself: RBAC knows one account for all nodes,
and the token of a pod says on which node it is (`authentication.kubernetes.io/node-name`, since Kubernetes 1.32).
Refuses: to apply anything, and the pod that runs the daemon.
"""

from collections.abc import Collection, Iterator
from typing import Final

from nodeplug.cluster.event_objects import CONTROLLER
from nodeplug.csi.printed import Manifest, named
from nodeplug.kubeapi.resources import Object

ACCOUNT: Final = "nodeplug-node"
MAPS: Final = "kube-system"
"""Where ConfigMaps may be written: gpushare's extender looks there."""
_RBAC: Final = "rbac.authorization.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io/v1"
_NODE: Final = "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')"
_OWN: Final = "(^|[.])(kubernetes|k8s)[.]io/"


def manifests(namespace: str, publish: Collection[str]) -> list[Manifest]:
    """Return all that a cluster needs for nodes that publish these parts, in the order in which it is applied.

    Args:
        namespace: of the pods that run the daemon.
        publish: as in the configuration.
    """
    account = named("v1", "ServiceAccount", ACCOUNT, namespace)
    made = [Manifest(account, "Whose token the daemon on each node has: name it in the pod, as serviceAccountName.")]
    made += _policy(namespace)  # before the rights that it limits
    made += _role("ClusterRole", "", namespace, rules(publish), "All nodes; the policy leaves each its own.")
    if "config-maps" in publish:
        about = "ConfigMaps about nodes, in this namespace alone; the policy leaves each node its own."
        made += _role("Role", MAPS, namespace, [_rule("", "configmaps", "get", "create", "patch")], about)
    return made


def rules(publish: Collection[str]) -> list[Object]:
    """Return the rights in the whole cluster."""
    made = [_rule("", "nodes", "get", "patch"), _rule("", "nodes/status", "patch")]
    if "events" in publish:
        made.append(_rule("events.k8s.io", "events", "create", "patch"))
    if "pods" in publish:
        made.append(_rule("", "pods", "get", "patch"))
    elif "events" in publish:
        made.append(_rule("", "pods", "get"))
    return made


def _role(kind: str, where: str, home: str, allowed: list[Object], about: str) -> Iterator[Manifest]:
    yield Manifest({**named(f"{_RBAC}/v1", kind, ACCOUNT, where), "rules": allowed}, about)
    reference = {"apiGroup": _RBAC, "kind": kind, "name": ACCOUNT}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": home}
    binding = named(f"{_RBAC}/v1", f"{kind}Binding", ACCOUNT, where)
    yield Manifest({**binding, "roleRef": reference, "subjects": [subject]}, "")


def _rule(group: str, resource: str, *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": [resource], "verbs": [*verbs]}


def _policy(namespace: str) -> Iterator[Manifest]:
    core = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"]}
    events = {"apiGroups": ["events.k8s.io"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {**core, "resources": ["nodes", "nodes/status", "pods", "pods/*", "configmaps"]},
                {**events, "resources": ["events"]},
            ]
        },
        "matchConditions": [
            {
                "name": "nodeplug",
                "expression": f"request.userInfo.username == 'system:serviceaccount:{namespace}:{ACCOUNT}'",
            }
        ],
        "variables": [
            {"name": "node", "expression": _NODE},
            {"name": "kind", "expression": "request.resource.resource"},
            {"name": "part", "expression": "has(request.subResource) ? request.subResource : ''"},
            {"name": "labels", "expression": "has(object.metadata.labels) ? object.metadata.labels : {}"},
            {"name": "before", "expression": _of_old("metadata.labels")},
        ],
        "validations": [{"expression": one, "message": said, "reason": "Forbidden"} for one, said in _VALIDATIONS],
    }
    about = (
        "Leaves each node its own objects, and of these what the daemon writes: no taints, no capacity, no labels of "
        "Kubernetes. A token that is bound to no pod on a node may write nothing."
    )
    yield Manifest({**named(_ADMISSION, "ValidatingAdmissionPolicy", ACCOUNT), "spec": spec}, about)
    bound = {"policyName": ACCOUNT, "validationActions": ["Deny"]}
    yield Manifest({**named(_ADMISSION, "ValidatingAdmissionPolicyBinding", ACCOUNT), "spec": bound}, "")


def _of_old(path: str) -> str:
    return f"oldObject != null && has(oldObject.{path}) ? oldObject.{path} : {{}}"


def _when(holds: str, then: str) -> str:
    return f"!({holds}) || ({then})"


def _kept(field: str) -> str:
    """Write that a field is as it was."""
    same = f"object.{field} == oldObject.{field}"
    return f"has(object.{field}) == has(oldObject.{field}) && (!has(object.{field}) || {same})"


_VALIDATIONS: Final = (
    ("variables.node != ''", "the token is bound to no pod on a node: this account is for the nodeplug of each node"),
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
