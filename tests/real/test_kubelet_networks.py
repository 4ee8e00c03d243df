"""A pod of a real kubelet with three networks: containerd passes its annotations on, its object says what it got."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import ControlPlane, Lab
from tests.real.consumers.claims import direct
from tests.real.consumers.kubelet_process import pod
from tests.real.consumers.network_objects import define, network, page, prepare, reason, status_of

pytestmark = pytest.mark.parametrize("generation", ["current"], indirect=True, scope="session")
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"
KEY = "k8s.v1.cni.cncf.io/networks"
SECTIONS = """
[plugins.networks.config]
conf_dir = "{conf}"
[networks]
kubeconfig = "{folder}/networks"
"""


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]], consumer: Callable[[str], Path]) -> Iterator[Lab]:
    with (
        make_kubelet_lab(PUBLISHED, control_plane=consumer("kubernetes"), authorization="RBAC") as made,
        networked(made, control(made)),
    ):
        yield made


def control(lab: Lab) -> ControlPlane:
    assert lab.control_plane is not None
    return lab.control_plane


@contextmanager
def networked(lab: Lab, cluster: ControlPlane) -> Iterator[None]:
    """Make ours the first configuration of the runtime, as an administrator would; the network of pods stays."""
    path, folder = lab.daemon.config_path, lab.folder
    before = path.read_text()
    (folder / "networks").write_text(direct(cluster, prepare(cluster)))
    first = {"type": "nodeplug-networks", "clusterNetwork": json.loads(PUBLISHED.read_text())["name"]}
    first["capabilities"] = {"io.kubernetes.cri.pod-annotations": True}
    conflist = folder / "00-networks.conflist"
    conflist.write_text(json.dumps({"cniVersion": "1.0.0", "name": "networks", "plugins": [first]}))
    path.write_text(before + SECTIONS.format(folder=folder, conf=lab.daemon.paths.cni_conf))
    restart(lab)
    install(lab, PUBLISHED, conflist)
    yield
    lab.kubelet.clear()
    install(lab, PUBLISHED)
    path.write_text(before)
    restart(lab)


def install(lab: Lab, *conflists: Path) -> None:
    done = lab.daemon.run("install", *(word for one in conflists for word in ("--conflist", str(one))))
    assert done.returncode == 0, done.stderr


def restart(lab: Lab) -> None:
    lab.daemon.stop()
    lab.daemon.start()


def wanting(name: str, networks: str) -> dict[str, Any]:
    made = pod(name, "")
    made["metadata"]["annotations"] = {KEY: networks}
    return made


def interfaces(lab: Lab, name: str) -> dict[str, str]:
    """Return the address of each interface of a pod."""
    lines = lab.kubelet.execute(name, "/bin/ip", "-o", "-4", "address").splitlines()
    return {words[1]: words[3] for words in map(str.split, lines) if words[1] != "lo"}


def objects(lab: Lab) -> str:
    """Create the networks of the page, and return the annotation for a pod that wants both of them."""
    found, cluster = {one["kind"]: one for one in page()}, control(lab)
    define(cluster, "storage", found["NetworkAttachmentDefinition"]["spec"]["config"])
    network(cluster, "backup", {"plugins": found["Network"]["spec"]["plugins"]})
    define(cluster, "backup", "")
    lab.kubelet.wait_for("the network", lambda: reason(cluster, "backup") == "Ready")
    return json.dumps([*json.loads(found["Pod"]["metadata"]["annotations"][KEY]), {"name": "backup"}])


@pytest.fixture(scope="module")
def wanted(lab: Lab) -> str:
    """The annotation of a pod; one has made the bridges, which stay."""
    annotation = objects(lab)
    lab.kubelet.put(wanting("first", annotation))
    lab.kubelet.running("first")
    lab.kubelet.drop("first")
    return annotation


def test_a_pod_of_the_page_runs_with_its_networks_and_leaves_nothing(
    lab: Lab, wanted: str, difference: Callable[[], list[str]]
) -> None:
    lab.kubelet.put(wanting("web", wanted))
    lab.kubelet.running("web")
    inside = interfaces(lab, "web")
    assert set(inside) == {"eth0", "st0", "net2"}
    assert inside["st0"] == "10.97.0.20/24"
    lab.kubelet.wait_for("its network status", lambda: status_of(control(lab), "web"))
    status = {one["interface"]: one["ips"][0] for one in status_of(control(lab), "web") if one["interface"] != "eth0"}
    assert status == {name: address.partition("/")[0] for name, address in inside.items() if name != "eth0"}

    lab.daemon.kill()
    lab.daemon.start()
    assert difference() == []
