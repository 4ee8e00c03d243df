"""A ReplicaSet whose pods fit what is free on the node and no card of it, with the real scheduler and kubelet.

Kubelet refuses such a pod for good and the controller makes the next one at once, again and again. Where the daemon
withholds what no container could use, the next one waits.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import Lab, PrivateNode, open_lab, pod
from tests.real.test_kubelet_gpu import MEMORY, PUBLISHED, ask, held

from nodeplug.testing import folders

pytestmark = pytest.mark.real
PLUGINS = f"""
[plugins.bridge]
[plugins.host-local]
[plugins.loopback.config]
names = ["loopback"]
[plugins.gpu.config]
driver = "simulated"
poll = "200ms"
simulated = [{{ memory = "4GiB", count = 2 }}]
[[plugins.gpu.config.resources]]
sharing = "memory"
resource = "{MEMORY}"
withhold = "%s"
"""
SETS = "/apis/apps/v1/namespaces/default/replicasets"
STORM = 5


@pytest.fixture(scope="module")
def lab(make_private_node: Callable[..., PrivateNode], consumer: Callable[[str], Path]) -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    programs, runtime = consumer("kubernetes"), consumer("containerd")
    try:
        with (
            make_private_node(folder / "n") as private,
            open_lab(
                *(private, folder, programs / "kubelet", PLUGINS % "never"),
                resource=MEMORY,
                conflists=[PUBLISHED],
                runtime=runtime,
                control_plane=programs,
            ) as made,
        ):
            yield made
            sys.stdout.write(made.daemon.log)
    finally:
        folders.remove(folder)


def put_set(lab: Lab, name: str, units: int) -> None:
    """Create a ReplicaSet of one pod that asks for units."""
    spec = pod(name, "", limits={MEMORY: units})["spec"]
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {**spec, "dnsPolicy": "Default", "enableServiceLinks": False}}
    made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}}
    made["spec"] = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    assert lab.control_plane is not None
    lab.control_plane.call("POST", SETS, made)


def pods_of(lab: Lab, name: str) -> list[dict[str, Any]]:
    assert lab.control_plane is not None
    found = lab.control_plane.call("GET", f"/api/v1/namespaces/default/pods?labelSelector=app%3D{name}")
    return list(found["items"])


def failed(lab: Lab, name: str) -> int:
    return sum(one["status"]["phase"] == "Failed" for one in pods_of(lab, name))


def waits(lab: Lab, name: str) -> bool:
    """Whether the pod of a set waits for units that the scheduler does not find."""
    conditions = [it for one in pods_of(lab, name) for it in one["status"].get("conditions", ())]
    return any(it.get("reason") == "Unschedulable" and f"Insufficient {MEMORY}" in it["message"] for it in conditions)


def test_the_pod_of_a_set_waits_for_a_card_instead_of_being_made_and_refused_for_ever(lab: Lab) -> None:
    plane = lab.control_plane
    assert plane is not None
    for name in ("one", "two"):
        plane.schedule(pod(name, "", limits={MEMORY: 3}))
    lab.kubelet.wait_for(
        "two pods", lambda: {plane.pod(one)["status"]["phase"] for one in ("one", "two")} == {"Running"}
    )
    lab.kubelet.wait_for("two cards with a unit each", lambda: len({card for card, _ in held(lab).values()}) == 2)
    put_set(lab, "before", 2)
    lab.kubelet.wait_for("a storm of refusals", lambda: failed(lab, "before") >= STORM)
    plane.call("DELETE", f"{SETS}/before")
    lab.reload(PLUGINS % "after-refusal")
    put_set(lab, "after", 2)
    lab.kubelet.wait_for("a pod that waits", lambda: waits(lab, "after"))
    refused = failed(lab, "after")
    sys.stdout.write(f"refused before it waits: {refused}\n")
    (resource,) = (one for one in ask(lab)["resources"] if one["resource"] == MEMORY)
    assert (resource["devices"], resource["healthy"], resource["withheld"]) == (8, 7, 1)
    put_set(lab, "small", 1)  # what one card has is there for others
    lab.kubelet.wait_for(
        "a small pod", lambda: any(one["status"]["phase"] == "Running" for one in pods_of(lab, "small"))
    )
    plane.delete("one")
    lab.kubelet.wait_for(
        "the pod that waited", lambda: any(one["status"]["phase"] == "Running" for one in pods_of(lab, "after"))
    )
    assert failed(lab, "after") == refused
    for name in ("after", "small"):
        plane.call("DELETE", f"{SETS}/{name}")
    plane.delete("two")
    lab.kubelet.wait_for("an empty node", lambda: not plane.scheduled())
