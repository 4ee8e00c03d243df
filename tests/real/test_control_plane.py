"""A pod that nobody bound to a node: the real scheduler places it by what the node offers, and it gets its device.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and containerd are the real and current ones.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.real.consumers import ControlPlane, Lab

RESOURCE = "example.com/widget"
pytestmark = pytest.mark.parametrize("generation", ["current"], indirect=True, scope="session")
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]], consumer: Callable[[str], Path]) -> Iterator[Lab]:
    with make_kubelet_lab(PUBLISHED, control_plane=consumer("kubernetes")) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(lab: Lab) -> ControlPlane:
    assert lab.control_plane is not None
    return lab.control_plane


def unplaced(cluster: ControlPlane, name: str) -> str:
    """Return why the scheduler does not place a pod, or nothing."""
    found = cluster.pod(name)["status"].get("conditions") or []
    return next((entry["message"] for entry in found if entry.get("reason") == "Unschedulable"), "")


def test_a_pod_waits_for_a_device_and_the_scheduler_places_it_when_one_is_free(
    lab: Lab, cluster: ControlPlane, difference: Callable[[], list[str]]
) -> None:
    lab.run("both", limits={RESOURCE: 2})
    assert cluster.pod("both")["spec"]["nodeName"] == lab.private.name
    assert lab.devices_of("both") == ["widget0", "widget1"]
    lab.put("next", limits={RESOURCE: 1})
    lab.kubelet.wait_for("a refusal", lambda: f"Insufficient {RESOURCE}" in unplaced(cluster, "next"))
    lab.kubelet.drop("both")
    lab.kubelet.running("next")
    assert len(lab.devices_of("next")) == 1
    assert difference() == []
