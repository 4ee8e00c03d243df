"""`nodeplug csi manifests`: what a cluster needs for the volume drivers of a configuration."""

from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.unprivileged
STORE = """
from nodeplug import VolumeClaim, hookimpl

class Store:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return [VolumeClaim("acme/store"), VolumeClaim("nameless")]

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

    @hookimpl
    def volume_expand(self, request):
        raise NotImplementedError
"""
CONFIGURATION = """
[supervisor]
csi = true
plugin_user = "root"
[plugins.tmpfs]
isolation = "thread"
[plugins.store]
isolation = "thread"
uses = "store:Store"
"""

ARCHIVE = """
from nodeplug import VolumeClaim, hookimpl

class Archive:
    LOCAL = True

    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return [VolumeClaim("acme/archive", node_local=self.LOCAL)]

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
    def volume_snapshot(self, request):
        raise NotImplementedError

    @hookimpl
    def volume_snapshot_delete(self, request):
        raise NotImplementedError

class Shared(Archive):
    LOCAL = False
"""


@pytest.fixture
def node(node: Any) -> Any:
    (node.modules / "store.py").write_text(STORE)
    node.configure(CONFIGURATION)
    return node


def written(node: Any, *arguments: str) -> dict[str, Any]:
    """Return the objects by kind and name."""
    done = node.run("csi manifests", *arguments)
    assert done.returncode == 0, done.stderr
    return {f"{one['kind']} {one['metadata']['name']}": one for one in yaml.safe_load_all(done.stdout)}


def test_each_driver_has_a_csidriver_as_its_claim_says(node: Any) -> None:
    found = written(node)
    store, memory = found["CSIDriver store.acme"]["spec"], found["CSIDriver tmpfs.nodeplug"]["spec"]
    assert (store["volumeLifecycleModes"], store["fsGroupPolicy"]) == (["Persistent"], "File")
    assert (memory["volumeLifecycleModes"], memory["fsGroupPolicy"]) == (["Persistent", "Ephemeral"], "None")
    assert (store["storageCapacity"], memory["storageCapacity"]) == (True, False)
    assert not store["attachRequired"]


@pytest.mark.whole
def test_only_a_driver_that_creates_volumes_has_a_class(node: Any) -> None:
    classes = [one for one in written(node).values() if one["kind"] == "StorageClass"]
    (made,) = classes
    assert (made["metadata"]["name"], made["provisioner"]) == ("store.acme", "store.acme")
    assert made["volumeBindingMode"] == "WaitForFirstConsumer"
    assert made["allowVolumeExpansion"]


def test_where_nothing_is_created_nobody_gets_rights(node: Any) -> None:
    assert [*written(node, "--driver", "nodeplug/tmpfs")] == ["CSIDriver tmpfs.nodeplug"]


def test_a_class_can_have_another_name(node: Any) -> None:
    assert "StorageClass fast" in written(node, "--storage-class", "fast")
    refused = node.run("csi manifests", "--storage-class", "fast", "--driver", "tmpfs.nodeplug")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "for one driver that creates volumes, and none does" in refused.stderr


@pytest.mark.whole
def test_whoever_creates_volumes_has_rights_in_a_namespace_of_choice(node: Any) -> None:
    found = written(node, "--namespace", "storage")
    assert {"Namespace storage", "ServiceAccount nodeplug-provisioner"} < {*found}
    role = found["Role nodeplug-provisioner"]
    assert role["metadata"]["namespace"] == "storage"
    assert role["rules"][0]["resources"] == ["csistoragecapacities"]
    assert "Namespace kube-system" not in written(node)


