"""nodeplug installed in a cluster by helm: its pod makes networks, devices and volumes for others, and is replaced.

Kubelet, containerd, the control plane and helm are the real and current ones; the image is that of deploy/Containerfile.
"""

import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.real.conftest import cached, need
from tests.real.consumers import PrivateNode, pod
from tests.real.consumers.cluster import FLEXVOLUME, FOLDERS, NAMESPACE, Cluster, open_cluster

from nodeplug import PluginError
from nodeplug.testing import folders

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("kubelet")]
DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "chart"
RESOURCE = "example.com/null"
PLUGINS = {
    "network": '[plugins.bridge]\n[plugins.loopback.config]\nwhere_absent = ["loopback"]\n',
    "devices": f"""
[[plugins.hostdev.config.resources]]
resource = "{RESOURCE}"
groups = [{{ count = 8, nodes = [{{ path = "/dev/null", container_path = "/dev/null-too" }}] }}]
""",
    "volumes": """
[plugins.loopfile]
[plugins.tmpfs]
[plugins.fuse.config]
check_interval = "500ms"
[plugins.fuse.config.programs.files]
command = ["{folder}/bindfs", "-f", "{folder}", "{{mountpoint}}"]
environment = {{ LD_LIBRARY_PATH = "{folder}" }}
""",
}
NETWORK = {
    "name": "cluster",
    "plugins": [
        {
            "type": "nodeplug-bridge",
            "bridge": "nodeplug0",
            "isDefaultGateway": True,
            "ipMasq": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]]},
        }
    ],
}
MEMORY = {"csi": {"driver": "tmpfs.nodeplug", "volumeAttributes": {"size": "4Mi"}}}
DATA = {"flexVolume": {"driver": "nodeplug/loopfile", "fsType": "ext4", "options": {"name": "data", "size": "32Mi"}}}
FUSE = {"flexVolume": {"driver": "nodeplug/fuse", "options": {"program": "files"}}}


@pytest.fixture(scope="module")
def served() -> Iterator[Path]:
    """A folder of the node with a file, and a FUSE program with its libraries, which the image does not have."""
    need(bindfs="bindfs")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))  # a program has a /tmp of its own
    folder.chmod(0o755)
    (folder / "hello").write_text("world")
    program = Path(str(shutil.which("bindfs")))
    shutil.copy(program, folder / "bindfs")
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"=> (/\S*libfuse\S*)", said):
        shutil.copy(library, folder / Path(library).name)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def cluster(
    make_private_node: Callable[..., PrivateNode], consumer: Callable[[str], Path], served: Path
) -> Iterator[Cluster]:
    programs, helm = consumer("kubernetes"), consumer("helm") / "helm"
    runtime, image = consumer("containerd"), cached("build-image")
    need(etcd="etcd-server", openssl="openssl")
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with (
            make_private_node(folder / "n", more=FOLDERS) as node,
            open_cluster(node, folder, kubernetes=programs, runtime=runtime, helm=helm, image=image) as made,
        ):
            yield made
    finally:
        folders.remove(folder)


@pytest.fixture(scope="module")
def values(cluster: Cluster, served: Path) -> Path:
    plugins = {name: text.format(folder=served) if "{{" in text else text for name, text in PLUGINS.items()}
    given = {
        "plugins": plugins,
        "network": {"cniVersion": "1.1.0", "list": NETWORK},
        "csi": {"drivers": ["tmpfs.nodeplug", "loopfile.nodeplug"]},
        "provisioner": {"enabled": True},
        "folders": [str(served)],
        "dashboard": {"enabled": True},
    }
    path = cluster.folder / "values.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


@pytest.fixture(scope="module")
def installed(cluster: Cluster, values: Path) -> Cluster:
    """The chart is installed, and the node has what the daemon offers."""
    try:
        cluster.install(CHART, values=[values])
        cluster.wait_for("devices", lambda: allocatable(cluster) == 8)
    except PluginError as error:
        raise AssertionError(f"{error}\n{cluster.told()}") from error
    return cluster


def allocatable(cluster: Cluster) -> int:
    """Return how many devices the node offers."""
    status = cluster.api.call("GET", f"/api/v1/nodes/{cluster.node.name}")["status"]
    return int(status["allocatable"].get(RESOURCE, -1))


def run(cluster: Cluster, name: str, **more: Any) -> None:
    cluster.kubelet.put(pod(name, "", **more))
    cluster.kubelet.running(name)


def mount_type(cluster: Cluster, name: str, path: str) -> str:
    lines = cluster.kubelet.execute(name, "/bin/cat", "/proc/mounts").splitlines()
    return next(fields[2] for fields in map(str.split, lines) if fields[1] == path)


def test_a_pod_gets_its_network_a_device_and_volumes_from_the_daemon_in_a_pod(installed: Cluster) -> None:
    volumes = {"/memory": MEMORY, "/data": DATA, "/fuse": FUSE}
    run(installed, "first", limits={RESOURCE: 1}, volumes=volumes)
    inside = installed.kubelet.execute
    assert "null-too" in inside("first", "/bin/ls", "/dev").split()
    assert "10.88.0." in inside("first", "/bin/ip", "address", "show", "eth0")
    inside("first", "/bin/ping", "-c", "1", "-W", "5", "10.88.0.1")
    assert [mount_type(installed, "first", path) for path in ("/memory", "/data")] == ["tmpfs", "ext4"]
    assert inside("first", "/bin/cat", "/fuse/hello") == "world"
    installed.kubelet.drop("first")
