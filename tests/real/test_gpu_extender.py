"""A real kube-scheduler asks the extender that knows the cards; nodes are objects that say what a daemon would."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import ControlPlane

from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until
from nodeplug_gpu.free_memory import FreeCard, FreeMemory, PodName, encode

ADDRESS = "127.0.0.1:9812"
MEM = "aliyun.com/gpu-mem"
UNITS = 10
CARDS = ("aaaaaaaa", "bbbbbbbb")
NODES = {"gpu-1": (6, 6), "gpu-2": (0, 8)}
FULL = f"no single card has enough free {MEM}"
PLUGIN = """
[extender]
listen = "{address}"
follow = true
kubeconfig = "{kubeconfig}"
[plugins.gpu-extender.config]
look = "500ms"
"""
VERBS = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "preemptVerb": "preempt", "bindVerb": "bind"}
RULE = re.compile(r'^- \{apiGroups: \[""\], resources: \[(\S+)\], verbs: \[(.+)\]\}$', re.MULTILINE)
Put = Callable[..., None]
MERGE = "application/merge-patch+json"


class Cards:
    """What the nodes say of their cards."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.cluster, self.seq = cluster, 0

    def say(self, node: str, free: tuple[int, ...], held: dict[str, tuple[int, ...]]) -> None:
        """Let a node say what is free of each card, and which pods hold how much of each."""
        self.seq += 1
        cards = tuple(FreeCard(key, f"GPU-{key}", n, UNITS, free[n]) for n, key in enumerate(CARDS))
        said = FreeMemory(MEM, self.seq, 1 << 30, "binpack", cards)
        pods = tuple(PodName("default", name) for name in held)
        said = replace(said, pods=pods, held=tuple(dict(zip(CARDS, one, strict=True)) for one in held.values()))
        annotations = {"metadata": {"annotations": {"nodeplug.io/gpu-mem": encode(said)}}}
        self.cluster.call("PATCH", f"/api/v1/nodes/{node}", annotations, content=MERGE)


@pytest.fixture(scope="module")
def cards(cluster: ControlPlane) -> Iterator[Cards]:
    for name in NODES:
        cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        room = {"cpu": "8", "memory": "8Gi", "pods": "110", MEM: str(2 * UNITS)}
        status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        cluster.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, content=MERGE)
    cluster.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "urgent"}, "value": 1000})
    yield Cards(cluster)
    for name in NODES:
        cluster.call("DELETE", f"/api/v1/nodes/{name}")


