"""Pods with three networks of a real cluster: with the documented rights alone, and without its API server.

And with a daemon that is killed at any moment.
"""

import json
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.real.consumers import ControlPlane
from tests.real.consumers.api_proxy import ApiProxy
from tests.real.consumers.claims import CORE
from tests.real.consumers.network_objects import NETWORKS, PODS, define, network, prepare, reason, status_of

from nodeplug.contract.errors import PluginError
from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode
from nodeplug.testing.waiting import until
from nodeplug_net.netlink.links import links_in

KEY = "k8s.v1.cni.cncf.io/networks"
ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
LIVES = 30
TOML = """
[plugins.bridge.config]
data_dir = "{root}/addresses"
[plugins.tuning]
[plugins.networks.config]
conf_dir = "{root}/etc/cni/net.d"
[networks]
kubeconfig = "{root}/kubeconfig"
patience = "5s"
"""


def bridge(name: str, subnet: str) -> dict[str, Any]:
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}]]}
    return {"type": "nodeplug-bridge", "bridge": name, "isGateway": True, "ipam": ipam}


class Rig:
    """The daemon beside the cluster, and a runtime."""

    def __init__(self, control: ControlPlane, daemon: ScratchNode, folder: Path, host: Sandbox) -> None:
        self.control, self.daemon, self.folder, self.host = control, daemon, folder, host
        plugin = {"type": "nodeplug-networks", "clusterNetwork": "pods", "capabilities": {ANNOTATIONS: True}}
        conflist = {"cniVersion": "1.0.0", "name": "all", "plugins": [plugin]}
        self.runtime = CniRuntime(conflist, [daemon.paths.cni_bin], cache_dir=folder / "cache")

    def pod(self, name: str, networks: str) -> str:
        """Create a pod that is on this node, and return its CNI_ARGS."""
        container = {"name": "main", "image": "registry.local/test/pause:1"}
        metadata = {"name": name, "annotations": {KEY: networks}}
        spec = {"nodeName": self.control.node.name, "containers": [container]}
        made = self.control.call("POST", PODS, {"metadata": metadata, "spec": spec})
        uid = made["metadata"]["uid"]
        return f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name};K8S_POD_UID={uid}"

    def attach(self, name: str, pod: Sandbox, args: str, **told: str) -> dict[str, Any]:
        arguments = {ANNOTATIONS: {KEY: told["networks"]}} if told else None
        with self.host.netns.entered():
            return self.runtime.attach(name, pod.path, args=args, capability_args=arguments)

    def detach(self, name: str, pod: Sandbox | None) -> None:
        with self.host.netns.entered():
            self.runtime.detach(name, None if pod is None else pod.path)

    def left(self) -> tuple[list[str], list[str], set[str]]:
        """Return which addresses are reserved, which records there are, and which links beside the bridges."""
        held = sorted(path.name for path in (self.daemon.root / "addresses").glob("*/*") if path.name[0].isdigit())
        records = [path.name for path in (self.daemon.paths.journal / "networks").glob("*.json")]
        with links_in(self.host.netns) as links:
            names = {link.name for link in links.all() if link.kind != "bridge"} - {"lo"}
        return held, records, names


@pytest.fixture(scope="module")
def rig(cluster: ControlPlane) -> Iterator[Rig]:
    with TemporaryDirectory(prefix="np-", dir="/tmp") as made, ApiProxy(cluster) as proxy:
        folder = Path(made)
        root = folder / "n"
        (root / "etc" / "cni" / "net.d").mkdir(parents=True)
        default = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge("pods", "10.80.0.0/24")]}
        (root / "etc" / "cni" / "net.d" / "10-pods.conflist").write_text(json.dumps(default))
        proxy.token = prepare(cluster)
        (root / "kubeconfig").write_text(proxy.kubeconfig)
        cluster.call("POST", f"{CORE}/nodes", {"metadata": {"name": cluster.node.name, "labels": {"rack": "a"}}})
        supervisor = f'listen = ""\ninstall = true\nnative_entrypoints = false\nnode_name = "{cluster.node.name}"'
        daemon = ScratchNode(root, TOML.format(root=root), supervisor=supervisor, fork=True)
        with Sandbox(folder / "host") as host, daemon:
            define(cluster, "blue", json.dumps({"cniVersion": "1.0.0", **bridge("blue", "10.81.0.0/24")}))
            define(cluster, "green", "")
            spec = {"plugins": [bridge("green", "10.82.0.0/24"), {"type": "nodeplug-tuning", "mtu": 1400}]}
            network(cluster, "green", {**spec, "nodeSelector": {"matchLabels": {"rack": "a"}}})
            until(lambda: reason(cluster, "green") == "Ready")
            yield Rig(cluster, daemon, folder, host)
        sys.stdout.write(daemon.log)  # shown when a test fails


@pytest.fixture
def pod(rig: Rig) -> Iterator[Sandbox]:
    with Sandbox(rig.folder / "pod") as made:
        yield made


