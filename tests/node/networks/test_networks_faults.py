"""Pods while the API server is away, slow or wrong: what is known goes on, what is not fails in time and says why."""

import json

import pytest
from tests.node.acted_api import ActedApi, Fault
from tests.node.networks.conftest import Pods, bridge

from nodeplug.testing import CniError, Sandbox
from nodeplug.testing.acted_api.store import Where
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node
KEY = "k8s.v1.cni.cncf.io/networks"
STATUS = "k8s.v1.cni.cncf.io/network-status"


@pytest.mark.parametrize(
    "fault", ["away", "silent", *(pytest.param(one, marks=pytest.mark.whole) for one in ("busy", "broken", "half"))]
)
def test_a_pod_that_cannot_be_read_fails_in_time_with_code_11(pods: Pods, pod: Sandbox, fault: Fault) -> None:
    """Patience is one second here; the whole test would end by its own limit otherwise."""
    with pods.api.failing(fault):
        pods.api.pod("late", {KEY: "blue"})
        with pytest.raises(CniError) as refused:
            pods.attach("late", pod)
    assert refused.value.code == 11
    assert "which networks pod default/late wants cannot be read: the API server was asked for 1 s" in refused.value.msg
    pods.nothing_left(pod)


@pytest.mark.whole
def test_a_daemon_that_starts_without_an_api_server_knows_the_networks_of_before(pods: Pods, pod: Sandbox) -> None:
    pods.api.definition("blue", bridge("blue", "10.81.0.0/24"))
    pods.knows("blue")
    pods.node.kill()
    with pods.api.failing("away"):
        pods.node.start()
        pods.attach("web", pod, told={KEY: "blue"})
        assert pods.links(pod) == {"eth0", "net1"}
        pods.detach("web", pod)
    pods.nothing_left(pod)


def test_what_a_killed_daemon_was_writing_is_removed_by_the_next(pods: Pods) -> None:
    pods.node.kill()
    folder = pods.node.paths.state / "networks"
    (folder / "conflists").mkdir(parents=True, exist_ok=True)
    for left in (half := [folder / ".definitions.json.7.ab.tmp", folder / "conflists" / ".blue.conflist.7.ab.tmp"]):
        left.write_text("{")
    pods.node.start()
    until(lambda: not any(left.exists() for left in half))


@pytest.mark.parametrize("told", [{}, {"other": "annotation"}])
def test_a_pod_without_the_annotation_asks_nobody_where_the_runtime_says_so(
    pods: Pods, pod: Sandbox, told: dict[str, str]
) -> None:
    with pods.api.failing("silent"):  # an ADD that asks it fails with code 11
        pods.attach("web", pod, told=told)
    pods.detach("web", pod)
    pods.nothing_left(pod)


def test_a_pod_that_ends_asks_nobody(pods: Pods, pod: Sandbox) -> None:
    pods.api.definition("blue", bridge("blue", "10.81.0.0/24"))
    pods.api.pod("web", {KEY: "blue"})
    pods.attach("web", pod)
    with pods.api.failing("silent"):
        pods.api.asked.clear()
        pods.detach("web", pod)
        pods.nothing_left(pod)
        assert not {"GET pods default/web", "GET network-attachment-definitions default/blue"} & set(pods.api.asked)


def test_a_network_that_is_not_known_yet_fails_with_code_11(pods: Pods, pod: Sandbox) -> None:
    with pods.api.failing("away"), pytest.raises(CniError) as refused:
        pods.attach("web", pod, told={KEY: "blue"})
    assert (refused.value.code, "network default/blue is not known yet" in refused.value.msg) == (11, True)
    pods.nothing_left(pod)


def test_another_pod_of_the_name_is_not_the_one_that_is_meant(pods: Pods, pod: Sandbox) -> None:
    pods.api.pod("web", {KEY: "blue"})
    with pytest.raises(CniError) as refused:
        pods.attach("web", pod, uid="former")
    assert (refused.value.code, "pod with UID former" in refused.value.msg) == (11, True)


def test_pods_of_other_nodes_are_not_read(pods: Pods, pod: Sandbox) -> None:
    pods.api.pod("elsewhere", {KEY: "blue"}, node="node-2")
    with pytest.raises(CniError, match="it is not on node node-1"):
        pods.attach("elsewhere", pod)


