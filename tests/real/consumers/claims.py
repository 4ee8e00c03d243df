"""Claims of a real cluster whose volumes a daemon makes: what their user and the scheduler do, and what they see.

Owns: a daemon with `loopfile` and a provisioner that has the rights of the printed manifests alone.
Refuses: to choose a node: which one a claim's first pod will run on is written by hand, as the scheduler would.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from tests.real.consumers.control_plane import ControlPlane

from nodeplug.contract.errors import PluginError
from nodeplug.testing import ScratchNode

CORE: Final = "/api/v1"
STORAGE: Final = "/apis/storage.k8s.io/v1"
CLAIMS: Final = f"{CORE}/namespaces/default/persistentvolumeclaims"
DRIVER: Final = "loopfile.nodeplug"
Object = dict[str, Any]


class Cluster:
    """What a user and the scheduler do, and what they see."""

    def __init__(self, control: ControlPlane, daemon: ScratchNode) -> None:
        self.control, self.daemon = control, daemon
        self.call = control.call
        self.node = control.node.name
        self.images = daemon.root / "images"

    def claim(self, name: str, size: str = "32Mi", node: str | None = None, **more: Any) -> None:
        annotations = {"volume.kubernetes.io/selected-node": node or self.node}
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": DRIVER,
            "resources": {"requests": {"storage": size}},
            **more,
        }
        self.until(f"the end of an earlier {name}", lambda: not self._ends(name))
        self.call("POST", CLAIMS, {"metadata": {"name": name, "annotations": annotations}, "spec": spec})

    def _ends(self, name: str) -> bool:
        """Tell whether a claim was deleted and is still there: a controller takes its finalizer away later."""
        try:
            return "deletionTimestamp" in self.get(name)["metadata"]
        except PluginError:
            return False

    def get(self, name: str) -> Object:
        return dict(self.call("GET", f"{CLAIMS}/{name}"))

    def patch(self, name: str, body: Object) -> None:
        found = self.get(name)
        merged = {**found, "spec": {**found["spec"], **body}}
        self.call("PUT", f"{CLAIMS}/{name}", merged)

    def delete(self, name: str) -> None:
        self.call("DELETE", f"{CLAIMS}/{name}")

    def volume_of(self, name: str) -> Object:
        return dict(self.call("GET", f"{CORE}/persistentvolumes/{self.get(name)['spec']['volumeName']}"))

    def until(self, what: str, holds: Callable[[], object], seconds: float = 60.0) -> None:
        late = time.monotonic() + seconds
        while not self._try(holds):
            if time.monotonic() > late:
                raise AssertionError(f"{what} did not come true; {self.daemon.status()['provisioner']}")
            time.sleep(0.1)

    def _try(self, holds: Callable[[], object]) -> object:
        try:
            return holds()
        except PluginError:
            return False

    def bound(self, name: str) -> Object:
        self.until(f"a volume for {name}", lambda: self.get(name).get("status", {}).get("phase") == "Bound")
        return self.volume_of(name)

    def events(self, name: str) -> str:
        found = self.call("GET", f"{CORE}/namespaces/default/events?fieldSelector=involvedObject.name%3D{name}")
        return "\n".join(f"{one['reason']}: {one['message']}" for one in found["items"])

    def names(self) -> list[str]:
        return sorted(path.name for path in self.images.glob("*.img"))

    def volumes(self) -> list[str]:
        """Return the names of all PersistentVolumes."""
        return [one["metadata"]["name"] for one in self.call("GET", f"{CORE}/persistentvolumes")["items"]]

    def capacities(self, key: str = "capacity") -> list[str]:
        """Return how much room this node has told the scheduler of; with `maximumVolumeSize`, for one volume."""
        return [one[key] for one in self._capacities() if key in one]

    def capacity_of_classes(self) -> dict[str, str]:
        """Return how much room this node has told the scheduler of, by StorageClass."""
        return {one["storageClassName"]: one["capacity"] for one in self._capacities()}

    def _capacities(self) -> list[Object]:
        found = self.call("GET", f"{STORAGE}/namespaces/kube-system/csistoragecapacities")["items"]
        mine = {f"{DRIVER}/node": self.node}
        return [one for one in found if one["nodeTopology"]["matchLabels"] == mine]


def plugins(control: ControlPlane, more: str = "") -> str:
    """Return the sections of the daemon: loopfile, with more of its keys, and the provisioner."""
    folder = control.node.folder
    return (
        f'[plugins.loopfile.config]\ndirectory = "{folder}/images"\nmax_size = "512Mi"\n{more}'
        f'[provisioner]\nkubeconfig = "{folder}/provisioner"\ncapacity_poll = "1s"\n'
    )


@contextmanager
def provisioning(
    control: ControlPlane,
    kubeconfig: Callable[[str], str] | None = None,
    more: str = "",
    *,
    fork: bool = False,
    env: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """Run a daemon that makes volumes.

    Args:
        control: of whose claims.
        kubeconfig: makes the provisioner's, of the token of its ServiceAccount; by default straight to the server.
        more: keys of loopfile.
        fork: start it quickly, and not on the node but in the namespaces of the test: for a daemon that mounts nothing.
        env: more environment for the daemon.
    """
    node = control.node
    supervisor = f'listen = ""\ncsi = true\ncsi_node_poll = "1s"\nnode_name = "{node.name}"'
    beside = None if fork else node.pid
    daemon = ScratchNode(node.folder, plugins(control, more), supervisor=supervisor, beside=beside, fork=fork, env=env)
    daemon.paths.plugins_registry.mkdir(parents=True)
    control.call("POST", f"{CORE}/nodes", {"metadata": {"name": node.name, "labels": {f"{DRIVER}/node": node.name}}})
    (node.folder / "provisioner").write_text((kubeconfig or partial(direct, control))(rights(control, daemon)))
    with daemon:
        yield Cluster(control, daemon)
    sys.stdout.write(daemon.log)  # shown when a test fails


def rights(control: ControlPlane, daemon: ScratchNode) -> str:
    """Apply what `nodeplug csi manifests` prints; return a token of the ServiceAccount."""
    printed = daemon.run("csi manifests", "--json")
    assert printed.returncode == 0, printed.stderr
    return apply(control, json.loads(printed.stdout)["items"])


def apply(control: ControlPlane, printed: Iterable[Object]) -> str:
    """Create objects, and return a token of the one ServiceAccount among them."""
    places = {
        "CSIDriver": f"{STORAGE}/csidrivers",
        "StorageClass": f"{STORAGE}/storageclasses",
        "ServiceAccount": f"{CORE}/namespaces/kube-system/serviceaccounts",
        "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles",
        "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings",
        "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    }
    accounts = []
    for one in printed:
        control.call("POST", places[one["kind"]], one)
        accounts += [one["metadata"]["name"]] if one["kind"] == "ServiceAccount" else []
    path = f"{places['ServiceAccount']}/{accounts[0]}/token"
    return str(control.call("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"])


def direct(control: ControlPlane, token: str) -> str:
    """Return a kubeconfig that leads to the server itself."""
    config = json.loads(control.kubeconfig)
    config["users"][0]["user"] = {"token": token}
    return json.dumps(config)
