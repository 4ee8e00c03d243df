"""What an administrator applies to a cluster once: as objects, and as YAML that says why.

Owns: the rights of nodeplug's own provisioner, the standard external-provisioner beside each driver as the other
choice, and the comments.
Refuses: to apply anything.

Source of the sidecar's arguments and rights: kubernetes-csi/external-provisioner 6.3, README.md ("Deployment on each
node") and deploy/kubernetes/rbac.yaml.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from nodeplug.csi.objects import Driver
from nodeplug.kubeapi.resources import Object

IMAGE: Final = "registry.k8s.io/sig-storage/csi-provisioner:v6.3.0"
_ACCOUNT: Final = "nodeplug-provisioner"
_RBAC: Final = "rbac.authorization.k8s.io"
_KEY: Final = re.compile(r"( *)([\w.-]+):")
_READ: Final = ("get", "list", "watch")
_GIVEN: Final = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
"""Namespaces that every cluster has."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object, and what is to be known of it.

    Attributes:
        object: as JSON has it.
        about: why it is there.
        notes: why a field has its value, by its key; `spec.KEY` below `spec`.
    """

    object: Object
    about: str
    notes: Mapping[str, str] = field(default_factory=dict)


def manifests(
    drivers: Iterable[Driver], kubelet: Path, namespace: str, classes: Mapping[str, str], *, sidecars: bool
) -> list[Manifest]:
    """Return all that a cluster needs for these drivers, in the order in which it is applied.

    Args:
        drivers: what the node's plugins claim.
        kubelet: its root folder on the nodes.
        namespace: of what provisions.
        classes: names of StorageClasses, by driver; a driver without one gets its own name.
        sidecars: provision by the standard external-provisioner instead of by nodeplug.
    """
    every = list(drivers)
    provisioning = [one for one in every if one.provisions]
    made = [_driver(one) for one in every]
    if provisioning:
        made += _rights(namespace, sidecars=sidecars)
        made += [_class(one, classes.get(one.name, one.name)) for one in provisioning]
    if sidecars:
        made += [_sidecar(one, kubelet, namespace) for one in provisioning]
    return made


def _driver(driver: Driver) -> Manifest:
    claim = driver.claim
    inline = "a pod may name such a volume itself" if claim.inline else "a pod must not choose whose volume it gets"
    notes = {
        "spec.attachRequired": "Can never be changed. With true, kubelet would wait for ever for an attachment.",
        "spec.podInfoOnMount": "The driver learns which pod it is, and whether the volume is the pod's own.",
        "spec.fsGroupPolicy": {
            "kubelet": "kubelet gives the volume to the pod's fsGroup.",
            "driver": "The driver gets the pod's fsGroup and sets it itself.",
            "none": "Nobody changes who owns the files.",
        }[claim.fs_group],
        "spec.volumeLifecycleModes": f"Can never be changed. {'' if claim.inline else 'Not '}Ephemeral: {inline}.",
        "spec.storageCapacity": "The scheduler looks for a node with room; CSIStorageCapacity objects say where it is."
        if driver.spec["storageCapacity"]
        else "Nobody publishes CSIStorageCapacity objects: with true, no pod would be placed.",
        "spec.requiresRepublish": "kubelet publishes mounted volumes again, so that what expires is renewed."
        if claim.republish
        else "A volume is published once.",
        "spec.tokenRequests": "kubelet sends tokens of the pod's ServiceAccount for these audiences.",
    }
    about = (
        f"The driver of {claim.name!r}. Apply it before the first pod: a kubelet that does not find it lets pods wait."
    )
    return Manifest(driver.csi_driver, about, notes)


def _class(driver: Driver, name: str) -> Manifest:
    notes = {
        "volumeBindingMode": "A volume is made on the node that the scheduler has chosen for its first pod.",
        "reclaimPolicy": "A volume goes with its claim, and its data with it; Retain keeps both.",
        "allowVolumeExpansion": "A claim may ask for more later."
        if driver.storage_class(name)["allowVolumeExpansion"]
        else "The plugin cannot grow a volume.",
    }
    about = (
        f"Claims of this class get a volume of {driver.name}. Options of the plugin go under `parameters`, which can "
        "never be changed: a changed class needs another name."
    )
    return Manifest(driver.storage_class(name), about, notes)


# --- rights


def _rights(namespace: str, *, sidecars: bool) -> Iterator[Manifest]:
    account = {"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": namespace}
    if namespace not in _GIVEN:
        yield Manifest(_object("v1", "Namespace", namespace), "Where what provisions lives.")
    yield Manifest(
        _object("v1", "ServiceAccount", _ACCOUNT, namespace),
        "Who creates and deletes volumes; kubelet's own rights are not enough.",
    )
    for kind, where, rules, about in (
        ("ClusterRole", "", _cluster_rules(sidecars=sidecars), "Volumes and claims, in all namespaces."),
        ("Role", namespace, _own_rules(sidecars=sidecars), "How much room each node has, in this namespace alone."),
    ):
        role = _object(f"{_RBAC}/v1", kind, _ACCOUNT, where)
        yield Manifest({**role, "rules": rules}, about)
        binding = _object(f"{_RBAC}/v1", f"{kind}Binding", _ACCOUNT, where)
        reference = {"apiGroup": _RBAC, "kind": kind, "name": _ACCOUNT}
        yield Manifest({**binding, "roleRef": reference, "subjects": [account]}, "")


def _cluster_rules(*, sidecars: bool) -> list[Object]:
    own = [
        _rule("", "persistentvolumeclaims", *_READ, "patch"),
        _rule("", "persistentvolumeclaims/status", "patch"),
        _rule("", "persistentvolumes", *_READ, "create", "patch", "delete"),
        _rule("", "events", "create"),
        _rule("storage.k8s.io", "storageclasses", "list", "watch"),
        _rule("snapshot.storage.k8s.io", "volumesnapshots", "get"),
        _rule("snapshot.storage.k8s.io", "volumesnapshotcontents", "get"),
    ]
    if not sidecars:
        return own
    return [
        _rule("", "persistentvolumeclaims", *_READ, "update"),
        _rule("", "persistentvolumes", *_READ, "create", "patch", "delete"),
        _rule("", "nodes", *_READ),
        _rule("", "events", "list", "watch", "create", "update", "patch"),
        _rule("storage.k8s.io", "storageclasses", *_READ),
        _rule("storage.k8s.io", "csinodes", *_READ),
        _rule("storage.k8s.io", "volumeattachments", *_READ),
        _rule("storage.k8s.io", "volumeattributesclasses", *_READ),
        _rule("snapshot.storage.k8s.io", "volumesnapshots", "get", "list"),
        _rule("snapshot.storage.k8s.io", "volumesnapshotcontents", "get", "list"),
    ]


def _own_rules(*, sidecars: bool) -> list[Object]:
    if not sidecars:
        return [_rule("storage.k8s.io", "csistoragecapacities", "list", "create", "patch", "delete")]
    capacities = _rule("storage.k8s.io", "csistoragecapacities", *_READ, "create", "update", "patch", "delete")
    leases = _rule("coordination.k8s.io", "leases", *_READ, "create", "update", "delete")
    return [capacities, leases, _rule("", "pods", "get"), _rule("apps", "replicasets", "get")]


def _rule(group: str, resource: str, *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": [resource], "verbs": [*verbs]}


def _object(version: str, kind: str, name: str, namespace: str = "") -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


# --- the standard sidecar


def _sidecar(driver: Driver, kubelet: Path, namespace: str) -> Manifest:
    name = f"{driver.name.replace('.', '-')}-provisioner"
    folder = {"path": str(kubelet / "plugins" / driver.name), "type": "DirectoryOrCreate"}
    pod = {
        "serviceAccountName": _ACCOUNT,
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
        "containers": [_external_provisioner(capacity=driver.spec["storageCapacity"])],
        "volumes": [{"name": "socket", "hostPath": folder}],
    }
    about = (
        f"The standard external-provisioner for {driver.name}, on each node: it calls the daemon's socket and makes "
        "volumes for pods of its node. It runs as root since the socket is root's; where SELinux keeps it from the "
        "socket, it has to be privileged. It cannot grow volumes: no standard sidecar does so on each node."
    )
    return Manifest(_daemon_set(name, namespace, pod), about)


def _external_provisioner(*, capacity: bool) -> Object:
    """Return the container, which finds the driver's socket in the volume `socket`."""
    arguments = [
        "--csi-address=/csi/csi.sock",
        "--node-deployment=true",
        "--strict-topology=true",
        "--immediate-topology=false",
        f"--enable-capacity={'true' if capacity else 'false'}",
        "--capacity-ownerref-level=0",
        "--extra-create-metadata=false",
        "--timeout=110s",
    ]
    fields = {"NODE_NAME": "spec.nodeName", "NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name"}
    return {
        "name": "provisioner",
        "image": IMAGE,
        "args": arguments,
        "env": [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()],
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "socket", "mountPath": "/csi"}],
    }


