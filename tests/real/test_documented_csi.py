"""The way through docs/csi.md on a real API server: from an enabled driver to a claim that is bound, grown and copied.

The scheduler is acted out: a claim gets the node of its first pod. So is `kubectl apply` where the page has it after a
pipe; what it has as a script is run.
What the page says of pods is in tests/node/csi/test_csi_documented.py, of snapshots in test_documented_snapshots.py.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.programs import need
from tests.real.consumers import ControlPlane
from tests.real.consumers.claims import CORE, DRIVER, Cluster, Object, provisioning
from tests.real.consumers.private_node import ENV

from nodeplug.testing import CsiCaller

PAGE = re.sub(
    r"\n## Snapshots\n.*?(?=\n## )",
    "",
    (Path(__file__).parents[2] / "docs" / "csi.md").read_text(encoding="utf-8"),
    flags=re.DOTALL,
)
"""Without the part about snapshots."""
COMMANDS = [line[2:] for line in PAGE.splitlines() if line.startswith("# nodeplug ")]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def written(kind: str) -> Object:
    """Return the object of a kind that the page shows."""
    (found,) = [one for text in blocks("yaml") if (one := yaml.safe_load(text)).get("kind") == kind]
    return dict(found)


@pytest.fixture(scope="module")
def cluster(cluster: ControlPlane) -> Iterator[Cluster]:
    """A daemon with the page's own sections, in which only the places are others."""
    (text,) = [text for text in blocks("toml") if "[provisioner]" in text]
    sections = text[text.index("[provisioner]") :]
    folder = cluster.node.folder
    with provisioning(cluster, lambda _: written_by_the_script(cluster)) as made:
        places = {"/etc/nodeplug/kubeconfig": f"{folder}/provisioner", "/srv/volumes": f"{folder}/images"}
        for named, here in places.items():
            assert named in sections
            sections = sections.replace(named, here)
        made.daemon.configure(sections)
        yield made


def written_by_the_script(control: ControlPlane) -> str:
    """Return the kubeconfig that the page's script writes, run as an administrator who has the manifests applied."""
    need("kubectl")
    (script,) = blocks("sh")
    folder = control.folder / "administrator"
    folder.mkdir()
    env = {**ENV, "HOME": str(folder), "KUBECONFIG": str(control.folder / "kubeconfig")}
    command = control.node.command("sh", "-euc", f"cd {folder}\n{script}")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "kubeconfig").stat().st_mode & 0o777 == 0o600
    return (folder / "kubeconfig").read_text()


def claimed(cluster: Cluster, name: str, **more: object) -> None:
    """Create the claim of the page by a name, and smaller: the disk of a test may not have that much."""
    spec = written("PersistentVolumeClaim")["spec"]
    cluster.claim(name, **{**spec, "resources": {"requests": {"storage": "64Mi"}}, **more})


def test_the_claim_of_the_page_is_bound_grows_and_is_copied_as_it_says(cluster: Cluster) -> None:
    name = written("PersistentVolumeClaim")["metadata"]["name"]
    claimed(cluster, name)
    assert cluster.bound(name)["spec"]["capacity"]["storage"] == "64Mi"
    cluster.patch(name, {"resources": {"requests": {"storage": "96Mi"}}})
    cluster.until("growth", lambda: cluster.volume_of(name)["spec"]["capacity"]["storage"] == "96Mi")
    (source,) = re.findall(r"`dataSource: (\{.*?\})`", PAGE)
    claimed(cluster, "copy", dataSource=yaml.safe_load(source), resources={"requests": {"storage": "96Mi"}})
    assert cluster.bound("copy")["spec"]["capacity"]["storage"] == "96Mi"
    for one in (name, "copy"):
        cluster.delete(one)
    cluster.until("their end", lambda: not cluster.names())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs_as_it_stands_there(cluster: Cluster, command: str) -> None:
    program, *words = shlex.split(command.partition(" | ")[0])
    assert program == "nodeplug"
    config = str(cluster.control.folder / "kubeconfig")
    words = [config if word == "/etc/kubernetes/admin.conf" else word for word in words]
    done = cluster.daemon.run(" ".join(words[:2]), *words[2:])
    # Nobody but a kubelet registers a driver, and there is none: that is what `csi status` finds wrong.
    assert (done.returncode, "loopfile.nodeplug" in done.stdout) == (3 if "status" in words else 0, True), done.stderr


def test_the_page_has_commands() -> None:
    assert [shlex.split(one)[2] for one in COMMANDS] == ["manifests", "status"]


@pytest.mark.parametrize(("group", "resource"), [("storage.k8s.io", "csinodes"), ("", "nodes")])
def test_kubelet_s_own_credentials_may_read_what_the_daemon_looks_at(
    cluster: Cluster, group: str, resource: str
) -> None:
    asked = {"verb": "get", "group": group, "resource": resource, "name": cluster.node}
    who = {"user": f"system:node:{cluster.node}", "groups": ["system:nodes", "system:authenticated"]}
    spec = {**who, "resourceAttributes": asked}
    review = cluster.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    assert review["status"]["allowed"], review


def test_the_printed_rights_let_the_daemon_see_that_the_cluster_has_no_driver(cluster: Cluster) -> None:
    """There is no kubelet that would write the CSINode."""
    CsiCaller(cluster.daemon.paths.plugins_registry.parent, DRIVER).register()
    said = f"the CSINode {cluster.node} does not list it"
    cluster.until("the daemon's look", lambda: said in cluster.daemon.status()["csi"][0]["problem"])


def test_the_volume_that_is_written_by_hand_is_taken_by_the_api_server(cluster: Cluster) -> None:
    volume = written("PersistentVolume")
    cluster.call("POST", f"{CORE}/persistentvolumes", volume)
    found = cluster.call("GET", f"{CORE}/persistentvolumes/{volume['metadata']['name']}")
    assert found["spec"]["csi"] == volume["spec"]["csi"]
    cluster.call("DELETE", f"{CORE}/persistentvolumes/{volume['metadata']['name']}")
