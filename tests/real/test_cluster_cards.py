"""From nothing to a pod with a part of a card: the values and the pod of the page, with a scheduler of the chart's own.

The cards are simulated; kube-scheduler runs in a pod of the chart, and asks the extender beside it. At the end the same
node serves them by claims, which the cluster's own scheduler allocates.
"""

import io
import json
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.programs import need
from tests.real.chart import CHART, documented
from tests.real.conftest import cached
from tests.real.consumers import PrivateNode
from tests.real.consumers.cluster import FOLDERS, NAMESPACE, Cluster, open_cluster
from tests.real.consumers.containerd import BUSYBOX, write_archive
from tests.real.consumers.control_plane import PORT
from tests.real.test_dra_manifests import documented as by_claims
from tests.real.test_dra_manifests import documented_values

from nodeplug import PluginError
from nodeplug.testing import folders

pytestmark = pytest.mark.real
SCHEDULER = "registry.local/test/kube-scheduler:1"
SERVICE = "10.96.0.1"
"""Where pods find the API server: the address of its own Service."""
PROXY = f"""
table ip service {{
  chain pods {{ type nat hook prerouting priority dstnat; ip daddr {SERVICE} tcp dport 443 dnat to 127.0.0.1:{PORT}; }}
  chain node {{ type nat hook output priority -100; ip daddr {SERVICE} tcp dport 443 dnat to 127.0.0.1:{PORT}; }}
}}
"""
MEM = "aliyun.com/gpu-mem"
CARDS = 'driver = "simulated"\nsimulated = [{ memory = "24GiB" }, { memory = "24GiB" }]'


