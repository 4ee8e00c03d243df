"""Claims, a real scheduler and a real kubelet: from a claim to a running pod, grown under it, copied, and gone.

The provisioner is the daemon's own; at the end the standard external-provisioner takes its place.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import ControlPlane, Lab
from tests.real.consumers.claims import apply, direct
from tests.real.consumers.ending import end
from tests.real.consumers.private_node import ENV

DRIVER = "loopfile.nodeplug"
CORE, STORAGE = "/api/v1", "/apis/storage.k8s.io/v1"
CLAIMS = f"{CORE}/namespaces/default/persistentvolumeclaims"
pytestmark = pytest.mark.parametrize("generation", ["current"], indirect=True, scope="session")
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]], consumer: Callable[[str], Path]) -> Iterator[Lab]:
    with make_kubelet_lab(PUBLISHED, control_plane=consumer("kubernetes"), authorization="RBAC", csi=True) as made:
        assert made.control_plane is not None
        with provisioning(made):
            for one in json.loads(made.daemon.run("csi manifests", "--json").stdout)["items"]:
                if one["kind"] in {"CSIDriver", "StorageClass"}:
                    made.control_plane.call(
                        "POST", f"{STORAGE}/{one['kind'].lower()}{'e' * (one['kind'] == 'StorageClass')}s", one
                    )
            fast = {"csi.storage.k8s.io/fstype": "xfs"}
            made.control_plane.call("POST", f"{STORAGE}/storageclasses", storage_class("xfs", fast))
            made.kubelet.wait_for("the driver in its CSINode", lambda: DRIVER in csi_node(made))
            yield made


def storage_class(name: str, parameters: Object) -> Object:
    return {
        "metadata": {"name": name},
        "provisioner": DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
        "parameters": parameters,
    }


@contextmanager
def provisioning(lab: Lab) -> Iterator[None]:
    """Let the daemon provision; it is started anew, since that is not changed under it."""
    path = lab.daemon.config_path
    before = path.read_text()
    path.write_text(f'{before}\n[provisioner]\nkubeconfig = "{lab.folder}/p/kubeconfig"\ncapacity_poll = "1s"\n')
    lab.daemon.stop()
    lab.daemon.start()
    yield
    path.write_text(before)
    lab.daemon.stop()
    lab.daemon.start()


def control(lab: Lab) -> ControlPlane:
    assert lab.control_plane is not None
    return lab.control_plane


def csi_node(lab: Lab) -> str:
    return str(control(lab).call("GET", f"{STORAGE}/csinodes/{lab.private.name}")["spec"].get("drivers"))


def claim(lab: Lab, name: str, size: str, storage: str = DRIVER, **more: Any) -> Object:
    """Make a claim, and return the source for a pod."""
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage, "resources": {"requests": {"storage": size}}}
    control(lab).call("POST", CLAIMS, {"metadata": {"name": name}, "spec": {**spec, **more}})
    return {"persistentVolumeClaim": {"claimName": name}}


def found(lab: Lab, name: str) -> Object:
    return dict(control(lab).call("GET", f"{CLAIMS}/{name}"))


def grow(lab: Lab, name: str, size: str) -> None:
    one = found(lab, name)
    one["spec"]["resources"]["requests"]["storage"] = size
    control(lab).call("PUT", f"{CLAIMS}/{name}", one)


def kilobytes(lab: Lab, pod: str) -> int:
    blocks, size = map(int, lab.kubelet.execute(pod, "/bin/stat", "-f", "-c", "%b %S", "/data").split())
    return blocks * size >> 10


def volumes(lab: Lab) -> list[str]:
    return [one["metadata"]["name"] for one in control(lab).call("GET", f"{CORE}/persistentvolumes")["items"]]


def gone(lab: Lab, *names: str) -> None:
    for name in names:
        control(lab).call("DELETE", f"{CLAIMS}/{name}")
    lab.kubelet.wait_for("the end of all volumes", lambda: not volumes(lab))


def test_a_pod_gets_a_volume_of_its_claim_which_grows_under_it_and_goes(
    lab: Lab, difference: Callable[[], list[str]]
) -> None:
    lab.run("writer", "echo kept > /data/file", volumes={"/data": claim(lab, "orders", "320Mi", "xfs")})
    assert lab.mount_type("writer", "/data") == "xfs"
    before = kilobytes(lab, "writer")
    grow(lab, "orders", "448Mi")
    lab.kubelet.wait_for("a larger filesystem", lambda: kilobytes(lab, "writer") > before + (100 << 10))
    lab.kubelet.wait_for("the claim's word", lambda: found(lab, "orders")["status"]["capacity"]["storage"] == "448Mi")
    assert lab.kubelet.execute("writer", "/bin/cat", "/data/file") == "kept\n"
    lab.kubelet.drop("writer")
    gone(lab, "orders")
    assert [line for line in difference() if ".img" in line] == []


@pytest.mark.soak
def test_a_claim_grows_while_no_pod_has_it_and_the_next_pod_sees_its_size(
    lab: Lab, difference: Callable[[], list[str]]
) -> None:
    source = claim(lab, "resting", "32Mi")
    lab.run("small", "echo kept > /data/file; sync", volumes={"/data": source})
    assert lab.mount_type("small", "/data") == "ext4"
    before = kilobytes(lab, "small")
    lab.kubelet.drop("small")
    grow(lab, "resting", "96Mi")
    (volume,) = volumes(lab)
    at = f"{CORE}/persistentvolumes/{volume}"
    lab.kubelet.wait_for(
        "a larger volume", lambda: control(lab).call("GET", at)["spec"]["capacity"]["storage"] == "96Mi"
    )
    lab.run("large", volumes={"/data": source})
    assert before + (56 << 10) < kilobytes(lab, "large") < 96 << 10
    assert lab.kubelet.execute("large", "/bin/cat", "/data/file") == "kept\n"
    lab.kubelet.wait_for("the claim's word", lambda: found(lab, "resting")["status"]["capacity"]["storage"] == "96Mi")
    lab.kubelet.drop("large")
    gone(lab, "resting")
    assert [line for line in difference() if ".img" in line] == []


def test_a_copy_of_a_claim_has_its_data_when_its_pod_has_ended(lab: Lab) -> None:
    lab.run("first", "echo original > /data/file; sync", volumes={"/data": claim(lab, "first", "32Mi")})
    lab.kubelet.drop("first")
    source = {"kind": "PersistentVolumeClaim", "name": "first"}
    lab.run("second", volumes={"/data": claim(lab, "second", "32Mi", dataSource=source)})
    assert lab.kubelet.execute("second", "/bin/cat", "/data/file") == "original\n"
    lab.kubelet.drop("second")
    gone(lab, "first", "second")


RARE = {
    ("storage.k8s.io", "volumeattributesclasses", "get"): "a claim that names one",
    ("storage.k8s.io", "csistoragecapacities", "update"): "when there is less room than before",
    ("storage.k8s.io", "csistoragecapacities", "delete"): "when a class has gone",
    ("", "events", "patch"): "when an event is repeated",
    ("snapshot.storage.k8s.io", "volumesnapshots", "get"): "a claim that is restored",
    ("snapshot.storage.k8s.io", "volumesnapshots", "list"): "with a driver that takes snapshots",
    ("snapshot.storage.k8s.io", "volumesnapshots", "watch"): "with a driver that takes snapshots",
    ("snapshot.storage.k8s.io", "volumesnapshots", "update"): "a claim that is restored",
    ("snapshot.storage.k8s.io", "volumesnapshotcontents", "get"): "a claim that is restored",
}
"""Rights that the standard provisioner need not use here, and when it does."""


@pytest.mark.soak
def test_the_standard_provisioner_takes_its_place_on_the_same_socket_with_the_printed_rights(
    lab: Lab, consumer: Callable[[str], Path], difference: Callable[[], list[str]]
) -> None:
    lab.run("ours", "echo ours > /data/file", volumes={"/data": claim(lab, "ours", "32Mi")})
    with standing_in(lab, consumer("provisioner") / "csi-provisioner") as given:
        lab.run("theirs", "echo theirs > /data/file; sync", volumes={"/data": claim(lab, "theirs", "32Mi")})
        assert lab.kubelet.execute("theirs", "/bin/cat", "/data/file") == "theirs\n"
        for name in ("theirs", "ours"):
            lab.kubelet.drop(name)
        source = {"kind": "PersistentVolumeClaim", "name": "theirs"}
        lab.run("copied", volumes={"/data": claim(lab, "copied", "32Mi", dataSource=source)})
        assert lab.kubelet.execute("copied", "/bin/cat", "/data/file") == "theirs\n"
        lab.kubelet.drop("copied")
        lab.kubelet.wait_for("how much room there is", lambda: owners(lab) == {"provisioner"})
        gone(lab, "theirs", "ours", "copied")  # it deletes what the daemon has made, too
    audited = list(control(lab).audited())
    assert {asked for asked, code in audited if code == HTTPStatus.FORBIDDEN} == set()  # enough
    assert given - {asked for asked, _ in audited} <= set(RARE)  # and no more
    assert [line for line in difference() if ".img" in line] == []


def owners(lab: Lab) -> set[str]:
    """Who owns what the scheduler is told of room: with whom it goes."""
    found = control(lab).call("GET", f"{STORAGE}/namespaces/kube-system/csistoragecapacities")["items"]
    return {owner["name"] for one in found for owner in one["metadata"].get("ownerReferences", [{"name": "nobody"}])}


@contextmanager
def standing_in(lab: Lab, program: Path) -> Iterator[set[tuple[str, str, str]]]:
    """Start the standard provisioner as the manifests say, while the daemon provisions nothing; yield its rights."""
    path = lab.daemon.config_path
    before = path.read_text()
    path.write_text(before.replace("[provisioner]", "[provisioner]\nenabled = false"))
    lab.daemon.stop()
    lab.daemon.start()
    clear_room(lab)
    printed = json.loads(
        lab.daemon.run("csi manifests", "--json", "--sidecars", "--no-snapshots", "--driver", DRIVER).stdout
    )["items"]
    rights = [one for one in printed if one["kind"] not in {"CSIDriver", "StorageClass", "DaemonSet"}]
    (template,) = [one["spec"]["template"] for one in printed if one["kind"] == "DaemonSet"]
    kubeconfig = lab.folder / "sidecar"
    kubeconfig.write_text(direct(control(lab), apply(control(lab), rights)))
    command, variables = sidecar(lab, template, program)
    said = lab.folder / "csi-provisioner.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--kubeconfig={kubeconfig}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**ENV, **variables},
        )
    try:
        yield allowed(rights)
    finally:
        end(process, 10)
        sys.stdout.write(said.read_text())  # shown when the test fails
        path.write_text(before)
        lab.daemon.stop()
        lab.daemon.start()


def sidecar(lab: Lab, template: Object, program: Path) -> tuple[list[str], dict[str, str]]:
    """Create a pod of the printed template, and return what its container executes, and in which environment.

    The pod waits for a scheduler that there is none of: no image is pulled here, and the program runs beside it.
    """
    metadata = {**template["metadata"], "name": "provisioner"}
    spec = {**template["spec"], "schedulerName": "nobody"}
    control(lab).call("POST", f"{CORE}/namespaces/kube-system/pods", {"metadata": metadata, "spec": spec})
    (container,) = template["spec"]["containers"]
    socket = lab.daemon.paths.plugins_registry.parent / "plugins" / DRIVER / "csi.sock"
    arguments = [one.replace("/csi/csi.sock", str(socket)) for one in container["args"]]
    assert f"--csi-address={socket}" in arguments
    variables = {"NODE_NAME": lab.private.name, "NAMESPACE": "kube-system", "POD_NAME": "provisioner"}
    assert {one["name"] for one in container["env"]} == set(variables)
    return lab.private.command(str(program), *arguments), variables


def clear_room(lab: Lab) -> None:
    """Delete what the daemon has told the scheduler of room, as an administrator who changes over does."""
    place = f"{STORAGE}/namespaces/kube-system/csistoragecapacities"
    for one in control(lab).call("GET", place)["items"]:
        control(lab).call("DELETE", f"{place}/{one['metadata']['name']}")


def allowed(printed: list[Object]) -> set[tuple[str, str, str]]:
    """Group, resource and verb of all rules of roles."""
    return {
        (group, resource, verb)
        for one in printed
        for rule in one.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
