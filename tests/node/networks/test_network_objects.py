"""Objects `Network`: files of the nodes that they select, told in their status, and gone when nobody uses them."""

import json
import time
from typing import Any

import pytest
from tests.node.networks.conftest import Pods, bridge

from nodeplug.testing import CniError, Sandbox
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node
KEY = "k8s.v1.cni.cncf.io/networks"


def plugins(name: str, subnet: str, **more: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in bridge(name, subnet, **more).items() if key not in {"name", "cniVersion"}}]


def file_of(pods: Pods, name: str) -> Any:
    path = pods.node.paths.state / "networks" / "conflists" / f"{name}.conflist"
    return json.loads(path.read_text()) if path.exists() else None


def reason(pods: Pods, name: str) -> str:
    return str(pods.api.of_network(name).get("reason", ""))


def test_a_network_is_used_by_pods_renewed_and_withdrawn_when_the_last_of_them_ends(pods: Pods, pod: Sandbox) -> None:
    pods.api.network("blue", plugins=plugins("blue", "10.81.0.0/24"), nodeSelector={"matchLabels": {"rack": "a"}})
    until(lambda: reason(pods, "blue") == "Ready")
    pods.api.definition("blue", "")
    pods.api.pod("web", {KEY: "blue"})
    pods.attach("web", pod)
    assert pods.links(pod) == {"eth0", "net1"}

    pods.api.network("blue", plugins=plugins("blue", "10.81.0.0/24", mtu=1400))
    until(lambda: (file_of(pods, "blue") or {})["plugins"][0].get("mtu") == 1400)
    until(lambda: pods.api.of_network("blue")["observedGeneration"] == 2)

    pods.api.network("blue", plugins=plugins("blue", "10.81.0.0/24"), nodeSelector={"matchLabels": {"rack": "b"}})
    until(lambda: reason(pods, "blue") == "InUse")
    with Sandbox(pods.folder / "second") as second, pytest.raises(CniError) as refused:
        pods.attach("next", second, told={KEY: "blue"})
    assert (refused.value.code, "is being withdrawn from this node" in refused.value.msg) == (11, True)

    pods.detach("web", pod)
    until(lambda: pods.api.of_network("blue") == {})
    assert list((pods.node.paths.state / "networks" / "conflists").rglob("*.conflist")) == []
    pods.nothing_left(pod)


def test_networks_come_while_others_are_told_of(pods: Pods) -> None:
    pods.api.network("blue", plugins=plugins("blue", "10.81.0.0/24"))
    until(lambda: reason(pods, "blue") == "Ready")
    for number in range(100):
        time.sleep(0.005)  # so that the watch brings the next one while a status is written
        pods.api.network(f"n{number}", plugins=plugins(f"n{number}", f"10.82.{number}.0/24"))
    until(lambda: all(reason(pods, f"n{number}") == "Ready" for number in range(100)))
    assert "begins anew" not in pods.node.log


def test_a_network_that_is_deleted_while_the_daemon_is_away_is_withdrawn(pods: Pods) -> None:
    pods.api.network("blue", plugins=plugins("blue", "10.81.0.0/24"))
    until(lambda: file_of(pods, "blue"))
    pods.node.kill()
    pods.api.remove("networks", "blue")
    pods.node.start()
    until(lambda: file_of(pods, "blue") is None)


def test_labels_of_the_node_decide(pods: Pods) -> None:
    pods.api.network("blue", plugins=plugins("blue", "10.81.0.0/24"), nodeSelector={"matchLabels": {"rack": "b"}})
    pods.api.network("green", plugins=plugins("green", "10.82.0.0/24"))
    until(lambda: reason(pods, "green") == "Ready")
    assert file_of(pods, "blue") is None
    pods.api.node(rack="b")
    until(lambda: reason(pods, "blue") == "Ready")


def test_what_is_wrong_is_told_and_breaks_nothing(pods: Pods, pod: Sandbox) -> None:
    pods.api.network("ghost", plugins=[{"type": "ghost"}])
    pods.api.network("pods", plugins=plugins("blue", "10.81.0.0/24"))
    pods.api.network("empty", plugins=[])
    pods.api.network("odd", plugins="x", nodeSelector=[7])
    pods.api.network("untyped", plugins=[{"bridge": "b0"}])
    pods.api.network("number", plugins=[7])
    pods.api.network("future", plugins=plugins("future", "10.83.0.0/24"), cniVersion="9.9.9")
    pods.api.network("good", plugins=plugins("good", "10.82.0.0/24"))
    until(lambda: reason(pods, "ghost") == "UnknownPlugin")
    until(lambda: reason(pods, "pods") == "NameTaken")
    until(lambda: reason(pods, "empty") == "InvalidConfiguration")
    for name in ("untyped", "number", "future"):
        until(lambda name=name: reason(pods, name) == "InvalidConfiguration")  # type: ignore[misc]
    until(lambda: reason(pods, "good") == "Ready")
    assert "20-pods.conflist" in pods.api.of_network("pods")["message"]
    assert reason(pods, "odd") == ""
    wrong = {f"network {name}" for name in ("ghost", "pods", "empty", "untyped", "number", "future")}
    until(lambda: {row["about"] for row in pods.node.status()["networks"]} == wrong)
    pods.attach("web", pod, told={})
    pods.detach("web", pod)


def test_a_mistake_keeps_the_last_good_configuration(pods: Pods) -> None:
    pods.api.network("blue", plugins=plugins("blue", "10.81.0.0/24"))
    until(lambda: reason(pods, "blue") == "Ready")
    before = file_of(pods, "blue")
    pods.api.network("blue", plugins=[{"type": "a/b"}])
    until(lambda: reason(pods, "blue") == "InvalidConfiguration")
    assert file_of(pods, "blue") == before


def test_a_plugin_that_is_installed_later_makes_the_network_ready(pods: Pods) -> None:
    pods.api.network("blue", plugins=[{"type": "later"}])
    until(lambda: reason(pods, "blue") == "UnknownPlugin")
    (pods.node.paths.cni_bin / "later").write_text("")
    until(lambda: reason(pods, "blue") == "Ready")


def test_the_status_of_a_network_is_told_after_a_fault(pods: Pods) -> None:
    with pods.api.failing("conflict", lambda method, _: method == "PATCH"):
        pods.api.network("blue", plugins=plugins("blue", "10.81.0.0/24"))
        until(lambda: any(one.startswith("PATCH networks") for one in pods.api.asked))
    until(lambda: reason(pods, "blue") == "Ready")
