"""A pod's data outlives the way from FlexVolume to CSI and back: real kubelet, scheduler, binder and API server.

One test goes the way that docs/migrating.md tells, command by command.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.real.consumers import ControlPlane, Lab
from tests.real.consumers.kubelet_process import pod

VOLUMES = "/api/v1/persistentvolumes/data"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
NAME = "loopfile.nodeplug"
CLAIMED = {"persistentVolumeClaim": {"claimName": "data"}}
pytestmark = [
    pytest.mark.soak,
    pytest.mark.parametrize("generation", ["current"], indirect=True, scope="session"),
]
PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
CONSOLE = "".join(re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL))
PLAN, APPLY, UNDO, SHOW, WRITE = (
    shlex.split(line[2:], comments=True)[3:] for line in CONSOLE.splitlines() if line.startswith("# nodeplug migrate")
)
"""What follows `nodeplug migrate flex-to-csi` in the commands of the page."""
TMPFS = "tmpfs.nodeplug"
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]], consumer: Callable[[str], Path]) -> Iterator[Lab]:
    with make_kubelet_lab(PUBLISHED, control_plane=consumer("kubernetes"), csi=True) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(lab: Lab) -> ControlPlane:
    """The cluster, which knows the drivers and has a FlexVolume with a claim."""
    made = lab.control_plane
    assert made is not None
    printed = json.loads(lab.daemon.run("csi manifests", "--json").stdout)["items"]
    for driver in [one for one in printed if one["kind"] == "CSIDriver"]:
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


def followed(lab: Lab, cluster: ControlPlane, words: list[str], **places: str) -> str:
    """Run a command of the page, in which only names and places are others, and return what it says."""
    there = {"node-1": lab.private.name, "/var/lib/nodeplug": str(lab.daemon.paths.state), **places}
    for named, here in there.items():
        words = [word.replace(named, here) for word in words]
    code, said = migrate(lab, cluster, *words)
    assert code == 0, said
    return said


def test_the_commands_of_the_page_lead_there_and_back_and_its_claim_is_bound_each_time(
    lab: Lab, cluster: ControlPlane, difference: Callable[[], list[str]]
) -> None:
    def claim() -> tuple[str, str, str]:
        found = cluster.call("GET", f"{CLAIMS}/data")
        (source,) = {"csi", "flexVolume"} & cluster.call("GET", VOLUMES)["spec"].keys()
        return found["metadata"]["uid"], found["status"]["phase"], source

    lab.run("writer", "echo kept > /data/file", volumes={"/data": CLAIMED})
    lab.kubelet.drop("writer")
    uid, *_ = claim()
    assert "default/data" in followed(lab, cluster, PLAN)
    assert claim() == (uid, "Bound", "flexVolume")
    for pods, words, source in (("there", APPLY, "csi"), ("back", UNDO, "flexVolume")):
        followed(lab, cluster, words)
        assert claim() == (uid, "Bound", source)
        lab.run(pods, volumes={"/data": CLAIMED})
        assert lab.kubelet.execute(pods, "/bin/cat", "/data/file") == "kept\n"
        lab.kubelet.drop(pods)
    (image,) = lab.private.folder.rglob("moved.img")
    image.unlink()
    assert difference() == []


def test_the_commands_of_the_page_rewrite_a_manifest_whose_pod_then_runs(
    lab: Lab, cluster: ControlPlane, difference: Callable[[], list[str]], tmp_path: Path
) -> None:
    file = tmp_path / "deployment.yaml"
    flexible = {"flexVolume": {"driver": "nodeplug/tmpfs", "options": {"size": "8Mi"}}}
    before = yaml.safe_dump(pod("rewritten", "", volumes={"/memory": flexible}))
    file.write_text(before)
    shown = followed(lab, cluster, SHOW, **{"deployment.yaml": str(file)})
    assert (f"driver: {TMPFS}" in shown, file.read_text()) == (True, before)
    followed(lab, cluster, WRITE, **{"deployment.yaml": str(file)})
    manifest = yaml.safe_load(file.read_text())
    assert manifest["spec"]["volumes"][0]["csi"] == {"driver": TMPFS, "volumeAttributes": {"size": "8Mi"}}
    lab.kubelet.put(manifest)
    lab.kubelet.running("rewritten")
    assert lab.mount_type("rewritten", "/memory") == "tmpfs"
    assert difference() == []
