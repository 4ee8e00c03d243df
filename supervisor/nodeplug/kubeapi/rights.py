"""Who may do what in a cluster, as objects: roles that are bound, and the policy that keeps each node to itself.

Owns: the account of the daemon on each node, and how a token says on which node it is. RBAC knows one account for all
nodes; the token of a pod names its node (`authentication.kubernetes.io/node-name`, since Kubernetes 1.32).
Refuses: which rights anybody needs, and to apply anything.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nodeplug.kubeapi.printed import Manifest, named
from nodeplug.kubeapi.resources import Object

ACCOUNT: Final = "nodeplug-node"
"""The ServiceAccount of the daemons in pods."""
_RBAC: Final = "rbac.authorization.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io/v1"
_NODE: Final = "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')"


@dataclass(frozen=True, slots=True)
class Daemons:
    """By what the API server knows the daemons of all nodes, and each of them.

    Attributes:
        subject: of a binding.
        asks: CEL of an admission policy: the request is of one of them.
        node: CEL: on which node that one is; the empty text if it does not say.
        unknown: what is said to one that does not.
    """

    subject: Mapping[str, str]
    asks: str
    node: str
    unknown: str


def in_pods(namespace: str, name: str = ACCOUNT) -> Daemons:
    """Return the daemons in pods of a namespace, which have one ServiceAccount."""
    return Daemons(
        account(name, namespace),
        f"request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'",
        _NODE,
        "the token is bound to no pod on a node: this account is for the nodeplug of each node",
    )


def account(name: str, namespace: str) -> Mapping[str, str]:
    """Return a ServiceAccount as the subject of a binding."""
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def account_of_daemons(namespace: str) -> Manifest:
    """Return the ServiceAccount itself."""
    about = "Whose token the daemon on each node has: name it in the pod, as serviceAccountName."
    return Manifest(named("v1", "ServiceAccount", ACCOUNT, namespace), about)


def rule(group: str, resource: str, *verbs: str) -> Object:
    """Return what a role allows."""
    return {"apiGroups": [group], "resources": [resource], "verbs": [*verbs]}


def role(
    name: str, subject: Mapping[str, str], rules: Iterable[Object], about: str, namespace: str = ""
) -> Iterator[Manifest]:
    """Yield a role and its binding to a subject; for the whole cluster unless a namespace is given."""
    kind = "Role" if namespace else "ClusterRole"
    yield Manifest({**named(f"{_RBAC}/v1", kind, name, namespace), "rules": [*rules]}, about)
    binding = named(f"{_RBAC}/v1", f"{kind}Binding", name, namespace)
    reference = {"apiGroup": _RBAC, "kind": kind, "name": name}
    yield Manifest({**binding, "roleRef": reference, "subjects": [dict(subject)]}, "")


def policy(
    name: str,
    daemons: Daemons,
    writes: Iterable[Object],
    variables: Mapping[str, str],
    validations: Iterable[tuple[str, str]],
    about: str,
) -> Iterator[Manifest]:
    """Yield an admission policy for what the daemons write, and its binding.

    Args:
        name: of both.
        daemons: whose requests it judges.
        writes: `resourceRules` of the policy.
        variables: CEL by name; `variables.node` is the node of the daemon.
        validations: what has to hold, in CEL, and what is said where it does not. That the node is known comes first.
        about: what is to be known of it.
    """
    known = ("variables.node != ''", daemons.unknown)
    spec: dict[str, Any] = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [*writes]},
        "matchConditions": [{"name": "nodeplug", "expression": daemons.asks}],
        "variables": [
            {"name": one, "expression": expression} for one, expression in {"node": daemons.node, **variables}.items()
        ],
        "validations": [
            {"expression": holds, "message": said, "reason": "Forbidden"} for holds, said in (known, *validations)
        ],
    }
    yield Manifest({**named(_ADMISSION, "ValidatingAdmissionPolicy", name), "spec": spec}, about)
    bound = {"policyName": name, "validationActions": ["Deny"]}
    yield Manifest({**named(_ADMISSION, "ValidatingAdmissionPolicyBinding", name), "spec": bound}, "")