def write_scheduler(archive: Path, program: Path) -> None:
    """Write an image that has kube-scheduler and nothing else."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in ("bin", "etc", "tmp", "var", "var/run"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add(program, "bin/kube-scheduler")
    write_archive(archive, layer.getvalue(), {SCHEDULER: ["/bin/kube-scheduler"]})


@pytest.fixture(scope="module")
def cluster(make_private_node: Callable[..., PrivateNode], consumer: Callable[[str], Path]) -> Iterator[Cluster]:
    programs, helm = consumer("kubernetes"), consumer("helm") / "helm"
    runtime, image = consumer("containerd"), cached("build-image")
    need("etcd", "openssl", "nft")
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with (
            make_private_node(folder / "n", more=FOLDERS) as node,
            open_cluster(node, folder, kubernetes=programs, runtime=runtime, helm=helm, image=image) as made,
        ):
            write_scheduler(folder / "scheduler.tar", programs / "kube-scheduler")
            made.containerd.ctr("images", "import", str(folder / "scheduler.tar"))
            (folder / "proxy.nft").write_text(PROXY)
            node.run("nft", "-f", str(folder / "proxy.nft"))
            node.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet")
            yield made
    finally:
        folders.remove(folder)


def values_of(cluster: Cluster) -> dict[str, Any]:
    """Return the page's values for cards, with its network, cards that are simulated, and the scheduler's image."""
    given: dict[str, Any] = next(one for one in documented() if "extender" in one)
    given["plugins"]["gpu"] = given["plugins"]["gpu"].replace('driver_root = "/node/root"', CARDS)
    given["plugins"]["network"] = documented()[0]["plugins"]["network"]
    given["network"] = {"cniVersion": "1.1.0", **documented()[0]["network"]}
    given["extender"]["scheduler"]["image"] = SCHEDULER
    del given["nodeRoot"], given["folders"]
    return given


def install(cluster: Cluster, given: dict[str, Any]) -> None:
    values = cluster.folder / "cards.yaml"
    values.write_text(yaml.safe_dump(given))
    cluster.install(CHART, f"apiServer.host={SERVICE}", "apiServer.port=443", values=[values])


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    try:
        install(cluster, values_of(cluster))
        cluster.wait_for("the scheduler", lambda: ready(cluster))
    except PluginError as error:
        raise AssertionError(f"{error}\n{said(cluster)}") from error
    return cluster


def ready(cluster: Cluster) -> bool:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/nodeplug-extender"
    return bool(cluster.api.call("GET", path)["status"].get("readyReplicas"))


def said(cluster: Cluster) -> str:
    pods = cluster.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    logs = sorted(cluster.node.folder.glob("var/log/pods/nodeplug_nodeplug-extender*/*/*.log"))
    told = [f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in logs]
    return "\n".join([*(json.dumps(one["status"]) for one in pods), *told])


def put(cluster: Cluster, name: str, units: int) -> None:
    """Create the pod of the page under another name, with so many units and an image that is there."""
    (train,) = [one for one in documented() if (one.get("metadata") or {}).get("name") == "train"]
    (container,) = train["spec"]["containers"]
    container |= {"image": BUSYBOX, "command": ["/bin/sleep", "1000000"]}
    container["resources"]["limits"] = {MEM: units}
    spec = {**train["spec"], "terminationGracePeriodSeconds": 1}
    cluster.api.schedule({**train, "metadata": {"name": name}, "spec": spec})


def running(cluster: Cluster, name: str) -> dict[str, Any]:
    def status() -> dict[str, Any] | None:
        found = dict(cluster.api.call("GET", f"/api/v1/namespaces/default/pods/{name}"))
        return found if found["status"]["phase"] == "Running" else None

    try:
        return dict(cluster.wait_for(f"pod {name}", status))
    except PluginError as error:
        raise AssertionError(f"{error}\n{said(cluster)}") from error


def test_the_pod_of_the_page_gets_its_part_of_one_card_and_one_that_fits_on_no_card_waits(installed: Cluster) -> None:
    for name, units in (("train", 14), ("second", 14)):
        put(installed, name, units)
        running(installed, name)
    cards = {name: installed.kubelet.execute(name, "/bin/env") for name in ("train", "second")}
    seen = [re.findall(r"^NVIDIA_VISIBLE_DEVICES=(\S+)$", one, re.MULTILINE) for one in cards.values()]
    assert all(seen)
    assert seen[0] != seen[1]
    put(installed, "third", 12)  # the node has 20 free, 10 on each card or less
    installed.wait_for("a reason", lambda: installed.api.unplaced("third"))
    assert f"no single card has enough free {MEM}" in installed.api.unplaced("third")
    installed.api.delete("train")
    assert running(installed, "third")["spec"]["nodeName"] == installed.node.name


def test_the_extender_of_the_chart_has_the_rights_that_it_needs_and_runs_as_nobody(installed: Cluster) -> None:
    (one,) = installed.api.call(
        "GET", f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io%2Fname%3Dnodeplug-extender"
    )["items"]
    (container,) = [state for state in one["status"]["containerStatuses"] if state["name"] == "extender"]
    place = ("--config", "/run/nodeplug-extender/nodeplug.toml", "--root", "/run/nodeplug-extender", "--json")
    execute, known = installed.containerd.execute, container["containerID"].removeprefix("containerd://")
    status = json.loads(execute(known, "nodeplug", "status", *place))
    assert status["extender"]["cluster"]["problem"] == ""
    assert status["extender"]["cluster"]["nodes"] == 1
    assert "uid=65534" in execute(known, "id")
    assert container["restartCount"] == 0


def test_the_same_node_serves_its_cards_by_claims_as_the_page_of_claims_says(installed: Cluster) -> None:
    for name in installed.api.scheduled():
        installed.api.delete(name)
    installed.wait_for("the end of all pods", lambda: not installed.api.scheduled())
    given = values_of(installed)
    given["plugins"]["gpu"] = f'[plugins.gpu]\nserve = "dra"\n{given["plugins"]["gpu"]}'
    given["dra"] = documented_values()["dra"]
    install(installed, given)
    devices = "/apis/resource.k8s.io/v1"
    installed.wait_for("slices", lambda: installed.api.call("GET", f"{devices}/resourceslices")["items"])
    template = by_claims("ResourceClaimTemplate", "some-of-a-card")
    installed.api.call("POST", f"{devices}/namespaces/default/resourceclaimtemplates", template)
    pod = by_claims("Pod", "trainer")
    (container,) = pod["spec"]["containers"]
    container |= {"image": BUSYBOX, "command": ["/bin/sleep", "1000000"]}
    installed.api.schedule(pod)
    running(installed, "trainer")
    seen = installed.kubelet.execute("trainer", "/bin/env")
    assert re.search(r"^NODEPLUG_GPU_MEMORY_BYTES=5368709120$", seen, re.MULTILINE), seen
    (driver,) = json.loads(installed.nodeplug("status", "--json"))["dra"]
    assert (driver["driver"], driver["registered"], driver["problem"]) == ("gpu.nodeplug.io", True, "")
    installed.api.delete("trainer")
    installed.wait_for("its end", lambda: not installed.api.scheduled())