def account(cluster: ControlPlane) -> str:
    """Make an account with the rights that the page tells, and return a token of it."""
    name, rbac = "gpu-extender", "/apis/rbac.authorization.k8s.io/v1"
    found = RULE.findall((Path(__file__).parents[2] / "docs" / "scheduler.md").read_text(encoding="utf-8"))
    rules = [{"apiGroups": [""], "resources": [one], "verbs": verbs.split(", ")} for one, verbs in found]
    assert len(rules) == 3
    cluster.call("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
    cluster.call("POST", f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    who = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    made = {"metadata": {"name": name}, "roleRef": role, "subjects": [who]}
    cluster.call("POST", f"{rbac}/clusterrolebindings", made)
    asked = {"spec": {"expirationSeconds": 3600}}
    token = cluster.call("POST", f"/api/v1/namespaces/default/serviceaccounts/{name}/token", asked)
    return str(token["status"]["token"])


@pytest.fixture(scope="module")
def daemon(cluster: ControlPlane, cards: Cards) -> Iterator[ScratchNode]:
    root = cluster.folder / "gpu-extender"
    root.mkdir()
    document = json.loads(cluster.kubeconfig)
    document["users"][0]["user"]["token"] = account(cluster)
    (root / "kubeconfig").write_text(json.dumps(document))
    extender = {"urlPrefix": f"http://{ADDRESS}/gpu-mem", "nodeCacheCapable": True, "weight": 1, **VERBS}
    cluster.start_scheduler("cards", [{**extender, "managedResources": [{"name": MEM}]}])
    plugin = PLUGIN.format(address=ADDRESS, kubeconfig=root / "kubeconfig")
    with ScratchNode(root, plugin, beside=cluster.node.pid, fork=True) as node:
        yield node
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def put(cluster: ControlPlane, cards: Cards, daemon: ScratchNode) -> Iterator[Put]:
    """Create pods, which go at the end; at first no pod holds anything but what `NODES` leave out."""
    for name, free in NODES.items():
        cards.say(name, free, {})
    made: list[str] = []

    def put(name: str, units: int, **spec: Any) -> None:
        resources = {"limits": {MEM: str(units), "cpu": "100m", "memory": "16Mi"}}
        container = {"name": "c", "image": "example.invalid/none", "resources": resources}
        whole = {"containers": [container], "schedulerName": "cards", "terminationGracePeriodSeconds": 0, **spec}
        whole["tolerations"] = [{"operator": "Exists"}]
        cluster.schedule({"metadata": {"name": name}, "spec": whole})
        made.append(name)

    yield put
    for name in made:
        if name in cluster.scheduled():
            cluster.delete(name)
    until(lambda: not set(made) & set(cluster.scheduled()))
    until(lambda: not under_way(daemon))


def under_way(daemon: ScratchNode) -> int:
    told = json.loads(daemon.run("inspect", "gpu-extender").stdout)["gpu-extender"]
    lacking = told["api_server"] or daemon.status()["extender"]["cluster"]["problem"]
    assert not lacking, "its account lacks a right"
    return int(told["pods_under_way"])


def test_a_pod_that_the_sum_could_hold_and_no_card_can_waits_with_a_sentence_until_a_node_says_more(
    cluster: ControlPlane, cards: Cards, put: Put
) -> None:
    put("nine", 9)
    until(lambda: cluster.unplaced("nine"), found=lambda: cluster.log("cards")[-3000:])
    assert cluster.unplaced("nine").startswith(f"0/2 nodes are available: 2 {FULL}.")
    cards.say("gpu-1", (10, 6), {})
    until(lambda: cluster.place("nine"), found=lambda: cluster.log("cards")[-3000:])
    assert cluster.place("nine") == "gpu-1"


def test_a_pod_goes_to_the_node_one_of_whose_cards_fits(cluster: ControlPlane, put: Put) -> None:
    put("seven", 7)
    until(lambda: cluster.place("seven"), found=lambda: cluster.log("cards")[-3000:])
    assert cluster.place("seven") == "gpu-2"


def test_pods_that_come_at_once_get_no_unit_twice_before_their_node_names_them(cluster: ControlPlane, put: Put) -> None:
    names = [f"burst-{number}" for number in range(5)]
    for name in names:
        put(name, 5)
    until(lambda: sum(map(bool, (cluster.place(name) for name in names))) == 3)
    waiting = [name for name in names if not cluster.place(name)]
    until(lambda: all(FULL in cluster.unplaced(name) for name in waiting), found=lambda: cluster.log("cards")[-3000:])
    assert sorted(filter(None, (cluster.place(name) for name in names))) == ["gpu-1", "gpu-1", "gpu-2"]


@pytest.mark.soak
def test_pods_are_evicted_only_where_one_card_then_fits(
    cluster: ControlPlane, cards: Cards, daemon: ScratchNode, put: Put
) -> None:
    held = {"gpu-1": ("low-1", 10), "gpu-2": ("low-2", 10)}
    for node, (name, units) in held.items():
        put(name, units, nodeName=node)
        put(f"half-{node}", 8, nodeName=node)
    until(lambda: under_way(daemon) == 4)  # else what names them might mean pods of their names before them
    cards.say("gpu-1", (2, 0), {"low-1": (5, 5), "half-gpu-1": (3, 5)})
    cards.say("gpu-2", (2, 0), {"low-2": (0, 10), "half-gpu-2": (8, 0)})
    put("urgent", 10, priorityClassName="urgent")
    until(lambda: cluster.place("low-2") == "gone", found=lambda: cluster.log("cards")[-3000:])
    cards.say("gpu-2", (2, 10), {"half-gpu-2": (8, 0)})
    until(lambda: cluster.place("urgent"), found=lambda: cluster.log("cards")[-3000:])
    left = ("low-1", "half-gpu-1", "half-gpu-2", "urgent")
    assert [cluster.place(name) for name in left] == ["gpu-1", "gpu-1", "gpu-2", "gpu-2"]
