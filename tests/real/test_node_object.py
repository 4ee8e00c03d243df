"""What this node publishes, in a real API server: fields of ours alone, whatever others do meanwhile."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import ControlPlane
from tests.real.consumers.control_plane import KUBELETS

from nodeplug import NodeCondition, NodeConfigMap, NotFound, PluginError, PodReport
from nodeplug.cluster.desired import Desired
from nodeplug.cluster.event_objects import Happening, Subject
from nodeplug.cluster.events import Events
from nodeplug.cluster.node_object import NodeObject
from nodeplug.cluster.other_objects import ConfigMaps, PodAnnotations
from nodeplug.cluster.requests import Budget, Count, Requests
from nodeplug.kubeapi.access import Access, Material
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.credentials import Credentials, find

Work = Callable[[Requests], Awaitable[Any]]
Run = Callable[[Work], Any]
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"


@pytest.fixture
def run(cluster: ControlPlane) -> Run:
    """Do something with requests inside of the node, as the admin."""

    def do(work: Work) -> Any:
        async def go() -> Any:
            async with Client(Credentials(find(cluster.folder / "kubeconfig"))) as client:
                return await work(Requests(client, Budget(100, 0.001), Count()))

        with cluster.node.netns.entered():
            return asyncio.run(go())

    return do


def make_node(cluster: ControlPlane, name: str, **labels: str) -> dict[str, Any]:
    # With a label, as kubelet does it: the server does not keep who has written an object without fields.
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
    made: dict[str, Any] = cluster.call("POST", f"{NODES}?fieldManager=kubelet", {"metadata": metadata})
    return made


def labels(cluster: ControlPlane, name: str) -> dict[str, str]:
    """The labels of a Node, but those of Kubernetes."""
    found = cluster.call("GET", f"{NODES}/{name}")["metadata"].get("labels") or {}
    return {key: value for key, value in found.items() if "kubernetes.io" not in key}


def ours(cluster: ControlPlane, name: str) -> list[tuple[str, str, str]]:
    """Conditions of a Node that have a domain."""
    found = cluster.call("GET", f"{NODES}/{name}")["status"].get("conditions") or []
    return [(one["type"], one["status"], one["message"]) for one in found if "/" in one["type"]]


WORN = NodeCondition(type="example.com/Worn", reason="Worn", message="the disk wears out")
FIRST = Desired(labels={"example.com/a": "1", "example.com/b": "2"}, annotations={"example.com/n": "{}"})


def test_what_is_no_longer_wanted_is_removed_and_nothing_else(run: Run, cluster: ControlPlane) -> None:
    make_node(cluster, "one", mine="x")
    node = NodeObject("one", 300)

    run(lambda requests: node.bring(Desired(FIRST.labels, FIRST.annotations, {WORN.type: WORN}), requests))
    assert labels(cluster, "one") == {"mine": "x", **FIRST.labels}
    assert ours(cluster, "one") == [("example.com/Worn", "True", "the disk wears out")]
    run(lambda requests: node.bring(Desired({"example.com/a": "3"}), requests))
    assert labels(cluster, "one") == {"mine": "x", "example.com/a": "3"}
    assert ours(cluster, "one") == []


def test_a_daemon_that_was_killed_between_two_writes_leaves_nothing_to_the_next(
    run: Run, cluster: ControlPlane
) -> None:
    make_node(cluster, "killed")
    run(lambda requests: NodeObject("killed", 300).bring(Desired(FIRST.labels, {}, {WORN.type: WORN}), requests))
    run(lambda requests: NodeObject("killed", 300).bring(Desired({"example.com/b": "2"}), requests))
    assert labels(cluster, "killed") == {"example.com/b": "2"}
    assert ours(cluster, "killed") == []


def test_a_label_that_somebody_else_has_set_is_left_to_them(run: Run, cluster: ControlPlane) -> None:
    make_node(cluster, "shared")
    node = NodeObject("shared", 0)
    run(lambda requests: node.bring(FIRST, requests))
    cluster.call(
        "PATCH",
        f"{NODES}/shared?fieldManager=kubectl-label",
        {"metadata": {"labels": {"example.com/a": "theirs"}}},
        content=MERGE,
    )
    run(lambda requests: node.bring(FIRST, requests))
    assert labels(cluster, "shared") == {"example.com/a": "theirs", "example.com/b": "2"}
    assert node.left == {".metadata.labels.example.com/a": "kubectl-label"}
    cluster.call("PATCH", f"{NODES}/shared", {"metadata": {"labels": {"example.com/a": None}}}, content=MERGE)
    run(lambda requests: node.bring(FIRST, requests))
    assert labels(cluster, "shared") == FIRST.labels
    assert node.left == {}


def test_a_condition_that_somebody_else_has_set_is_left_to_them(run: Run, cluster: ControlPlane) -> None:
    make_node(cluster, "observed")
    node = NodeObject("observed", 0)
    fine = {"type": WORN.type, "status": "False", "reason": "Fine", "message": "all is well"}
    path = f"{NODES}/observed/status?fieldManager=detector"
    cluster.call("PATCH", path, {"status": {"conditions": [fine]}}, content=MERGE)
    run(lambda requests: node.bring(Desired(FIRST.labels, {}, {WORN.type: WORN}), requests))
    assert ours(cluster, "observed") == [("example.com/Worn", "False", "all is well")]
    assert set(node.left.values()) == {"detector"}
    assert labels(cluster, "observed") == FIRST.labels


def test_a_label_that_somebody_removed_is_there_again_after_the_next_look(run: Run, cluster: ControlPlane) -> None:
    make_node(cluster, "removed")
    node = NodeObject("removed", 0)
    run(lambda requests: node.bring(FIRST, requests))
    cluster.call("PATCH", f"{NODES}/removed", {"metadata": {"labels": {"example.com/a": None}}}, content=MERGE)
    run(lambda requests: node.bring(FIRST, requests))
    assert labels(cluster, "removed") == FIRST.labels


def test_a_node_that_is_gone_is_not_created_and_one_that_comes_back_gets_everything(
    run: Run, cluster: ControlPlane
) -> None:
    make_node(cluster, "anew")
    node = NodeObject("anew", 300)
    run(lambda requests: node.bring(FIRST, requests))
    cluster.call("DELETE", f"{NODES}/anew")
    for _ in range(2):  # the first finds out by its uid, the second by a look
        with pytest.raises(PluginError):
            run(lambda requests: node.bring(Desired({"example.com/a": "4"}), requests))
    with pytest.raises(PluginError, match="404"):
        cluster.call("GET", f"{NODES}/anew")
    with pytest.raises(NotFound, match="look at node_name"):
        run(lambda requests: node.bring(FIRST, requests))
    make_node(cluster, "anew")
    run(lambda requests: node.bring(FIRST, requests))
    assert labels(cluster, "anew") == FIRST.labels


def test_nothing_is_written_while_nothing_changes(run: Run, cluster: ControlPlane) -> None:
    make_node(cluster, "calm")
    node = NodeObject("calm", 300)

    async def work(requests: Requests) -> tuple[int, int]:
        await node.bring(FIRST, requests)
        first = requests.count.requests
        for _ in range(5):
            await node.bring(FIRST, requests)
        return first, requests.count.requests

    assert run(work) == (3, 3)


def test_kubelets_own_identity_is_enough_for_its_node_and_for_events(cluster: ControlPlane) -> None:
    make_node(cluster, KUBELETS)
    access = Access(
        cluster.server, authority=Material(file=cluster.authority), token=cluster.kubelet_token, source="kubelet"
    )
    events = Events(KUBELETS)
    events.add(Happening(Subject("Node", KUBELETS, "", KUBELETS), "DevicesNotAllocated", "Allocate", "no card fits"))

    async def go() -> None:
        async with Client(Credentials(access)) as client:
            requests = Requests(client, Budget(100, 0.001), Count())
            await NodeObject(KUBELETS, 300).bring(Desired(FIRST.labels, {}, {WORN.type: WORN}), requests)
            await until(events, requests, lambda: events.waiting == 0)

    with cluster.node.netns.entered():
        asyncio.run(go())
    assert labels(cluster, KUBELETS) == FIRST.labels
    assert ours(cluster, KUBELETS) == [("example.com/Worn", "True", "the disk wears out")]
    assert len(told(cluster, KUBELETS)) == 1
    assert events.trouble == ""


def test_uninstall_withdraws_what_was_published(run: Run, cluster: ControlPlane, tmp_path: Path) -> None:
    make_node(cluster, "leaving", mine="x")
    run(lambda requests: NodeObject("leaving", 300).bring(Desired(FIRST.labels, {}, {WORN.type: WORN}), requests))
    path = tmp_path / "nodeplug.toml"
    path.write_text(
        f'version = 1\n[supervisor]\nnode_name = "leaving"\n[cluster]\nkubeconfig = "{cluster.folder}/kubeconfig"\n'
    )
    place = ["--config", str(path), "--root", str(tmp_path)]
    command = cluster.node.command(sys.executable, "-m", "nodeplug", "uninstall", *place)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "removed from the cluster: labels and annotations of node leaving" in done.stderr
    assert labels(cluster, "leaving") == {"mine": "x"}
    assert ours(cluster, "leaving") == []


# --- pods and ConfigMaps


def make_pod(cluster: ControlPlane, name: str, node: str, **annotations: str) -> dict[str, Any]:
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "none"}]}
    made: dict[str, Any] = cluster.call(
        "POST", PODS, {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
    )
    return made


def annotations(cluster: ControlPlane, name: str) -> dict[str, str]:
    return dict(cluster.pod(name)["metadata"].get("annotations") or {})


def test_annotations_of_a_pod_are_what_is_true_whatever_a_scheduler_has_guessed(
    run: Run, cluster: ControlPlane
) -> None:
    make_pod(cluster, "guessed", "here", IDX="0", TIME="17", other="x")
    report = PodReport(
        namespace="default", name="guessed", annotations={"IDX": "1"}, defaults={"TIME": "99", "ASSIGNED": "true"}
    )
    run(lambda requests: PodAnnotations("here").write(report, requests))
    assert annotations(cluster, "guessed") == {"IDX": "1", "TIME": "17", "ASSIGNED": "true", "other": "x"}


def test_a_pod_of_another_node_or_of_another_life_is_left_alone(run: Run, cluster: ControlPlane) -> None:
    make_pod(cluster, "elsewhere", "there")
    make_pod(cluster, "again", "here")
    pods = PodAnnotations("here")
    run(lambda r: pods.write(PodReport(namespace="default", name="elsewhere", annotations={"a": "b"}), r))
    again = PodReport(namespace="default", name="again", uid="of-its-former-life", annotations={"a": "b"})
    run(lambda r: pods.write(again, r))
    run(lambda r: pods.write(PodReport(namespace="default", name="never", annotations={"a": "b"}), r))
    assert (annotations(cluster, "elsewhere"), annotations(cluster, "again")) == ({}, {})


MAPS = "/api/v1/namespaces/kube-system/configmaps"


def test_a_config_map_comes_and_goes_with_what_it_says(run: Run, cluster: ControlPlane) -> None:
    maps, place = ConfigMaps("here"), ("kube-system", "unhealthy-here")

    def wanted(**data: str) -> dict[tuple[str, str], NodeConfigMap]:
        return {place: NodeConfigMap(namespace=place[0], name=place[1], data=data)}

    run(lambda requests: maps.bring(wanted(), requests))
    with pytest.raises(PluginError, match="404"):
        cluster.call("GET", f"{MAPS}/unhealthy-here")
    run(lambda requests: maps.bring(wanted(gpus="0,3"), requests))
    assert cluster.call("GET", f"{MAPS}/unhealthy-here")["data"] == {"gpus": "0,3"}
    run(lambda requests: ConfigMaps("here").bring(wanted(), requests))  # another daemon, which wrote nothing yet
    assert "data" not in cluster.call("GET", f"{MAPS}/unhealthy-here")


def test_a_config_map_that_an_administrator_has_written_is_left_to_them(run: Run, cluster: ControlPlane) -> None:
    cluster.call("POST", MAPS, {"metadata": {"name": "taken-here"}, "data": {"gpus": "7"}})
    maps, place = ConfigMaps("here"), ("kube-system", "taken-here")
    one = NodeConfigMap(namespace=place[0], name=place[1], data={"gpus": "0"})
    run(lambda requests: maps.bring({place: one}, requests))
    assert cluster.call("GET", f"{MAPS}/taken-here")["data"] == {"gpus": "7"}
    assert "it is left to" in maps.troubles[place]


# --- events


def told(cluster: ControlPlane, name: str) -> list[dict[str, Any]]:
    """The events of a Node that are ours; controllers tell something of it too, in their own time."""
    return [one for one in cluster.events(name) if one["reportingController"] == "nodeplug.io/node"]


async def until(events: Events, requests: Requests, holds: Callable[[], bool]) -> None:
    """Let events be told until something holds."""
    telling = asyncio.create_task(events.run(requests))
    while not holds():
        await asyncio.sleep(0.01)
        if telling.done():
            telling.result()
    telling.cancel()


def test_an_event_that_happens_again_is_one_with_a_count(run: Run, cluster: ControlPlane) -> None:
    uid = make_pod(cluster, "unlucky", "here")["metadata"]["uid"]
    events = Events("here")

    def happens(number: int) -> None:
        subject = Subject("Pod", "unlucky", "default")
        events.add(Happening(subject, "VolumeNotMounted", "mount", f"no room: {number} bytes (request 0badcafe)"))

    async def work(requests: Requests) -> None:
        happens(1)
        await until(events, requests, lambda: events.waiting == 0)
        for one in events._series.values():
            one.told_at = float("-inf")  # a minute later
        happens(2)
        happens(3)
        await until(events, requests, lambda: events.waiting == 0)

    run(work)
    (found,) = told(cluster, "unlucky")
    assert (found["regarding"]["uid"], found["series"]["count"], found["type"]) == (uid, 3, "Warning")
    assert found["note"].startswith("no room: 1 bytes")
    asked = f"involvedObject.kind=Pod,involvedObject.name=unlucky,involvedObject.uid={uid}"  # as kubectl describe does
    (shown,) = cluster.call("GET", f"/api/v1/namespaces/default/events?fieldSelector={asked}")["items"]
    assert (shown["reason"], shown["message"], shown["type"]) == ("VolumeNotMounted", found["note"], "Warning")
    assert datetime.fromisoformat(found["eventTime"]) <= datetime.now(UTC)


def tell_of_no_name(cluster: ControlPlane) -> None:
    """Write an event as an API server does that could not create the ServiceCIDR of its own."""
    told = {"metadata": {"generateName": "about-no-name-"}, "regarding": {"namespace": "default"}, "type": "Warning"}
    why = {"reason": "Refused", "action": "Create", "eventTime": "2026-01-01T00:00:00.000000Z"}
    source = {"reportingController": "x", "reportingInstance": "x"}
    cluster.call("POST", "/apis/events.k8s.io/v1/namespaces/default/events", told | why | source)


def test_an_event_about_the_node_is_where_kubectl_looks_for_it(run: Run, cluster: ControlPlane) -> None:
    tell_of_no_name(cluster)
    events = Events("here")
    events.add(Happening(Subject("Node", "here", "", "here"), "DevicesNotAllocated", "Allocate", "x" * 3000))
    run(lambda requests: until(events, requests, lambda: events.waiting == 0))
    (found,) = told(cluster, "here")
    assert len(found["note"]) == 1024
