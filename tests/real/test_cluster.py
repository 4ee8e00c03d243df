"""nodeplug installed in a cluster by helm: its pod makes networks, devices and volumes for others, and is replaced.

Kubelet, containerd, the control plane and helm are the real, current ones; the image is that of deploy/Containerfile.
"""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.programs import need
from tests.real.chart import CHART, DEPLOY, documented
from tests.real.conftest import cached
from tests.real.consumers import PrivateNode, pod
from tests.real.consumers.cluster import FLEXVOLUME, FOLDERS, NAMESPACE, Cluster, open_cluster
from tests.real.consumers.containerd import BUSYBOX

from nodeplug import PluginError
from nodeplug.testing import folders

pytestmark = pytest.mark.real
RESOURCE = "example.com/fuse"
PROGRAM = """
[plugins.fuse.config]
check_interval = "500ms"
[plugins.fuse.config.programs.files]
command = ["{folder}/bindfs", "-f", "{folder}", "{{mountpoint}}"]
environment = {{ LD_LIBRARY_PATH = "{folder}" }}
"""
PLACES = {
    "Namespace": "/api/v1/namespaces",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ConfigMap": f"/api/v1/namespaces/{NAMESPACE}/configmaps",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "CSIDriver": "/apis/storage.k8s.io/v1/csidrivers",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings",
    "DaemonSet": f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets",
}
_SCRAPE = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:9808/metrics').read().decode())"
MEMORY = {"csi": {"driver": "tmpfs.nodeplug", "volumeAttributes": {"size": "4Mi"}}}
DATA = {"flexVolume": {"driver": "nodeplug/loopfile", "fsType": "ext4", "options": {"name": "data", "size": "32Mi"}}}
FUSE = {"flexVolume": {"driver": "nodeplug/fuse", "options": {"program": "files"}}}


@pytest.fixture(scope="module")
def served() -> Iterator[Path]:
    """A folder of the node with a file, and a FUSE program with its libraries, which the image does not have."""
    need("bindfs")
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
    need("etcd", "openssl")
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
    given = documented()[0]
    given["plugins"]["programs"] = PROGRAM.format(folder=served)
    given["network"]["cniVersion"] = "1.1.0"
    given |= {"folders": [str(served)], "dashboard": {"enabled": True}}
    path = cluster.folder / "values.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


@pytest.fixture(scope="module")
def installed(cluster: Cluster, values: Path) -> Cluster:
    """The chart is installed, and the node has what the daemon offers."""
    try:
        cluster.install(CHART, values=[values])
        cluster.wait_for("devices", lambda: allocatable(cluster) == 100)
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


def test_the_pod_of_the_page_gets_a_device_and_a_volume_that_is_made_for_its_claim(installed: Cluster) -> None:
    _, claim, shop, *_ = documented()
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    installed.api.call("POST", claims, claim)
    (container,) = shop["spec"]["containers"]
    container |= {"image": BUSYBOX, "command": ["/bin/sleep", "1000000"]}
    installed.kubelet.put({**shop, "spec": {**shop["spec"], "terminationGracePeriodSeconds": 1}})
    installed.kubelet.running("shop")
    assert [mount_type(installed, "shop", path) for path in ("/orders", "/cache")] == ["ext4", "tmpfs"]
    assert "fuse" in installed.kubelet.execute("shop", "/bin/ls", "/dev").split()
    volumes = "/api/v1/persistentvolumes"
    assert len(installed.api.call("GET", volumes)["items"]) == 1
    installed.kubelet.drop("shop")
    installed.api.call("DELETE", f"{claims}/orders")
    installed.wait_for("the end of its volume", lambda: not installed.api.call("GET", volumes)["items"])


def test_a_pod_gets_its_network_a_device_and_volumes_from_the_daemon_in_a_pod(installed: Cluster) -> None:
    volumes = {"/memory": MEMORY, "/data": DATA, "/fuse": FUSE}
    run(installed, "first", limits={RESOURCE: 1}, volumes=volumes)
    inside = installed.kubelet.execute
    assert "fuse" in inside("first", "/bin/ls", "/dev").split()
    assert "10.88.0." in inside("first", "/bin/ip", "address", "show", "eth0")
    inside("first", "/bin/ping", "-c", "1", "-W", "5", "10.88.0.1")
    assert [mount_type(installed, "first", path) for path in ("/memory", "/data")] == ["tmpfs", "ext4"]
    assert inside("first", "/bin/cat", "/fuse/hello") == "world"
    installed.kubelet.drop("first")


