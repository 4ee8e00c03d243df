"""A pod's data outlives the way from FlexVolume to CSI and back: real kubelet, scheduler, binder and API server."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import ControlPlane, Lab

VOLUMES = "/api/v1/persistentvolumes/data"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
NAME = "loopfile.nodeplug"
CLAIMED = {"persistentVolumeClaim": {"claimName": "data"}}
pytestmark = pytest.mark.parametrize("generation", ["current"], indirect=True, scope="session")
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]], consumer: Callable[[str], Path]) -> Iterator[Lab]:
    with make_kubelet_lab(PUBLISHED, control_plane=consumer("kubernetes"), csi=True) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(lab: Lab) -> ControlPlane:
    """The cluster, which knows the driver and has a FlexVolume with a claim."""
    made = lab.control_plane
    assert made is not None
    printed = json.loads(lab.daemon.run("csi manifests", "--json", "--driver", NAME).stdout)["items"]
    (driver,) = [one for one in printed if one["kind"] == "CSIDriver"]
    made.call("POST", "/apis/storage.k8s.io/v1/csidrivers", driver)
    shared: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    flex = {"driver": "nodeplug/loopfile", "fsType": "ext4", "options": {"name": "moved", "size": "32Mi"}}
    spec = {**shared, "capacity": {"storage": "32Mi"}, "flexVolume": flex}
    made.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "data"}, "spec": spec})
    wanted = {**shared, "volumeName": "data", "resources": {"requests": {"storage": "32Mi"}}}
    made.call("POST", CLAIMS, {"metadata": {"name": "data"}, "spec": wanted})
    return made


def migrate(lab: Lab, cluster: ControlPlane, *arguments: str) -> tuple[int, str]:
    place = ("--kubeconfig", str(cluster.folder / "kubeconfig"))
    done = lab.daemon.run("migrate flex-to-csi", *place, *arguments)
    return done.returncode, done.stdout + done.stderr


def test_the_data_of_a_claim_is_there_before_after_and_after_the_way_back(
    lab: Lab, cluster: ControlPlane, difference: Callable[[], list[str]]
) -> None:
    uid = cluster.call("GET", f"{CLAIMS}/data")["metadata"]["uid"]
    lab.run("flex", "echo from-flex > /data/file", volumes={"/data": CLAIMED})
    code, said = migrate(lab, cluster, "--apply")
    assert (code, "pod default/flex" in said) == (1, True)
    lab.kubelet.drop("flex")

    code, said = migrate(lab, cluster, "--node", lab.private.name, "--apply")
    assert code == 0, said
    assert cluster.call("GET", VOLUMES)["spec"]["csi"]["volumeHandle"] == "moved"
    lab.run("csi", "cat /data/file > /data/copy; echo from-csi >> /data/file", volumes={"/data": CLAIMED})
    assert lab.kubelet.execute("csi", "/bin/cat", "/data/copy") == "from-flex\n"
    lab.kubelet.drop("csi")

    code, said = migrate(lab, cluster, "--undo", str(lab.daemon.paths.state / "migration"))
    assert code == 0, said
    assert cluster.call("GET", VOLUMES)["spec"]["flexVolume"]["driver"] == "nodeplug/loopfile"
    lab.run("again", volumes={"/data": CLAIMED})
    assert lab.kubelet.execute("again", "/bin/cat", "/data/file") == "from-flex\nfrom-csi\n"
    lab.kubelet.drop("again")
    assert cluster.call("GET", f"{CLAIMS}/data")["metadata"]["uid"] == uid
    (image,) = lab.private.folder.rglob("moved.img")
    image.unlink()  # what a volume holds stays until its owner removes it
    assert difference() == []
