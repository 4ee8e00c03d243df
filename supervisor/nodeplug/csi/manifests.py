"""What an administrator applies to a cluster once.

Owns: which objects these are, and in which order; the rights of nodeplug's own provisioner, and of the standard
sidecars.
Refuses: to apply anything, and snapshot-controller with its definitions, which are the cluster's and no driver's.

Source of the sidecars' rights: what the provisioner uses with the printed arguments (deploy/kubernetes/rbac.yaml of
kubernetes-csi/external-provisioner 6.3 has more, for other arguments and drivers), and
deploy/kubernetes/csi-snapshotter/rbac-csi-snapshotter.yaml of kubernetes-csi/external-snapshotter 8.6.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from nodeplug.csi import sidecars as standard
from nodeplug.csi.objects import Driver
from nodeplug.kubeapi.printed import Manifest, named
from nodeplug.kubeapi.resources import Object
from nodeplug.kubeapi.rights import account, role, rule

_PROVISIONER: Final = "nodeplug-provisioner"
_SNAPSHOTTER: Final = "nodeplug-snapshotter"
_SNAPSHOTS: Final = "snapshot.storage.k8s.io"
_READ: Final = ("get", "list", "watch")
_GIVEN: Final = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
"""Namespaces that every cluster has."""


def manifests(
    drivers: Iterable[Driver],
    kubelet: Path,
    namespace: str,
    classes: Mapping[str, str],
    *,
    sidecars: bool,
    snapshots: bool,
) -> list[Manifest]:
    """Return all that a cluster needs for these drivers, in the order in which it is applied.

    What a cluster may not know, as one without the definitions of snapshots does not, is last.

    Args:
        drivers: what the node's plugins claim.
        kubelet: its root folder on the nodes.
        namespace: of what provisions.
        classes: names of StorageClasses, by driver; a driver without one gets its own name.
        sidecars: provision by the standard external-provisioner instead of by nodeplug.
        snapshots: let the standard csi-snapshotter take snapshots, which nodeplug leaves to it in any case.
    """
    every = list(drivers)
    provisioning = [one for one in every if one.provisions]
    taking = [one for one in every if one.takes_snapshots] if snapshots else []
    made = [_driver(one) for one in every]
    if provisioning and namespace not in _GIVEN:
        made.append(Manifest(named("v1", "Namespace", namespace), "Where what provisions lives."))
    if provisioning:
        made += _provisioner_rights(namespace, sidecars=sidecars)
        made += [_class(one, classes.get(one.name, one.name)) for one in provisioning]
    if taking:
        made += _snapshotter_rights(namespace, lead=not all(one.claim.node_local for one in taking))
    if sidecars:
        made += [standard.provisioner(one, kubelet, namespace, _PROVISIONER) for one in provisioning]
    made += [standard.snapshotter(one, kubelet, namespace, _SNAPSHOTTER) for one in taking]
    return made + [_snapshot_class(one) for one in taking]


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


def _snapshot_class(driver: Driver) -> Manifest:
    about = (
        f"VolumeSnapshots of this class are of volumes of {driver.name}. The cluster knows this kind once it has the "
        "external-snapshotter's definitions."
    )
    notes = {"deletionPolicy": "A snapshot goes with its VolumeSnapshot, and its data with it; Retain keeps both."}
    return Manifest(driver.snapshot_class, about, notes)


# --- rights


def _provisioner_rights(namespace: str, *, sidecars: bool) -> Iterator[Manifest]:
    about = "Who creates and deletes volumes; kubelet's own rights are not enough."
    yield Manifest(named("v1", "ServiceAccount", _PROVISIONER, namespace), about)
    about = "Volumes and claims of all namespaces, and nodes."
    yield from role(_PROVISIONER, account(_PROVISIONER, namespace), _cluster_rules(sidecars=sidecars), about)
    about = "How much room each node has, in this namespace alone."
    yield from role(_PROVISIONER, account(_PROVISIONER, namespace), _own_rules(sidecars=sidecars), about, namespace)


def _snapshotter_rights(namespace: str, *, lead: bool) -> Iterator[Manifest]:
    yield Manifest(named("v1", "ServiceAccount", _SNAPSHOTTER, namespace), "Who takes and deletes snapshots.")
    rules = [
        rule("", "events", "list", "watch", "create", "update", "patch"),
        rule(_SNAPSHOTS, "volumesnapshotclasses", *_READ),
        rule(_SNAPSHOTS, "volumesnapshotcontents", *_READ, "update", "patch"),
        rule(_SNAPSHOTS, "volumesnapshotcontents/status", "update", "patch"),
    ]
    yield from role(
        _SNAPSHOTTER, account(_SNAPSHOTTER, namespace), rules, "What is known of a snapshot, in all namespaces."
    )
    if lead:
        about = "Which of them leads, for drivers whose volumes are on no node; in this namespace alone."
        yield from role(_SNAPSHOTTER, account(_SNAPSHOTTER, namespace), [_LEASES], about, namespace)


def _cluster_rules(*, sidecars: bool) -> list[Object]:
    own = [
        rule("", "persistentvolumeclaims", *_READ, "patch"),
        rule("", "persistentvolumeclaims/status", "patch"),
        rule("", "persistentvolumes", *_READ, "create", "patch", "delete"),
        rule("", "events", "create"),
        rule("", "nodes", "get"),
        rule("storage.k8s.io", "storageclasses", "list", "watch"),
        rule("storage.k8s.io", "csinodes", "get"),
        rule(_SNAPSHOTS, "volumesnapshots", "get"),
        rule(_SNAPSHOTS, "volumesnapshotcontents", "get"),
    ]
    if not sidecars:
        return own
    return [
        rule("", "persistentvolumeclaims", "list", "watch", "update"),
        rule("", "persistentvolumes", *_READ, "create", "patch", "delete"),
        rule("", "events", "create", "patch"),
        rule("storage.k8s.io", "storageclasses", "list", "watch"),
        rule("storage.k8s.io", "volumeattributesclasses", "get"),
        rule(_SNAPSHOTS, "volumesnapshots", *_READ, "update"),
        rule(_SNAPSHOTS, "volumesnapshotcontents", "get"),
    ]


def _own_rules(*, sidecars: bool) -> list[Object]:
    if not sidecars:
        return [rule("storage.k8s.io", "csistoragecapacities", "list", "create", "patch", "delete")]
    capacities = rule("storage.k8s.io", "csistoragecapacities", "list", "watch", "create", "update", "delete")
    return [capacities, rule("", "pods", "get")]


_LEASES: Final = rule("coordination.k8s.io", "leases", *_READ, "create", "update", "delete")