def test_a_pod_has_three_networks_and_its_object_says_so(rig: Rig, pod: Sandbox) -> None:
    args = rig.pod("web", "blue,green@gr0")
    rig.attach("web", pod, args)
    until(lambda: status_of(rig.control, "web"))
    status = status_of(rig.control, "web")
    assert [(one["name"], one["interface"]) for one in status] == [
        ("pods", "eth0"),
        ("default/blue", "net1"),
        ("default/green", "gr0"),
    ]
    assert [one["ips"][0].rpartition(".")[0] for one in status] == ["10.80.0", "10.81.0", "10.82.0"]
    with links_in(pod.netns) as links:
        assert {one["interface"]: one["mac"] for one in status} == {
            link.name: link.mac for link in links.all() if link.name != "lo"
        }
    rig.detach("web", pod)
    assert rig.left() == ([], [], set())


def test_a_pod_comes_and_goes_while_the_api_server_is_down_and_is_told_of_later(rig: Rig, pod: Sandbox) -> None:
    args = rig.pod("lone", "blue,green")
    rig.attach("lone", pod, args, networks="blue,green")  # both networks are known now
    rig.detach("lone", pod)
    rig.control.kill_api()
    try:
        rig.attach("lone", pod, args, networks="blue,green")
        unknown = args.replace("K8S_POD_NAME=lone", "K8S_POD_NAME=ghost")
        with Sandbox(rig.folder / "unknown") as second, pytest.raises(CniError) as refused:
            rig.attach("ghost", second, unknown)
        assert (refused.value.code, "which networks pod default/ghost wants" in refused.value.msg) == (11, True)
    finally:
        rig.control.start_api()
    until(lambda: len(status_of(rig.control, "lone")) == 3)
    rig.detach("lone", pod)
    assert rig.left() == ([], [], set())


@pytest.mark.soak
def test_a_daemon_that_is_killed_at_any_moment_leaves_nothing(rig: Rig) -> None:
    """It ends within ADD, within DEL, or between them; the runtime repeats a DEL that failed, as kubelet does."""
    chance, ended, kills = random.Random(140), threading.Event(), 0

    def kill() -> None:
        nonlocal kills
        while not ended.wait(chance.uniform(0.05, 0.8)):
            rig.daemon.kill()
            rig.daemon.start()
            kills += 1

    args = rig.pod("mortal", "blue,green")
    killer = threading.Thread(target=kill)
    killer.start()
    attached = 0
    try:
        for life in range(LIVES):
            with Sandbox(rig.folder / f"mortal{life}") as pod:
                with suppress(CniError):
                    rig.attach(f"mortal{life}", pod, args, networks="blue,green")
                    attached += 1
                until(lambda life=life, pod=pod: _ended(rig, f"mortal{life}", pod))  # type: ignore[misc]
    finally:
        ended.set()
        killer.join()
    until(lambda: rig.left() == ([], [], set()))
    assert attached > 0
    assert kills > 3


def _ended(rig: Rig, name: str, pod: Sandbox) -> bool:
    try:
        rig.detach(name, pod)
    except CniError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "spec", "said"),
    [
        ("wrong", {}, "spec.plugins: Required value"),
        ("wrong", {"plugins": []}, "should have at least 1 items"),
        ("wrong", {"plugins": [{"bridge": "br0"}]}, "spec.plugins[0].type: Required value"),
        ("wrong", {"plugins": [{"type": "../sh"}]}, "should match"),
        ("wrong", {"plugins": [{"type": "nodeplug-networks"}]}, "is no plugin of one"),
        ("wrong", {"plugins": [{"type": "x"}], "cniVersion": "2.0.0"}, "Unsupported value"),
        ("a" * 64, {"plugins": [{"type": "x"}]}, "with at most 63 characters"),
        (
            "wrong",
            {"plugins": [{"type": "x"}], "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            "In and NotIn take values",
        ),
        (
            "wrong",
            {"plugins": [{"type": "x"}], "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}},
            "Unsupported value",
        ),
    ],
)
def test_the_server_refuses_an_object_that_can_be_no_network(
    rig: Rig, name: str, spec: dict[str, Any], said: str
) -> None:
    with pytest.raises(PluginError) as refused:
        network(rig.control, name, spec)
    assert said in str(refused.value)


def test_a_network_that_cannot_be_here_says_why_and_goes(rig: Rig) -> None:
    network(rig.control, "ghost", {"plugins": [{"type": "ghost"}]})
    until(lambda: reason(rig.control, "ghost") == "UnknownPlugin")
    rig.control.call("DELETE", f"{NETWORKS}/ghost")
    network(rig.control, "pods", {"plugins": [bridge("x", "10.83.0.0/24")]})
    until(lambda: reason(rig.control, "pods") == "NameTaken")
    rig.control.call("DELETE", f"{NETWORKS}/pods")