def _daemon_set(name: str, namespace: str, pod: Object) -> Object:
    labels = {"app.kubernetes.io/name": name}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {**_object("apps/v1", "DaemonSet", name, namespace), "spec": spec}


# --- as YAML


def as_yaml(made: Iterable[Manifest]) -> str:
    """Write objects with their comments."""
    return "---\n".join(_written(one) for one in made)


def _written(one: Manifest) -> str:
    lines = list(_comment(one.about, 0))
    parents: list[str] = []
    for line in yaml.safe_dump(one.object, sort_keys=False, width=1000).splitlines():
        found = _KEY.match(line)
        if found is not None and len(found[1]) <= 2:
            depth = len(found[1]) // 2
            parents[depth:] = [found[2]]
            lines += _comment(one.notes.get(".".join(parents), ""), len(found[1]))
        lines.append(line)
    return "\n".join(lines) + "\n"


def _comment(text: str, indent: int) -> Iterator[str]:
    words, line = text.split(), ""
    for word in words:
        if line and len(line) + len(word) > 110 - indent:
            yield f"{' ' * indent}# {line}"
            line = ""
        line = f"{line} {word}".strip()
    if line:
        yield f"{' ' * indent}# {line}"


def as_list(made: Iterable[Manifest]) -> Any:
    """Return one object that has them all, which `kubectl apply` takes in JSON."""
    return {"apiVersion": "v1", "kind": "List", "items": [one.object for one in made]}
