"""What a cluster needs for networks as objects: definitions, rights, and the objects themselves.

Owns: the two CustomResourceDefinitions, the documented role and who has it, and the calls that a test makes.
Refuses: pods: whoever runs them puts the annotation there.
"""

import re
from pathlib import Path
from typing import Any, Final

import yaml
from tests.real.consumers.claims import CORE, apply
from tests.real.consumers.control_plane import ControlPlane

from nodeplug.contract.errors import PluginError
from nodeplug.testing.waiting import until

ROOT: Final = Path(__file__).parents[3]
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITIONS: Final = "/apis/k8s.cni.cncf.io/v1/namespaces/{}/network-attachment-definitions"
NETWORKS: Final = "/apis/nodeplug.io/v1alpha1/networks"
PODS: Final = f"{CORE}/namespaces/default/pods"
Object = dict[str, Any]
_NAMES: Final = {
    "plural": "network-attachment-definitions",
    "singular": "network-attachment-definition",
    "kind": "NetworkAttachmentDefinition",
}
_SPEC: Final = {"type": "object", "properties": {"config": {"type": "string"}}}
_SCHEMA: Final = {"openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC}}}
DEFINITION: Final[Object] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
    "spec": {
        "group": "k8s.cni.cncf.io",
        "scope": "Namespaced",
        "names": _NAMES,
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": _SCHEMA}],
    },
}
"""As the Network Plumbing Working Group publishes it."""


def page() -> list[Object]:
    """Return the objects of docs/networks.md."""
    text = (ROOT / "docs" / "networks.md").read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)]


def prepare(control: ControlPlane) -> str:
    """Create the definitions, and return the token of a ServiceAccount with the documented rights alone."""
    ours = yaml.safe_load((ROOT / "deploy" / "crds" / "networks.nodeplug.io.yaml").read_text(encoding="utf-8"))
    for one in (DEFINITION, ours):
        control.call("POST", CRDS, one)
    for path in (DEFINITIONS.format("default"), NETWORKS):
        until(lambda path=path: _served(control, path))  # type: ignore[misc]
    (role,) = [one for one in page() if one["kind"] == "ClusterRole"]
    account = {"kind": "ServiceAccount", "metadata": {"name": "networks", "namespace": "kube-system"}}
    binding = {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "networks"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": "networks", "namespace": "kube-system"}],
    }
    return apply(control, [role, account, binding])


def _served(control: ControlPlane, path: str) -> bool:
    try:
        control.call("GET", path)
    except PluginError:
        return False
    return True


def define(control: ControlPlane, name: str, config: str, namespace: str = "default") -> None:
    """Create a NetworkAttachmentDefinition."""
    found = {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": name}}
    control.call("POST", DEFINITIONS.format(namespace), {**found, "spec": {"config": config}})


def network(control: ControlPlane, name: str, spec: Object) -> None:
    """Create a `Network`."""
    found = {"apiVersion": "nodeplug.io/v1alpha1", "kind": "Network", "metadata": {"name": name}}
    control.call("POST", NETWORKS, {**found, "spec": spec})


def reason(control: ControlPlane, name: str) -> str:
    """Return what the node says of a `Network` in one word."""
    found = control.call("GET", f"{NETWORKS}/{name}")
    nodes = (found.get("status") or {}).get("nodes") or {}
    return str(nodes.get(control.node.name, {}).get("reason", ""))


def status_of(control: ControlPlane, pod: str) -> list[Object]:
    """Return the network status of a pod, which is empty until it is written."""
    found = control.call("GET", f"{PODS}/{pod}")
    text = (found["metadata"].get("annotations") or {}).get("k8s.v1.cni.cncf.io/network-status", "[]")
    return list(yaml.safe_load(text))
