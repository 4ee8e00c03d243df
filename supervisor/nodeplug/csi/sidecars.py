"""The standard sidecars beside a driver, as DaemonSets: who makes volumes, and who takes snapshots.

Owns: their releases and arguments. Each has a pod of its own on every node, which calls the daemon's socket.
Refuses: what they may do in the cluster (`manifests`), and snapshot-controller, which is the cluster's and no driver's.

Source of the arguments: README.md of kubernetes-csi/external-provisioner 6.3 ("Deployment on each node") and of
kubernetes-csi/external-snapshotter 8.6 ("Distributed Snapshotting").
"""

from pathlib import Path
from typing import Final

from nodeplug.csi.objects import Driver
from nodeplug.kubeapi.printed import Manifest, named
from nodeplug.kubeapi.resources import Object

PROVISIONER_IMAGE: Final = "registry.k8s.io/sig-storage/csi-provisioner:v6.3.0"
SNAPSHOTTER_IMAGE: Final = "registry.k8s.io/sig-storage/csi-snapshotter:v8.6.0"
_ROOT: Final = (
    "It runs as root since the socket is root's; where SELinux keeps it from the socket, it has to be privileged."
)
_PATIENCE: Final = "--timeout=110s"
"""A copy may take so long; what takes longer goes on, and the next call finds it."""


def provisioner(driver: Driver, kubelet: Path, namespace: str, account: str) -> Manifest:
    """Return the external-provisioner of a driver.

    Args:
        driver: whose volumes it makes.
        kubelet: its root folder on the nodes.
        namespace: of the DaemonSet.
        account: the ServiceAccount there.
    """
    arguments = [
        "--csi-address=/csi/csi.sock",
        "--node-deployment=true",
        "--strict-topology=true",
        "--immediate-topology=false",
        f"--enable-capacity={'true' if driver.spec['storageCapacity'] else 'false'}",
        "--capacity-ownerref-level=0",
        "--extra-create-metadata=false",
        _PATIENCE,
    ]
    fields = {"NODE_NAME": "spec.nodeName", "NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name"}
    about = (
        f"The standard external-provisioner for {driver.name}, on each node: it calls the daemon's socket and makes "
        f"volumes for pods of its node. {_ROOT} It cannot grow volumes: no standard sidecar does so on each node."
    )
    container = _container("provisioner", PROVISIONER_IMAGE, arguments, fields)
    return Manifest(_daemon_set(driver, kubelet, namespace, account, container), about)


def snapshotter(driver: Driver, kubelet: Path, namespace: str, account: str) -> Manifest:
    """Return the external-snapshotter's sidecar of a driver; the arguments are those of `provisioner`."""
    arguments = ["--csi-address=/csi/csi.sock", _PATIENCE]
    if driver.claim.node_local:
        arguments.append("--node-deployment=true")
        where = "takes snapshots of the volumes of its node. snapshot-controller says which these are, and needs "
        where += "--enable-distributed-snapshotting for it."
        fields = {"NODE_NAME": "spec.nodeName"}
    else:  # snapshot-controller gives these volumes to no node, and a sidecar for one node would find none of them
        arguments.append("--leader-election=true")
        where = "takes snapshots; one of them leads, since any node can take one of any volume."
        fields = {"POD_NAMESPACE": "metadata.namespace"}
    about = f"The standard csi-snapshotter for {driver.name}, on each node: it calls the daemon's socket and {where}"
    container = _container("snapshotter", SNAPSHOTTER_IMAGE, arguments, fields)
    return Manifest(_daemon_set(driver, kubelet, namespace, account, container), f"{about} {_ROOT}")


def _container(name: str, image: str, arguments: list[str], fields: dict[str, str]) -> Object:
    """Return a container that finds the driver's socket in the volume `socket`, and what it is told of its pod."""
    return {
        "name": name,
        "image": image,
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


def _daemon_set(driver: Driver, kubelet: Path, namespace: str, account: str, container: Object) -> Object:
    name = f"{driver.name.replace('.', '-')}-{container['name']}"
    folder = {"path": str(kubelet / "plugins" / driver.name), "type": "DirectoryOrCreate"}
    pod = {
        "serviceAccountName": account,
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "socket", "hostPath": folder}],
    }
    labels = {"app.kubernetes.io/name": name}
    template = {"metadata": {"labels": {**labels}}, "spec": pod}  # the same one twice would be written as a reference
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {**named("apps/v1", "DaemonSet", name, namespace), "spec": spec}
