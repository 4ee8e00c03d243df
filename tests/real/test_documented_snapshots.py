"""The way through docs/csi.md from a claim to its snapshot and a claim that is restored from it.

The API server with its controllers, snapshot-controller, csi-snapshotter and the daemon are real, and each has the
rights of its ServiceAccount alone. kubectl, the scheduler, and what kubelet does with a pod's volume are acted out.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.real.consumers import ControlPlane
from tests.real.consumers.claims import DRIVER, Cluster, Object, plugins, provisioning
from tests.real.consumers.snapshotter import apply, apply_kustomization, items, running

from nodeplug import Pod
from nodeplug.testing import CsiCaller, CsiVolume

PAGE = (Path(__file__).parents[2] / "docs" / "csi.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Snapshots\n")[2].partition("\n## ")[0]
SNAPSHOTS = "/apis/snapshot.storage.k8s.io/v1"
POD = Pod(name="pod", namespace="default", uid="uid-1")


def written(kind: str, page: str = SECTION) -> Object:
    """Return the first object of a kind on the page; without the page, of its section about snapshots."""
    texts = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    return dict(next(one for text in texts if (one := yaml.safe_load(text)).get("kind") == kind))


@pytest.fixture(scope="module")
def programs(consumer: Callable[[str], Path]) -> Path:
    """The folder of csi-snapshotter and snapshot-controller."""
    return consumer("snapshotter")


@pytest.fixture(scope="module")
def cluster(programs: Path, cluster: ControlPlane) -> Iterator[Cluster]:
    """A daemon with a provisioner, and all that the page installs for snapshots."""
    apply_kustomization(cluster, written("Kustomization"), programs / "published")
    deployment = cluster.call("GET", "/apis/apps/v1/namespaces/kube-system/deployments/snapshot-controller")
    env = {"PYTHONPATH": str(Path(__file__).parent)}
    with provisioning(cluster, env=env) as made, running(cluster, programs / "snapshot-controller", deployment, {}):
        (command,) = re.findall(r"^# nodeplug (.*) \| kubectl apply -f -$", SECTION, flags=re.MULTILINE)
        first, second, *words = shlex.split(command)
        printed = made.daemon.run(f"{first} {second}", "--json", *words)
        assert printed.returncode == 0, printed.stderr
        made.until("the kinds", lambda: made.call("GET", f"{SNAPSHOTS}/volumesnapshotclasses"))
        apply(cluster, items(printed.stdout))
        sidecar = named(items(printed.stdout), "loopfile-nodeplug-snapshotter")
        with running(cluster, programs / "csi-snapshotter", sidecar, {"NODE_NAME": made.node}, called(made)):
            yield made


def named(objects: list[Object], name: str) -> Object:
    (found,) = [one for one in objects if one["metadata"]["name"] == name]
    return found


def called(cluster: Cluster, driver: str = DRIVER) -> dict[str, str]:
    """Return where the driver's socket is on the node, by how a sidecar's pod calls it."""
    socket = cluster.daemon.paths.plugins_registry.parent / "plugins" / driver / "csi.sock"
    return {"--csi-address=/csi/csi.sock": f"--csi-address={socket}"}


def claimed(cluster: Cluster, claim: Object, size: str = "64Mi") -> str:
    """Create a claim of the page, smaller: the disk of a test may not have that much; return its name."""
    name = str(claim["metadata"]["name"])
    cluster.claim(name, **{**claim["spec"], "resources": {"requests": {"storage": size}}})
    cluster.bound(name)
    return name


@contextmanager
def mounted(cluster: Cluster, claim: str) -> Iterator[str]:
    """Let a pod have the volume of a claim; return where its file is."""
    volume = cluster.volume_of(claim)
    name, csi = volume["metadata"]["name"], volume["spec"]["csi"]
    caller = CsiCaller(cluster.daemon.paths.plugins_registry.parent, DRIVER, node=cluster.node)
    source = CsiVolume(name, csi.get("volumeAttributes", {}), csi["volumeHandle"], fs_type=csi.get("fsType", ""))
    yield f"{caller.mount(POD, source)}/file"
    caller.unmount(POD, name)


def write(cluster: Cluster, path: str, text: str) -> None:
    cluster.control.node.run("sh", "-c", 'printf %s "$1" >"$2"', "sh", text, path)


def read(cluster: Cluster, claim: str) -> str:
    with mounted(cluster, claim) as path:
        return cluster.control.node.run("cat", path)


def status(cluster: Cluster, snapshot: str) -> Object:
    path = f"{SNAPSHOTS}/namespaces/default/volumesnapshots/{snapshot}"
    return dict(cluster.call("GET", path).get("status") or {})


def is_taken(cluster: Cluster, snapshot: str) -> bool:
    return bool(status(cluster, snapshot).get("readyToUse"))


def error(cluster: Cluster, snapshot: str) -> str:
    return str(status(cluster, snapshot).get("error", {}).get("message", ""))


@pytest.fixture(scope="module")
def taken(cluster: Cluster) -> str:
    """The snapshot of the page, taken of its claim, in which a file was written before and changed after it."""
    orders = claimed(cluster, written("PersistentVolumeClaim", PAGE))
    snapshot = written("VolumeSnapshot")
    name = str(snapshot["metadata"]["name"])
    with mounted(cluster, orders) as path:
        write(cluster, path, "before")
        apply(cluster.control, [{**snapshot, "metadata": {"name": name, "namespace": "default"}}])
        cluster.until("an answer", lambda: is_taken(cluster, name) or "is in use" in error(cluster, name))
    # On a disk that shares blocks it was taken at once; on another it is now that the pod has ended.
    cluster.until("the snapshot", lambda: is_taken(cluster, name))
    with mounted(cluster, orders) as path:
        write(cluster, path, "after")
    return name


@pytest.mark.soak
def test_a_snapshot_that_only_names_somebodys_content_is_no_source(cluster: Cluster, taken: str) -> None:
    content = status(cluster, taken)["boundVolumeSnapshotContentName"]
    snapshots = f"{SNAPSHOTS}/namespaces/default/volumesnapshots"
    made = written("VolumeSnapshot") | {"metadata": {"name": "thief", "namespace": "default"}}
    apply(cluster.control, [made | {"spec": {"source": {"volumeSnapshotContentName": content}}}])
    told = {"status": {"boundVolumeSnapshotContentName": content, "readyToUse": True}}
    cluster.call("PATCH", f"{snapshots}/thief/status", told, content="application/merge-patch+json")
    source = written("PersistentVolumeClaim")["spec"]["dataSource"] | {"name": "thief"}
    cluster.claim("loot", "64Mi", dataSource=source)
    cluster.until("the refusal", lambda: "is not bound to its content" in cluster.events("loot"))
    cluster.delete("loot")
    cluster.call("DELETE", f"{snapshots}/thief")


def snapshots_on_disk(cluster: Cluster) -> list[str]:
    return [path.name for path in (cluster.images / "snapshots").glob("*.img")]


def test_the_restored_claim_of_the_page_has_what_the_other_had_before_its_snapshot(
    cluster: Cluster, taken: str
) -> None:
    restored = claimed(cluster, written("PersistentVolumeClaim"))
    assert (read(cluster, restored), read(cluster, "orders")) == ("before", "after")
    cluster.delete(restored)


def test_the_standard_provisioner_restores_it_with_the_rights_of_its_manifests(
    cluster: Cluster, taken: str, consumer: Callable[[str], Path]
) -> None:
    with standing_in(cluster, consumer("provisioner") / "csi-provisioner"):
        restored = claimed(cluster, written("PersistentVolumeClaim"))
        assert read(cluster, restored) == "before"
        cluster.delete(restored)
        cluster.until("its end", lambda: len(cluster.names()) == 1)


@contextmanager
def standing_in(cluster: Cluster, program: Path) -> Iterator[None]:
    """Let the standard provisioner make volumes, as the manifests say, while the daemon makes none."""
    path, kept = cluster.daemon.config_path, cluster.daemon.config_path.read_text()
    path.write_text(kept.replace("[provisioner]", "[provisioner]\nenabled = false"))
    cluster.daemon.stop()
    cluster.daemon.start()
    objects = items(cluster.daemon.run("csi manifests", "--json", "--sidecars").stdout)
    apply(cluster.control, objects)
    sidecar = named(objects, "loopfile-nodeplug-provisioner")
    variables = {"NODE_NAME": cluster.node, "NAMESPACE": "kube-system", "POD_NAME": "provisioner"}
    # No pod runs it here that could own its objects.
    changes = {**called(cluster), "--capacity-ownerref-level=0": "--capacity-ownerref-level=-1"}
    try:
        with running(cluster.control, program, sidecar, variables, changes):
            yield
    finally:
        path.write_text(kept)
        cluster.daemon.stop()
        cluster.daemon.start()


def test_a_snapshot_outlives_its_claim_and_goes_with_its_object(cluster: Cluster, taken: str) -> None:
    cluster.delete("orders")
    cluster.until("the end of all volumes", lambda: not cluster.names())
    assert len(snapshots_on_disk(cluster)) == 1
    assert read(cluster, claimed(cluster, written("PersistentVolumeClaim"), "96Mi")) == "before"
    cluster.call("DELETE", f"{SNAPSHOTS}/namespaces/default/volumesnapshots/{taken}")
    cluster.until("the end of the snapshot", lambda: not snapshots_on_disk(cluster))
    cluster.until(
        "the end of its objects", lambda: not cluster.call("GET", f"{SNAPSHOTS}/volumesnapshotcontents")["items"]
    )
    cluster.delete("orders-again")
    cluster.until("the end", lambda: not cluster.names())


EVERYWHERE = "everywhere.acme"
SECTIONS = """
[plugins.everywhere]
uses = "everywhere:Everywhere"
config = {{ folder = "{folder}" }}
"""


@pytest.fixture
def everywhere(cluster: Cluster, programs: Path) -> Iterator[Path]:
    """The folder of a driver whose volumes are on no node, which has what the manifests say."""
    folder = cluster.daemon.root / "everywhere"
    cluster.daemon.configure(plugins(cluster.control, SECTIONS.format(folder=folder)))
    cluster.until("the driver", lambda: EVERYWHERE in {one["driver"] for one in cluster.daemon.status()["csi"]})
    objects = items(cluster.daemon.run("csi manifests", "--json", "--snapshots", "--driver", EVERYWHERE).stdout)
    apply(cluster.control, objects)
    sidecar, variables = named(objects, "everywhere-acme-snapshotter"), {"POD_NAMESPACE": "kube-system"}
    program = programs / "csi-snapshotter"
    with running(cluster.control, program, sidecar, variables, called(cluster, EVERYWHERE)):
        yield folder
    cluster.daemon.configure(plugins(cluster.control))
    cluster.until("its end", lambda: len(cluster.daemon.status()["csi"]) == 1)


def test_a_snapshot_of_a_volume_that_is_on_no_node_is_taken_by_the_sidecar_that_leads(
    cluster: Cluster, everywhere: Path
) -> None:
    cluster.claim("anywhere", storageClassName=EVERYWHERE)
    volume = cluster.bound("anywhere")["metadata"]["name"]
    spec = {"volumeSnapshotClassName": EVERYWHERE, "source": {"persistentVolumeClaimName": "anywhere"}}
    metadata = {"name": "of-all", "namespace": "default"}
    apply(cluster.control, [written("VolumeSnapshot") | {"metadata": metadata, "spec": spec}])
    cluster.until("the snapshot", lambda: is_taken(cluster, "of-all"))
    assert [path.read_text() for path in everywhere.glob("*.snapshot")] == [volume]
    cluster.call("DELETE", f"{SNAPSHOTS}/namespaces/default/volumesnapshots/of-all")
    cluster.until("its end", lambda: not [*everywhere.glob("*.snapshot")])
    cluster.delete("anywhere")
    cluster.until("the end", lambda: volume not in cluster.volumes())