@contextmanager
def busy(cluster: Cluster, name: str) -> Iterator[tuple[list[str], list[str]]]:
    """Let pods with all that the daemon gives come and go, three at a time; yield those that lived, and what failed."""
    over, lived, failed = threading.Event(), list[str](), list[str]()

    def live(number: int) -> None:
        for turn in itertools.count():
            one = f"{name}-{number}-{turn}"
            try:
                run(cluster, one, limits={RESOURCE: 1}, volumes={"/memory": MEMORY})
                cluster.kubelet.execute(one, "/bin/ping", "-c", "1", "-W", "5", "10.88.0.1")
                cluster.kubelet.drop(one)
            except Exception as error:
                failed.append(f"{one}: {error}"[:2000])
                return
            lived.append(one)
            if over.is_set():
                return

    with ThreadPoolExecutor(3) as pool:
        living = [pool.submit(live, number) for number in range(3)]
        try:
            yield lived, failed
        finally:
            over.set()
            for one in living:
                one.result()


@contextmanager
def reading(cluster: Cluster, name: str) -> Iterator[list[str]]:
    """Look all the time at what the node offers and at a pod's FUSE volume; yield what was not as it should be."""
    over, wrong = threading.Event(), list[str]()

    def look() -> None:
        while not over.is_set():
            if (count := allocatable(cluster)) != 100:
                wrong.append(f"{count} devices")
            try:
                if (text := cluster.kubelet.execute(name, "/bin/cat", "/fuse/hello")) != "world":
                    wrong.append(text)
            except PluginError as error:
                wrong.append(str(error))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield wrong
    finally:
        over.set()
        looking.join()