def test_the_standard_sidecar_calls_the_socket_on_each_node(node: Any) -> None:
    pod = written(node, "--sidecars")["DaemonSet store-acme-provisioner"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["hostPath"]["path"] == "/var/lib/kubelet/plugins/store.acme"
    assert {"--node-deployment=true", "--strict-topology=true"} < {*pod["containers"][0]["args"]}


@pytest.fixture
def archive(node: Any) -> Any:
    """A driver that takes snapshots of volumes on its node, beside one that takes none."""
    (node.modules / "archive.py").write_text(ARCHIVE)
    node.configure(CONFIGURATION + '[plugins.archive]\nisolation = "thread"\nuses = "archive:Archive"\n')
    return node


def of_snapshots(found: dict[str, Any]) -> list[str]:
    return sorted(name for name in found if "Snapshot" in name or "snapshotter" in name)


TAKING = [
    "ClusterRole nodeplug-snapshotter",
    "ClusterRoleBinding nodeplug-snapshotter",
    "DaemonSet archive-acme-snapshotter",
    "ServiceAccount nodeplug-snapshotter",
    "VolumeSnapshotClass archive.acme",
]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], []),
        (["--snapshots"], TAKING),
        (["--sidecars"], TAKING),
        (["--sidecars", "--no-snapshots"], []),
        (["--sidecars", "--driver", "store.acme"], []),
    ],
)
def test_who_takes_snapshots_is_printed_for_drivers_that_have_them_where_it_is_asked_for(
    archive: Any, arguments: list[str], expected: list[str]
) -> None:
    assert of_snapshots(written(archive, *arguments)) == expected


def test_what_a_cluster_may_not_know_comes_last(archive: Any) -> None:
    assert [*written(archive, "--sidecars")][-1] == "VolumeSnapshotClass archive.acme"


def test_the_snapshotter_serves_its_own_node_by_the_drivers_socket(archive: Any) -> None:
    pod = written(archive, "--snapshots")["DaemonSet archive-acme-snapshotter"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["volumes"][0]["hostPath"]["path"] == "/var/lib/kubelet/plugins/archive.acme"
    assert pod["serviceAccountName"] == "nodeplug-snapshotter"
    assert "--node-deployment=true" in container["args"]
    assert [(one["name"], one["valueFrom"]["fieldRef"]["fieldPath"]) for one in container["env"]] == [
        ("NODE_NAME", "spec.nodeName")
    ]


def test_of_volumes_that_are_on_no_node_one_snapshotter_takes_all_snapshots(archive: Any) -> None:
    archive.configure('[plugins.archive]\nisolation = "thread"\nuses = "archive:Shared"\n')
    found = written(archive, "--snapshots")
    (container,) = found["DaemonSet archive-acme-snapshotter"]["spec"]["template"]["spec"]["containers"]
    assert "--leader-election=true" in container["args"]
    assert not any("node-deployment" in one for one in container["args"])
    assert found["Role nodeplug-snapshotter"]["rules"][0]["resources"] == ["leases"]


def test_snapshots_are_refused_where_no_driver_takes_them(node: Any) -> None:
    done = node.run("csi manifests", "--snapshots")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--snapshots is for drivers that take snapshots, and none does" in done.stderr


def test_each_object_is_written_out(archive: Any) -> None:
    assert "&id" not in archive.run("csi manifests", "--sidecars").stdout


def test_json_has_the_same_objects(node: Any) -> None:
    answer = node.json("csi manifests")
    assert answer["kind"] == "List"
    assert answer["items"] == [*written(node).values()]


def test_the_comments_say_what_can_never_be_changed(node: Any) -> None:
    lines = node.run("csi manifests").stdout.splitlines()
    fixed = [
        lines[number + 1].strip().partition(":")[0] for number, line in enumerate(lines) if "never be changed. " in line
    ]
    assert {*fixed} == {"attachRequired", "volumeLifecycleModes"}


def test_a_claim_without_a_driver_is_told(node: Any) -> None:
    assert "'nameless' has no vendor" in node.run("csi manifests").stderr


def test_a_driver_that_is_not_there_is_refused_with_those_that_are(node: Any) -> None:
    done = node.run("csi manifests", "--driver", "other")
    assert done.returncode == 1
    assert "no enabled plugin has a CSI driver 'other'; there are: store.acme, tmpfs.nodeplug" in done.stderr


def test_a_configuration_without_csi_is_told_so(node: Any) -> None:
    node.configure("[plugins.tmpfs]\n")
    done = node.run("csi manifests")
    assert done.returncode == 0
    assert "csi = true" in done.stderr
    node.configure("")
    assert "no plugin with a volume driver" in node.run("csi manifests").stderr
