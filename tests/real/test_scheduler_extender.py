"""A real kube-scheduler asks a plugin of the daemon: which nodes, how good, whose pods go, and who binds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import authority, sign
from tests.real.consumers import ControlPlane
from tests.real.slots import LABEL

from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

ADDRESS = "127.0.0.1:9810"
PLUGIN = """
[extender]
listen = "{address}"
[plugins.slots]
uses = "slots:Slots"
[plugins.slots.config]
server = "{server}"
token = "{token}"
"""
VERBS = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "preemptVerb": "preempt", "weight": 1}
Put = Callable[..., None]


@pytest.fixture(scope="module")
def nodes(cluster: ControlPlane) -> None:
    for name in ("alpha", "beta", "gamma"):
        labels = {"kubernetes.io/hostname": name, LABEL: "best" if name == "gamma" else "some"}
        cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        room = {"cpu": "2", "memory": "4Gi", "pods": "110"}
        status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        cluster.call(
            "PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, content="application/merge-patch+json"
        )
    cluster.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 1000})


@pytest.fixture(scope="module")
def schedulers(cluster: ControlPlane, nodes: None) -> None:
    """One that sends names and lets the plugin bind, and one that sends whole nodes and binds itself."""
    prefix = {"urlPrefix": f"http://{ADDRESS}/slots"}
    cluster.start_scheduler("names", [{**prefix, **VERBS, "bindVerb": "bind", "nodeCacheCapable": True}])
    cluster.start_scheduler("whole", [{**prefix, **VERBS, "nodeCacheCapable": False}])


@pytest.fixture(scope="module")
def daemon(cluster: ControlPlane, schedulers: None) -> Iterator[ScratchNode]:
    root, token = cluster.folder / "n", cluster.folder / "token"
    root.mkdir()
    token.write_text(cluster.token)
    plugin = PLUGIN.format(address=ADDRESS, server=cluster.server, token=token)
    beside, env = cluster.node.pid, {"PYTHONPATH": str(Path(__file__).parent)}
    with ScratchNode(root, plugin, beside=beside, fork=True, env=env) as node:
        yield node


@pytest.fixture
def put(cluster: ControlPlane) -> Iterator[Put]:
    """Create pods, which go at the end."""
    made: list[str] = []

    def put(name: str, scheduler: str, *, on: str = "alpha_beta_gamma", cpu: str = "100m", **spec: Any) -> None:
        room = {"cpu": cpu, "memory": "16Mi"}
        container = {"name": "c", "image": "example.invalid/none", "resources": {"requests": room, "limits": room}}
        whole = {"containers": [container], "schedulerName": scheduler, "tolerations": [{"operator": "Exists"}], **spec}
        whole["terminationGracePeriodSeconds"] = 0
        cluster.schedule({"metadata": {"name": name, "labels": {"on": on}}, "spec": whole})
        made.append(name)

    yield put
    for name in made:
        if name in cluster.scheduled():
            cluster.delete(name)
    until(lambda: not set(made) & set(cluster.scheduled()))


def test_the_plugin_chooses_the_node_and_binds_the_pod(cluster: ControlPlane, daemon: ScratchNode, put: Put) -> None:
    put("named", "names")
    until(lambda: cluster.place("named"), found=lambda: cluster.log("names")[-3000:])
    pod = cluster.pod("named")
    assert (pod["spec"]["nodeName"], pod["metadata"]["annotations"][LABEL]) == ("beta", "bound to beta")


def test_whole_nodes_are_judged_by_what_they_are(cluster: ControlPlane, daemon: ScratchNode, put: Put) -> None:
    put("whole", "whole", on="alpha_gamma")
    until(lambda: cluster.place("whole"), found=lambda: cluster.log("whole")[-3000:])
    assert (cluster.place("whole"), cluster.pod("whole")["metadata"].get("annotations")) == ("gamma", None)


@pytest.mark.parametrize("scheduler", ["names", "whole"])
def test_the_event_of_a_pod_counts_nodes_by_the_reasons_of_the_plugin(
    cluster: ControlPlane, daemon: ScratchNode, put: Put, scheduler: str
) -> None:
    put("refused", scheduler, on="nowhere")
    until(lambda: cluster.unplaced("refused"), found=lambda: cluster.log(scheduler)[-3000:])
    told = cluster.unplaced("refused")
    assert told.startswith("0/3 nodes are available: 1 its slots are too small, 2 its slots are taken.")


@pytest.mark.parametrize("scheduler", ["names", "whole"])
def test_only_pods_of_the_node_that_the_plugin_keeps_are_evicted(
    cluster: ControlPlane, daemon: ScratchNode, put: Put, scheduler: str
) -> None:
    low = {name: f"low-{name}" for name in ("alpha", "beta", "gamma")}
    for name, pod in low.items():
        put(pod, scheduler, on=name, cpu="1500m")
    until(lambda: [cluster.place(pod) for pod in low.values()] == list(low))
    put("urgent", scheduler, cpu="1500m", priorityClassName="high")
    until(lambda: cluster.place("urgent"), found=lambda: cluster.log(scheduler)[-3000:])
    assert [cluster.place(pod) for pod in (*low.values(), "urgent")] == ["alpha", "gone", "gamma", "beta"]


def test_a_pod_that_came_while_the_daemon_was_away_is_placed_when_it_is_back(
    cluster: ControlPlane, daemon: ScratchNode, put: Put
) -> None:
    daemon.kill()
    put("early", "names")
    until(lambda: "connection refused" in cluster.log("names"))
    assert cluster.place("early") == ""
    daemon.start()
    until(lambda: cluster.place("early"), found=lambda: cluster.log("names")[-3000:])
    assert cluster.place("early") == "beta"


def test_a_scheduler_with_a_certificate_asks_over_tls_and_one_without_is_refused(
    cluster: ControlPlane, nodes: None, short_path: Path, put: Put
) -> None:
    authority(short_path)
    for name in ("server", "scheduler"):
        sign(short_path, name)
    root = short_path / "n"
    root.mkdir()
    (short_path / "token").write_text(cluster.token)
    files = {name: f"{short_path}/{name}" for name in ("authority.crt", "scheduler.crt", "scheduler.key")}
    keys = f'{ADDRESS.replace("9810", "9811")}"\ntls_cert = "{short_path}/server.crt"\n'
    keys += f'tls_key = "{short_path}/server.key"\nclient_ca = "{short_path}/authority.crt'
    plugin = PLUGIN.format(address=keys, server=cluster.server, token=short_path / "token")
    asked = {"urlPrefix": "https://127.0.0.1:9811/slots", "enableHTTPS": True, "nodeCacheCapable": True, **VERBS}
    trust = {"caFile": files["authority.crt"]}
    own = {"certFile": files["scheduler.crt"], "keyFile": files["scheduler.key"]}
    beside, env = cluster.node.pid, {"PYTHONPATH": str(Path(__file__).parent)}
    with ScratchNode(root, plugin, beside=beside, fork=True, env=env) as daemon:
        cluster.start_scheduler("known", [{**asked, "tlsConfig": trust | own}])
        cluster.start_scheduler("stranger", [{**asked, "tlsConfig": trust}])
        put("refused", "stranger")
        put("encrypted", "known")
        until(lambda: cluster.place("encrypted"), found=lambda: cluster.log("known")[-3000:] + daemon.log[-3000:])
        assert cluster.place("encrypted") == "beta"
        until(lambda: "PEER_DID_NOT_RETURN_A_CERTIFICATE" in daemon.log, found=lambda: cluster.log("stranger")[-3000:])
        assert cluster.place("refused") == ""