def servers(served: Path) -> list[int]:
    """Return the processes that serve the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().split(b"\0")[0] == bytes(served / "bindfs"):
                found.append(int(path.parent.name))
    return found


def test_a_rolling_update_under_load_loses_nothing(installed: Cluster, values: Path, served: Path) -> None:
    run(installed, "reader", limits={RESOURCE: 1}, volumes={"/fuse": FUSE, "/data": DATA})
    container, serving = installed.kubelet.container("reader"), servers(served)
    assert len(serving) == 1
    (before,) = installed.pods()
    with busy(installed, "busy") as (lived, failed), reading(installed, "reader") as missed:
        installed.wait_for("a pod that has come and gone", lambda: lived or failed)
        after = installed.install(CHART, "image.tag=next", values=[values])
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["spec"]["containers"][0]["image"].endswith(":next")
    assert (failed, missed) == ([], [])
    assert len(lived) >= 4
    assert servers(served) == serving
    assert installed.kubelet.container("reader") == container
    installed.kubelet.drop("reader")
    assert servers(served) == []


def test_what_containers_use_outlives_a_container_of_the_daemon_that_is_killed(
    installed: Cluster, served: Path
) -> None:
    run(installed, "kept", volumes={"/fuse": FUSE})
    serving = servers(served)
    status = json.loads(installed.nodeplug("status", "--json"))
    (before,) = installed.pods()
    os.kill(status["pid"], signal.SIGKILL)
    restarts = before["status"]["containerStatuses"][0]["restartCount"]
    installed.wait_for(
        "another container",
        lambda: (
            (state := installed.pods()[0]["status"]["containerStatuses"][0])["restartCount"] > restarts
            and state["ready"]
        ),
    )
    assert servers(served) == serving
    assert installed.kubelet.execute("kept", "/bin/cat", "/fuse/hello") == "world"
    run(installed, "later", limits={RESOURCE: 1}, volumes={"/fuse": FUSE})
    assert installed.kubelet.execute("later", "/bin/cat", "/fuse/hello") == "world"
    for name in ("kept", "later"):
        installed.kubelet.drop(name)
    assert servers(served) == []


def test_a_change_of_plugins_is_taken_without_another_pod(installed: Cluster, values: Path) -> None:
    (before,) = installed.pods()
    given = yaml.safe_load(values.read_text())
    given["plugins"]["more"] = (
        '[plugins.more]\nuses = "hostdev"\n[[plugins.more.config.resources]]\nresource = "example.com/zero"\n'
        'groups = [{ nodes = [{ path = "/dev/zero" }] }]\n'
    )
    changed = values.with_name("changed.yaml")
    changed.write_text(yaml.safe_dump(given))
    installed.install(CHART, "image.tag=next", values=[changed])

    def offered() -> bool:
        status = installed.api.call("GET", f"/api/v1/nodes/{installed.node.name}")["status"]
        return bool(status["allocatable"].get("example.com/zero") == "1")

    installed.kubelet.wait_for("the new resource", offered, 150.0)
    assert [one["metadata"]["uid"] for one in installed.pods()] == [before["metadata"]["uid"]]


def test_a_node_says_what_it_has_and_takes_what_is_for_it_once_it_may(installed: Cluster, values: Path) -> None:
    given = yaml.safe_load(values.read_text())
    chosen = f'node_selector = {{ "kubernetes.io/hostname" = "{installed.node.name}" }}'
    given["plugins"]["more"] = (
        f'[plugins.networks]\n[plugins.more]\nuses = "hostdev"\n{chosen}\n'
        '[[plugins.more.config.resources]]\nresource = "example.com/zero"\n'
        'groups = [{ nodes = [{ path = "/dev/zero" }] }]\n'
    )
    changed = values.with_name("says.yaml")
    changed.write_text(yaml.safe_dump(given))
    installed.install(CHART, "image.tag=next", "cluster.enabled=true", "networks.enabled=true", values=[changed])

    def node() -> dict[str, Any]:
        return dict(installed.api.call("GET", f"/api/v1/nodes/{installed.node.name}"))

    installed.wait_for("labels", lambda: "nodeplug.io/version" in node()["metadata"]["labels"])
    installed.wait_for("the node's own section", lambda: node()["status"]["allocatable"].get("example.com/zero") == "1")
    status = json.loads(installed.nodeplug("status", "--json"))
    assert status["reasons"] == {}
    assert {one["about"] for one in status["networks"]} <= {"definitions"}  # those of others, which are not installed


def test_each_metric_that_the_alerts_and_the_dashboard_name_is_served(installed: Cluster) -> None:
    text = installed.node.run("python3", "-c", _SCRAPE)
    served = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    samples = served | {f"{one}{end}" for one in served for end in ("_total", "_bucket", "_sum", "_count", "_info")}
    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for one in expressions for name in re.findall(r"\b(?:nodeplug|process)_\w+", one)}
    assert named
    assert named - samples == set()


def test_the_api_server_takes_each_plain_manifest_as_it_is_written(installed: Cluster) -> None:
    for one in yaml.safe_load_all((DEPLOY / "manifests" / "nodeplug.yaml").read_text()):
        path = f"{PLACES[one['kind']]}/{one['metadata']['name']}"
        found = installed.api.call(
            "PATCH",
            f"{path}?fieldManager=test&force=true&fieldValidation=Strict&dryRun=All",
            one,
            content="application/apply-patch+yaml",
        )
        assert found["metadata"]["name"] == one["metadata"]["name"]


def test_uninstalling_waits_for_the_last_pod_and_leaves_no_entrypoint(installed: Cluster, served: Path) -> None:
    run(installed, "last", limits={RESOURCE: 1}, volumes={"/data": DATA})
    with pytest.raises(PluginError, match=r"networks of 1 pods; 1 mounted volumes; 1 of "):
        installed.nodeplug("uninstall", "--unused")
    installed.kubelet.drop("last")
    # As kubelet does once a minute: a runtime without a network cannot remove them.
    for sandbox in installed.containerd.cri.sandboxes():
        labels = json.loads(installed.containerd.ctr("containers", "info", sandbox))["Labels"]
        if labels["io.kubernetes.pod.namespace"] != NAMESPACE:
            installed.containerd.cri.remove(sandbox)

    def removed() -> bool:
        with suppress(PluginError):
            installed.nodeplug("uninstall", "--unused")
            return True
        return False

    installed.wait_for("the last word of pods", removed)
    installed.helm("uninstall", "nodeplug", "--namespace", NAMESPACE, "--wait")
    for folder in ("/opt/cni/bin", "/etc/cni/net.d", FLEXVOLUME):
        assert list((installed.node.folder / folder.lstrip("/")).iterdir()) == []
    installed.wait_for("the end of the pod", lambda: not installed.pods())
    drivers = installed.api.call("GET", "/apis/storage.k8s.io/v1/csidrivers")["items"]
    assert [one["metadata"]["name"] for one in drivers] == []


def test_without_privileges_a_device_that_need_not_be_opened_is_offered(cluster: Cluster) -> None:
    device = (
        'resource = "example.com/plain"\ngroups = [{ count = 3, nodes = [{ path = "/dev/zero", probe = "exists" }] }]'
    )
    given = {"privileged": False, "plugins": {"devices": f"[[plugins.hostdev.config.resources]]\n{device}\n"}}
    values = cluster.folder / "plain.yaml"
    values.write_text(yaml.safe_dump(given))
    cluster.install(CHART, values=[values])

    def offered() -> bool:
        status = cluster.api.call("GET", f"/api/v1/nodes/{cluster.node.name}")["status"]
        return bool(status["allocatable"].get("example.com/plain") == "3")

    cluster.wait_for("devices", offered)
    cluster.install(CHART, "image.tag=next", values=[values])
    cluster.wait_for("devices", offered)
    plain = pod("plain", "", limits={"example.com/plain": 1})
    plain["spec"] |= {"hostNetwork": True, "tolerations": [{"operator": "Exists"}]}  # the node has no network now
    cluster.kubelet.put(plain)
    cluster.kubelet.running("plain")
    assert "zero" in cluster.kubelet.execute("plain", "/bin/ls", "/dev").split()
    cluster.kubelet.drop("plain")
    cluster.helm("uninstall", "nodeplug", "--namespace", NAMESPACE, "--wait")
