"""`nodeplug csi status` on a node with a real kubelet and a real API server: what is wrong, and what mends it."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import ControlPlane, Lab

STORAGE = "/apis/storage.k8s.io/v1"
TMPFS = "tmpfs.nodeplug"
pytestmark = pytest.mark.parametrize("generation", ["current"], indirect=True, scope="session")
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]], consumer: Callable[[str], Path]) -> Iterator[Lab]:
    with make_kubelet_lab(PUBLISHED, control_plane=consumer("kubernetes"), csi=True) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(lab: Lab) -> ControlPlane:
    assert lab.control_plane is not None
    return lab.control_plane


@pytest.fixture
def status(lab: Lab, cluster: ControlPlane) -> Callable[..., tuple[int, Any]]:
    """Return exit status and answer."""

    def ask(*arguments: str) -> tuple[int, Any]:
        place = ["--kubeconfig", str(cluster.folder / "kubeconfig")]
        done = lab.daemon.run("csi status", "--json", *place, *arguments)
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    return ask


def described(answer: Any, name: str) -> dict[str, Any]:
    (found,) = [one for one in answer["drivers"] if one["driver"] == name]
    return dict(found)


def test_a_cluster_that_was_told_nothing_is_mended_by_what_the_command_says(
    lab: Lab, cluster: ControlPlane, status: Callable[..., tuple[int, Any]]
) -> None:
    lab.kubelet.wait_for("kubelet's word", lambda: described(status()[1], TMPFS)["csi_node"] is not None)
    code, answer = status()
    found = described(answer, TMPFS)
    assert (code, answer["node"], found["registered"], found["csi_driver"]) == (3, lab.private.name, True, None)
    (problem,) = found["problems"]
    assert problem.endswith(f"`nodeplug csi manifests --driver {TMPFS} | kubectl apply -f -`")
    printed = json.loads(lab.daemon.run("csi manifests", "--json", "--driver", TMPFS).stdout)
    for one in [one for one in printed["items"] if one["kind"] == "CSIDriver"]:
        cluster.call("POST", f"{STORAGE}/csidrivers", one)
    code, answer = status("--driver", TMPFS)
    assert (code, described(answer, TMPFS)["problems"]) == (0, [])


def test_a_field_that_can_never_be_changed_is_told_so(
    cluster: ControlPlane, status: Callable[..., tuple[int, Any]]
) -> None:
    cluster.call("POST", f"{STORAGE}/csidrivers", {"metadata": {"name": "loopfile.nodeplug"}, "spec": {}})
    code, answer = status("--driver", "loopfile.nodeplug")
    problems = "\n".join(described(answer, "loopfile.nodeplug")["problems"])
    assert code == 3
    assert "attachRequired is true and should be false, which can never be changed" in problems
    assert "kubectl delete csidriver loopfile.nodeplug" in problems


def test_the_volumes_of_this_node_are_shown(
    lab: Lab, cluster: ControlPlane, status: Callable[..., tuple[int, Any]]
) -> None:
    for name, node in (("here", lab.private.name), ("there", "another")):
        term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        spec = {
            "capacity": {"storage": "1Mi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": TMPFS, "volumeHandle": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}},
        }
        cluster.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})
    volumes = described(status()[1], TMPFS)["volumes"]
    assert [one["name"] for one in volumes] == ["here"]


def test_without_the_daemon_the_cluster_is_told_all_the_same(lab: Lab, status: Callable[..., tuple[int, Any]]) -> None:
    lab.daemon.kill()
    try:
        code, answer = status("--driver", TMPFS)
    finally:
        lab.daemon.start()
        lab.kubelet.wait_for("its drivers", lambda: all(one["registered"] for one in status()[1]["drivers"]))
    found = described(answer, TMPFS)
    assert (code, found["registered"], found["csi_driver"]) == (0, None, {"differences": []})


def test_without_an_api_server_the_error_says_where_it_was_looked_for(lab: Lab) -> None:
    done = lab.daemon.run("csi status", "--kubeconfig", "/nonexistent")
    assert done.returncode == 1
    assert "cannot read the kubeconfig /nonexistent" in done.stderr


def test_people_see_one_line_for_each_driver(lab: Lab, cluster: ControlPlane) -> None:
    done = lab.daemon.run("csi status", "--kubeconfig", str(cluster.folder / "kubeconfig"))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [TMPFS, "registered", "ok", "registered"] in [line[:4] for line in lines]
    assert ["loopfile.nodeplug", "registered", "wrong", "registered"] in [line[:4] for line in lines]
