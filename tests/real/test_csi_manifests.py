"""What `nodeplug csi manifests` prints, applied to a real API server that takes nothing which it does not know."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tests.real.consumers import ControlPlane

from nodeplug import PluginError
from nodeplug.csi.objects import FIXED

PLURALS = {
    "CSIDriver": "/apis/storage.k8s.io/v1/csidrivers",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/storage/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/storage/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/storage/rolebindings",
    "DaemonSet": "/apis/apps/v1/namespaces/storage/daemonsets",
}
STORE = """
from nodeplug import VolumeClaim, hookimpl

class Store:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        tokens = {"republish": True, "tokens": ("vault", "")}
        return [VolumeClaim("acme/store", fs_group="driver", inline=True, **tokens)]

    @hookimpl
    def volume_publish(self, request):
        raise NotImplementedError

    @hookimpl
    def volume_create(self, request):
        raise NotImplementedError

    @hookimpl
    def volume_delete(self, request):
        raise NotImplementedError

    @hookimpl
    def volume_capacity(self, request):
        raise NotImplementedError
"""
CONFIGURATION = """
version = 1
[supervisor]
csi = true
plugin_user = "root"
[plugins.loopfile]
[plugins.tmpfs]
[plugins.store]
uses = "store:Store"
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("configuration")
    (folder / "nodeplug.toml").write_text(CONFIGURATION)
    (folder / "store.py").write_text(STORE)

    def run(*arguments: str) -> list[dict[str, Any]]:
        place = ["--config", str(folder / "nodeplug.toml"), "--root", str(folder), "--namespace", "storage"]
        done = subprocess.run(
            [sys.executable, "-m", "nodeplug", "csi", "manifests", *place, *arguments],
            env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        return list(yaml.safe_load_all(done.stdout))

    return run


def holds(wanted: Any, found: Any) -> bool:
    """Whether an object has all that another one says."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(holds(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(wanted) == len(found) and all(map(holds, wanted, found))
    return bool(wanted == found)


@pytest.fixture(scope="module")
def applied(cluster: ControlPlane, printed: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return every object that was printed, each already in the cluster."""
    made = printed()
    there = {(one["kind"], one["metadata"]["name"]) for one in made}
    for one in [*made, *(one for one in printed("--sidecars") if (one["kind"], one["metadata"]["name"]) not in there)]:
        if one["kind"] == "VolumeSnapshotClass":  # see test_documented_snapshots.py: this cluster does not know it
            continue
        found = cluster.call("POST", f"{PLURALS[one['kind']]}?fieldValidation=Strict", one)
        assert holds(one, found), found
    return made


def test_the_api_server_keeps_each_object_as_it_was_printed(applied: list[dict[str, Any]]) -> None:
    kinds = [one["kind"] for one in applied]
    assert (kinds.count("CSIDriver"), kinds.count("StorageClass"), kinds.count("ClusterRole")) == (3, 2, 1)


def test_the_rights_of_the_standard_sidecar_are_accepted_too(
    cluster: ControlPlane, applied: list[dict[str, Any]], printed: Callable[..., list[dict[str, Any]]]
) -> None:
    for one in printed("--sidecars"):
        if one["kind"].endswith("Role"):
            path = f"{PLURALS[one['kind']]}/{one['metadata']['name']}"
            assert holds(one, cluster.call("PUT", f"{path}?fieldValidation=Strict", one))


CHANGES: dict[str, Any] = {
    "attachRequired": True,
    "volumeLifecycleModes": ["Persistent"],
    "podInfoOnMount": False,
    "fsGroupPolicy": "File",
    "storageCapacity": False,
    "requiresRepublish": False,
    "tokenRequests": [{"audience": "other"}],
}


@pytest.mark.parametrize("field", CHANGES)
def test_the_fields_that_are_called_fixed_are_those_that_the_api_server_does_not_change(
    cluster: ControlPlane, applied: list[dict[str, Any]], field: str
) -> None:
    path = f"{PLURALS['CSIDriver']}/store.acme"
    found = cluster.call("GET", path)
    found["spec"][field] = CHANGES[field]
    try:
        cluster.call("PUT", path, found)
        changed = True
    except PluginError as error:
        assert "immutable" in str(error)  # noqa: PT017 - the others succeed
        changed = False
    assert changed == (field not in FIXED)


def test_the_tested_fields_are_all_that_are_printed(applied: list[dict[str, Any]]) -> None:
    (store,) = [one for one in applied if one["metadata"]["name"] == "store.acme" and one["kind"] == "CSIDriver"]
    assert {*store["spec"]} == {*CHANGES}
