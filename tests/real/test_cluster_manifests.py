"""What `nodeplug cluster manifests` prints, in a real API server: a node may write its own objects, and no others."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from tests.real.consumers import ControlPlane

from nodeplug import NodeCondition, NodeConfigMap, PluginError, PodReport
from nodeplug.cluster.desired import Desired
from nodeplug.cluster.event_objects import Happening, Subject, event
from nodeplug.cluster.node_object import NodeObject
from nodeplug.cluster.other_objects import ConfigMaps, PodAnnotations
from nodeplug.cluster.requests import MANAGER, Budget, Count, Requests
from nodeplug.cluster.withdrawal import withdraw
from nodeplug.kubeapi.access import Access, Material
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.refusals import Forbidden
from nodeplug.kubeapi.resources import NODES, REPORTED_EVENTS

RBAC, ADMISSION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "ServiceAccount": "/api/v1/namespaces/kube-system/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/kube-system/roles",
    "RoleBinding": f"{RBAC}/namespaces/kube-system/rolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
PODS = "/api/v1/namespaces/kube-system/pods"
MINE = Desired({"example.com/a": "1"}, {"nodeplug.io/gpu-mem": "{}"})
WORN = NodeCondition(type="example.com/Worn", reason="Worn", message="it wears out")
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("configuration") / "nodeplug.toml"
    path.write_text("version = 1\n[cluster]\n")
    command = [sys.executable, "-m", "nodeplug", "cluster", "manifests", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return list(yaml.safe_load_all(done.stdout))


def make_node(cluster: ControlPlane, name: str) -> None:
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    cluster.call("POST", "/api/v1/nodes?fieldManager=kubelet", {"metadata": metadata})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    status = {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}, "conditions": [ready]}
    path = f"/api/v1/nodes/{name}/status?fieldManager=kubelet"
    cluster.call("PATCH", path, {"status": status}, content="application/merge-patch+json")


def make_pod(cluster: ControlPlane, name: str, node: str) -> str:
    spec = {
        "nodeName": node,
        "serviceAccountName": "nodeplug-node",
        "containers": [{"name": "c", "image": "none"}],
    }
    made = cluster.call("POST", PODS, {"metadata": {"name": name, "labels": {"app": "nodeplug"}}, "spec": spec})
    return str(made["metadata"]["uid"])


def token(cluster: ControlPlane, bound: dict[str, str] | None = None) -> str:
    spec = {"expirationSeconds": 3600, **({"boundObjectRef": bound} if bound else {})}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = cluster.call("POST", f"{PLURALS['ServiceAccount']}/nodeplug-node/token", asked)
    return str(answer["status"]["token"])


@pytest.fixture(scope="module")
def ask(cluster: ControlPlane, printed: list[dict[str, Any]]) -> Ask:
    """Ask as the daemon of the node `mine`, or with another token; the policy is in force."""
    for one in printed:
        cluster.call("POST", f"{PLURALS[one['kind']]}?fieldValidation=Strict", one)
    for name in ("mine", "theirs"):
        make_node(cluster, name)
    uid = make_pod(cluster, "daemon", "mine")
    make_pod(cluster, "other", "theirs")
    own = token(cluster, {"kind": "Pod", "apiVersion": "v1", "name": "daemon", "uid": uid})

    def do(work: Callable[[Requests], Awaitable[Any]], shown: str = own) -> Any:
        access = Access(cluster.server, authority=Material(file=cluster.authority), token=shown, source="a pod")

        async def go() -> Any:
            async with Client(Credentials(access)) as client:
                return await work(Requests(client, Budget(100, 0.001), Count()))

        with cluster.node.netns.entered():
            return asyncio.run(go())

    late = time.monotonic() + 60
    while time.monotonic() < late:  # the server learns of roles and policies by a watch
        try:
            do(lambda requests: NodeObject("theirs", 300).bring(MINE, requests))
        except Forbidden as error:
            if "a node writes its own Node alone" in str(error):
                return do
        time.sleep(0.2)
    raise AssertionError("the policy does not come into force")


def test_a_node_publishes_all_of_its_own(ask: Ask, cluster: ControlPlane) -> None:
    pod = PodReport(namespace="kube-system", name="daemon", annotations={"IDX": "1"})
    place = ("kube-system", "unhealthy-gpu-mine")
    one = NodeConfigMap(namespace=place[0], name=place[1], data={"gpus": "0"})
    maps = ConfigMaps("mine")

    async def work(requests: Requests) -> None:
        await NodeObject("mine", 300).bring(Desired(MINE.labels, MINE.annotations, {WORN.type: WORN}), requests)
        await PodAnnotations("mine").write(pod, requests)
        await maps.bring({place: one}, requests)
        for subject in (Subject("Pod", "daemon", "kube-system", "u"), Subject("Node", "mine", "", "mine")):
            written = event(Happening(subject, "R", "a", "note"), "mine", *_now())
            await requests.create(REPORTED_EVENTS, written, subject.home)

    ask(work)
    found = cluster.call("GET", "/api/v1/nodes/mine")
    assert found["metadata"]["labels"]["example.com/a"] == "1"
    assert {"Ready", "example.com/Worn"} <= {one["type"] for one in found["status"]["conditions"]}
    assert cluster.call("GET", f"{PODS}/daemon")["metadata"]["annotations"] == {"IDX": "1"}
    assert maps.troubles == {}


def _now() -> tuple[Any, str]:
    return datetime.now(UTC), str(time.monotonic_ns())


def refused(ask: Ask, work: Callable[[Requests], Awaitable[Any]], *shown: str) -> str:
    with pytest.raises(PluginError) as raised:
        ask(work, *shown)
    return str(raised.value)


def body(name: str = "mine", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, **more.pop("metadata", {})}
    return {"metadata": metadata, **more}


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (lambda r: r.apply(NODES, body("theirs")), "a node writes its own Node alone"),
        (
            lambda r: r.apply(
                NODES, body("theirs", status={"conditions": [{"type": "a.b/C", "status": "True"}]}), part="status"
            ),
            "a node writes its own Node alone",
        ),
        (
            lambda r: r.apply(NODES, body(spec={"taints": [{"key": "a", "effect": "NoExecute"}]})),
            "changes no taints",
        ),
        (
            lambda r: r.apply(NODES, body(metadata={"labels": {"node-role.kubernetes.io/control-plane": ""}})),
            "changes no labels of kubernetes.io",
        ),
        (
            lambda r: r.apply(NODES, body(metadata={"labels": {"kubernetes.io/hostname": "x"}}), force=True),
            "changes no labels of kubernetes.io",
        ),
        (
            lambda r: r.apply(NODES, body(status={"capacity": {"example.com/x": "1"}}), part="status", force=True),
            "changes no capacity",
        ),
        (
            lambda r: r.apply(
                NODES,
                body(status={"conditions": [{"type": "Ready", "status": "False"}]}),
                part="status",
                force=True,
            ),
            "no conditions of kubelet",
        ),
        (
            lambda r: r.create(
                REPORTED_EVENTS,
                event(Happening(Subject("Node", "theirs"), "R", "a", "n"), "theirs", *_now()),
                "default",
            ),
            "events of its own alone",
        ),
    ],
)
def test_what_is_not_its_own_is_refused_to_a_node(ask: Ask, work: Any, told: str) -> None:
    assert told in refused(ask, work)


def test_a_pod_of_another_node_is_refused(ask: Ask, cluster: ControlPlane) -> None:
    report = PodReport(namespace="kube-system", name="other", annotations={"a": "b"})
    # One that lies about its node, as a stolen token may.
    said = refused(ask, lambda requests: PodAnnotations("theirs").write(report, requests))
    assert "of its own pods alone" in said
    assert "annotations" not in cluster.call("GET", f"{PODS}/other")["metadata"]


def test_a_config_map_of_another_node_is_refused(ask: Ask) -> None:
    place = ("kube-system", "unhealthy-gpu-theirs")
    maps = ConfigMaps("theirs")
    one = NodeConfigMap(namespace=place[0], name=place[1], data={"gpus": "0"})
    ask(lambda requests: maps.bring({place: one}, requests))
    assert "whose name ends with its own" in maps.troubles[place]


def test_a_token_that_is_bound_to_no_pod_may_write_nothing(ask: Ask, cluster: ControlPlane) -> None:
    said = refused(ask, lambda requests: NodeObject("mine", 300).bring(MINE, requests), token(cluster))
    assert "bound to no pod on a node" in said


def test_a_node_is_never_created_by_its_daemon(ask: Ask) -> None:
    said = refused(ask, lambda requests: requests.apply(NODES, body("new")))
    assert "new" in said


def test_what_was_published_is_withdrawn_and_nothing_else(ask: Ask, cluster: ControlPlane) -> None:
    test_a_node_publishes_all_of_its_own(ask, cluster)

    async def go() -> list[str]:
        async with Client(Credentials(find(cluster.folder / "kubeconfig"))) as client:
            first = await withdraw(client, "mine")
            assert await withdraw(client, "mine") == []
            assert await withdraw(client, "unknown") == []
            return first

    with cluster.node.netns.entered():
        removed = asyncio.run(go())
    assert removed == [
        "labels and annotations of node mine",
        "conditions of node mine",
        "ConfigMap kube-system/unhealthy-gpu-mine",
    ]
    found = cluster.call("GET", "/api/v1/nodes/mine")
    assert not any("example.com" in key for key in found["metadata"]["labels"])
    assert not any("/" in one["type"] for one in found["status"]["conditions"])
    assert MANAGER not in {one["manager"] for one in found["metadata"]["managedFields"]}