@pytest.mark.parametrize(
    "fault",
    [
        "away",
        "gone",
        "mute watch",
        *(pytest.param(one, marks=pytest.mark.whole) for one in ("broken", "busy", "half", "silent")),
    ],
)
def test_what_has_changed_during_a_fault_is_known_after_it(pods: Pods, pod: Sandbox, fault: Fault) -> None:
    pods.api.definition("blue", bridge("blue", "10.81.0.0/24"))
    pods.knows("blue")
    with pods.api.failing(fault):
        pods.api.definition("green", bridge("green", "10.82.0.0/24"))
        pods.api.pod("web", {KEY: "green"})
    pods.attach("web", pod)  # it is asked for, whether or not it has been heard of
    assert pods.links(pod) == {"eth0", "net1"}
    pods.detach("web", pod)
    pods.nothing_left(pod)


@pytest.mark.parametrize(
    "fault", ["away", "conflict", *(pytest.param(one, marks=pytest.mark.whole) for one in ("broken", "busy"))]
)
def test_the_status_of_a_pod_is_written_when_the_server_lets_us(pods: Pods, pod: Sandbox, fault: Fault) -> None:
    pods.api.pod("web", {})

    def patches(method: str, _: Where) -> bool:
        return method == "PATCH"

    with pods.api.failing(fault, patches):
        pods.api.asked.clear()
        pods.attach("web", pod)  # the answer does not wait
        until(lambda: sum(one.startswith("PATCH pods") for one in pods.api.asked) >= 2)
        assert pods.api.status_of("web") is None
    until(lambda: pods.api.status_of("web"))
    pods.detach("web", pod)


def test_the_status_that_a_killed_daemon_owed_is_written_by_the_next(pods: Pods, pod: Sandbox) -> None:
    pods.api.pod("web", {})
    with pods.api.failing("away", lambda method, _: method == "PATCH"):
        pods.attach("web", pod)
        pods.node.kill()
    pods.node.start()
    until(lambda: pods.api.status_of("web"))
    pods.detach("web", pod)


def test_the_status_is_not_written_to_a_later_pod_of_the_name(pods: Pods, pod: Sandbox) -> None:
    pods.api.pod("web", {})
    with pods.api.failing("away", lambda method, _: method == "PATCH"):
        pods.attach("web", pod)
        until(lambda: any(one.startswith("PATCH pods") for one in pods.api.asked))
        pods.api.remove("pods", "web", "default")
        pods.api.pod("web", {})
    pods.api.asked.clear()
    pods.api.pod("next", {})
    with Sandbox(pods.folder / "next") as second:
        pods.attach("next", second)
        until(lambda: pods.api.status_of("next"))
        pods.detach("next", second)
    assert pods.api.status_of("web") is None
    pods.detach("web", pod)


def test_a_daemon_without_the_section_asks_nobody(pods: Pods, pod: Sandbox) -> None:
    root = pods.node.root
    toml = f'[plugins.bridge.config]\ndata_dir = "{root}/addresses"\n[plugins.networks.config]\n'
    pods.node.stop()
    pods.node.configure(f'{toml}conf_dir = "{root}/etc/cni/net.d"\n')
    with ActedApi() as api:  # its own, since requests of the daemon before may still be on their way to the other
        (root / "kubeconfig").write_text(api.kubeconfig)
        pods.node.start()
        pods.attach("plain", pod, told={})
        with Sandbox(pods.folder / "second") as second, pytest.raises(CniError, match=r"add a section \[networks\]"):
            pods.attach("web", second, told={KEY: "blue"})
        assert api.asked == []
    pods.detach("plain", pod)


def test_only_networks_without_a_slash_are_of_the_node(pods: Pods, pod: Sandbox) -> None:
    pods.conflist["plugins"][0]["clusterNetwork"] = "kube-system/far"  # type: ignore[index]
    pods.api.definition("far", json.dumps(bridge("far", "10.88.0.0/24")), "kube-system")
    pods.api.pod("web", {})
    result = pods.attach("web", pod)
    assert result["ips"][0]["address"].startswith("10.88.0.")
    pods.detach("web", pod)
