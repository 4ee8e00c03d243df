"""Cards by claims, with the current control plane, kubelet and containerd: what the scheduler allocates, pods get.

The cards are simulated; everything else is real.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import Lab, PrivateNode, open_lab, pod
from tests.real.consumers.claims_of_devices import (
    CLAIMS,
    devices,
    phase,
    put_claim,
    put_class,
    put_observer,
    put_pod,
    slices,
)
from tests.real.consumers.control_plane import ControlPlane
from tests.real.test_kubelet_gpu import MEMORY, PUBLISHED, ask

from nodeplug import PluginError
from nodeplug.testing import folders

pytestmark = pytest.mark.real
NULL = "example.com/null"
CARDS = ("GPU-00000000", "GPU-00000001")
PLUGINS = f"""
[plugins.bridge]
[plugins.host-local]
[plugins.loopback.config]
names = ["loopback"]
[plugins.hostdev.config]
[[plugins.hostdev.config.resources]]
resource = "{NULL}"
groups = [{{ nodes = [{{ path = "/dev/null" }}] }}]
[plugins.hold]
uses = "hold:Hold"
[plugins.gpu]
serve = "dra"
[plugins.gpu.config]
driver = "simulated"
poll = "200ms"
simulated = [{{ memory = "8GiB", uuid = "{CARDS[0]}" }}, {{ memory = "8GiB", uuid = "{CARDS[1]}" }}]
[[plugins.gpu.config.resources]]
sharing = "memory"
resource = "{MEMORY}"
access = {{ visible_devices = "uuid" }}
"""
DRIVER = "gpu.nodeplug.io"
CLASS = "gpu-memory"


@pytest.fixture(scope="module")
def lab(make_private_node: Callable[..., PrivateNode], consumer: Callable[[str], Path]) -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    programs, runtime = consumer("kubernetes"), consumer("containerd")
    try:
        with make_private_node(folder / "n") as private:
            specs = private.folder / "var/run/cdi"
            specs.mkdir(parents=True)
            private.run("mkdir", "-p", "/var/run/cdi")
            private.run("mount", "--bind", str(specs), "/var/run/cdi")
            with open_lab(
                *(private, folder, programs / "kubelet", PLUGINS),
                resource=NULL,
                conflists=[PUBLISHED],
                runtime=runtime,
                control_plane=programs,
                env={"PYTHONPATH": str(Path(__file__).parent), "HOLD_FOLDER": str(folder)},
                csi=True,
            ) as made:
                assert made.control_plane is not None
                put_class(made.control_plane, CLASS, DRIVER)
                yield made
                sys.stdout.write(made.daemon.log)
    finally:
        folders.remove(folder)


@pytest.fixture
def plane(lab: Lab) -> Iterator[ControlPlane]:
    """The cluster, with two cards in slices; what a test leaves is removed."""
    plane = lab.control_plane
    assert plane is not None
    until(lab, "two cards in slices", lambda: len(devices(plane)) == 2)
    yield plane
    for name in plane.scheduled():
        plane.delete(name)
    for one in plane.call("GET", CLAIMS)["items"]:
        plane.call("DELETE", f"{CLAIMS}/{one['metadata']['name']}")
    until(lab, "the end of pods", lambda: not plane.scheduled() and not prepared(lab))


def until(lab: Lab, what: str, holds: Callable[[], Any]) -> Any:
    return lab.kubelet.wait_for(what, holds)


def environment(lab: Lab, name: str) -> dict[str, str]:
    lines = lab.kubelet.execute(name, "/bin/env").splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def card(lab: Lab, name: str) -> str:
    return environment(lab, name)["NVIDIA_VISIBLE_DEVICES"]


def running(lab: Lab, plane: ControlPlane, *names: str) -> None:
    for name in names:
        until(lab, f"pod {name}", lambda: phase(plane, name) == "Running")  # noqa: B023 - it is asked in this very turn


def run(lab: Lab, plane: ControlPlane, name: str, amount: str) -> dict[str, str]:
    """Run a pod with an amount of a card, and return its environment."""
    put_claim(plane, name, CLASS, {"memory": amount})
    put_pod(plane, name, name)
    running(lab, plane, name)
    return environment(lab, name)


def drop(lab: Lab, plane: ControlPlane, name: str) -> None:
    """Delete a pod and its claim, and wait until kubelet and the daemon have let go of them."""
    plane.delete(name)
    plane.call("DELETE", f"{CLAIMS}/{name}")
    until(lab, "the end of a pod", lambda: name not in plane.scheduled() and name not in prepared(lab))


def prepared(lab: Lab) -> dict[str, dict[str, Any]]:
    """The claims that the daemon has records of, by name."""
    drivers = lab.daemon.status()["dra"]
    return {one["claim"].partition("/")[2]: one for driver in drivers for one in driver["claims"]}


def restarted(plane: ControlPlane, name: str) -> bool:
    (found,) = plane.pod(name)["status"]["containerStatuses"]
    return bool(found["restartCount"] and "running" in found["state"])


def allocatable(lab: Lab, plane: ControlPlane) -> int:
    """How many units kubelet may give away, as the Node says."""
    node = plane.call("GET", f"/api/v1/nodes/{lab.private.name}")
    return int(node["status"]["allocatable"].get(MEMORY, 0))


def two_cards(lab: Lab, plane: ControlPlane) -> None:
    until(lab, "two cards in slices", lambda: len(devices(plane)) == 2)


def test_two_pods_share_a_card_by_amounts_and_a_third_waits_and_comes(lab: Lab, plane: ControlPlane) -> None:
    five, three, whole = (run(lab, plane, *one) for one in (("five", "5Gi"), ("three", "3Gi"), ("all", "8Gi")))
    assert five["NVIDIA_VISIBLE_DEVICES"] == three["NVIDIA_VISIBLE_DEVICES"] != whole["NVIDIA_VISIBLE_DEVICES"]
    put_claim(plane, "late", CLASS, {"memory": "2Gi"})
    put_pod(plane, "late", "late")
    until(lab, "a pod that waits", lambda: "cannot allocate all claims" in plane.unplaced("late"))
    drop(lab, plane, "three")
    running(lab, plane, "late")
    assert environment(lab, "late")["NVIDIA_VISIBLE_DEVICES"] == five["NVIDIA_VISIBLE_DEVICES"]


def test_pods_that_share_a_claim_are_named_as_kubelet_tells_and_its_units_are_counted_once(
    lab: Lab, plane: ControlPlane
) -> None:
    two_cards(lab, plane)
    run(lab, plane, "shared", "5Gi")
    put_pod(plane, "beside", "shared")
    running(lab, plane, "beside")

    def told() -> list[tuple[str, list[str], int]]:
        cards = ask(lab)["cards"]
        return [(one["pod"], one["claims"], one["units"]) for card in cards for one in card["containers"]]

    until(lab, "both pods", lambda: told() == [(name, ["default/shared"], 5) for name in ("beside", "shared")])
    assert sorted(card["allocated_units"] for card in ask(lab)["cards"]) == [0, 5]
    plane.delete("beside")
    until(lab, "one pod", lambda: [name for name, *_ in told()] == ["shared"])
    drop(lab, plane, "shared")
    until(lab, "nobody", lambda: told() == [])


def test_slices_are_back_after_a_restart_of_kubelet_and_its_pods_have_what_they_had(
    lab: Lab, plane: ControlPlane
) -> None:
    before = run(lab, plane, "stays", "6Gi")
    had = {one["metadata"]["uid"] for one in slices(plane)}
    lab.kubelet.stop()
    lab.kubelet.start()
    until(
        lab, "other slices", lambda: {one["metadata"]["uid"] for one in slices(plane)}.isdisjoint(had) and slices(plane)
    )
    running(lab, plane, "stays")
    assert environment(lab, "stays") == before
    other = run(lab, plane, "other", "6Gi")
    assert other["NVIDIA_VISIBLE_DEVICES"] != before["NVIDIA_VISIBLE_DEVICES"]


def test_a_daemon_that_was_killed_gives_a_claim_the_same_ids_and_none_of_them_to_others(
    lab: Lab, plane: ControlPlane
) -> None:
    run(lab, plane, "kept", "5Gi")
    ids = prepared(lab)["kept"]["ids"]
    lab.daemon.kill()
    put_claim(plane, "during", CLASS, {"memory": "3Gi"})
    put_pod(plane, "during", "during")
    until(lab, "a pod that waits for the driver", lambda: plane.place("during"))
    lab.daemon.start()
    running(lab, plane, "kept", "during")
    assert prepared(lab)["kept"]["ids"] == ids
    assert not {*ids} & {*prepared(lab)["during"]["ids"]}


@pytest.mark.soak
def test_a_daemon_killed_inside_of_a_claims_preparation_prepares_it_with_the_same_ids(
    lab: Lab, plane: ControlPlane
) -> None:
    put_claim(plane, "cut", CLASS, {"memory": "5Gi"})
    lab.kill_while_held("allocate", lambda: put_pod(plane, "cut", "cut"))
    (record,) = (lab.daemon.paths.journal / "resource-claims").glob("*.json")
    ids = json.loads(record.read_text())["data"]["held"][0]["ids"]
    lab.daemon.start()
    running(lab, plane, "cut")
    assert prepared(lab)["cut"]["ids"] == ids


@pytest.mark.soak
def test_a_daemon_killed_before_a_plugin_has_heard_of_an_end_tells_it_and_gives_the_card_away_then(
    lab: Lab, plane: ControlPlane
) -> None:
    run(lab, plane, "ends", "8Gi")
    lab.kill_while_held("release", lambda: plane.delete("ends"))
    until(lab, "the end of a pod, which waits for no daemon", lambda: "ends" not in plane.scheduled())
    plane.call("DELETE", f"{CLAIMS}/ends")
    lab.daemon.start()
    for name in ("one", "two"):
        run(lab, plane, name, "8Gi")
    assert [*prepared(lab)] == ["one", "two"]


def test_a_pod_whose_predecessor_was_deleted_by_force_waits_until_that_is_unprepared(
    lab: Lab, plane: ControlPlane
) -> None:
    run(lab, plane, "first", "8Gi")
    run(lab, plane, "beside", "8Gi")
    lab.daemon.kill()
    plane.call("DELETE", "/api/v1/namespaces/default/pods/first?gracePeriodSeconds=0")
    plane.call("DELETE", f"{CLAIMS}/first")
    put_claim(plane, "second", CLASS, {"memory": "8Gi"})
    put_pod(plane, "second", "second")
    until(lab, "a pod that is placed", lambda: plane.place("second"))
    lab.daemon.start()
    running(lab, plane, "second")
    assert [*prepared(lab)] == ["beside", "second"]


def test_a_container_starts_again_although_somebody_has_deleted_its_spec(lab: Lab, plane: ControlPlane) -> None:
    before = run(lab, plane, "restarted", "1Gi")
    folder = lab.private.folder / "var/run/cdi"
    (spec,) = folder.glob(f"{DRIVER}-*.json")
    spec.unlink()
    until(lab, "the spec", spec.exists)
    with suppress(PluginError):  # it ends with its container
        lab.kubelet.execute("restarted", "/bin/sh", "-c", "kill -TERM 1")
    until(lab, "a restarted container", lambda: restarted(plane, "restarted"))
    assert environment(lab, "restarted") == before


@pytest.mark.soak
def test_a_card_that_is_ill_gets_no_claims_and_the_status_of_its_pods_says_so(lab: Lab, plane: ControlPlane) -> None:
    run(lab, plane, "ill", "8Gi")
    faults = lab.daemon.paths.run / "plugins/gpu/simulated-faults.json"
    faults.write_text(json.dumps({"cards": {"0": {"xid": 79}, "1": {}}}))
    try:
        until(lab, "a taint", lambda: sum("taints" in one for one in devices(plane).values()) == 1)
        put_claim(plane, "second", CLASS, {"memory": "8Gi"})
        put_claim(plane, "third", CLASS, {"memory": "8Gi"})
        put_pod(plane, "second", "second")
        running(lab, plane, "second")
        put_pod(plane, "third", "third")
        until(lab, "a pod that waits", lambda: plane.unplaced("third"))
        until(lab, "the health in the status", lambda: "XID 79" in json.dumps(plane.pod("ill")["status"]))
    finally:
        faults.unlink()
    until(lab, "no taint", lambda: not any("taints" in one for one in devices(plane).values()))


def test_a_card_that_is_ill_evicts_its_pods_where_that_is_asked_for_and_no_others(
    lab: Lab, plane: ControlPlane
) -> None:
    lab.daemon.kill()
    lab.daemon.configure('[dra]\ntaint = "NoExecute"\n' + PLUGINS)
    lab.daemon.start()
    cards = {name: run(lab, plane, name, "8Gi")["NVIDIA_VISIBLE_DEVICES"] for name in ("one", "two")}
    ill, well = sorted(cards, key=lambda name: cards[name])
    faults = lab.daemon.paths.run / "plugins/gpu/simulated-faults.json"
    faults.write_text(json.dumps({"cards": {"0": {"xid": 79}}}))
    try:
        until(lab, "an eviction", lambda: ill not in plane.scheduled())
        assert phase(plane, well) == "Running"
    finally:
        faults.unlink()
        lab.daemon.kill()
        lab.daemon.configure(PLUGINS)
        lab.daemon.start()
        until(lab, "no taint", lambda: not any("taints" in one for one in devices(plane).values()))


def test_a_claim_for_observation_sees_a_card_that_is_given_away_and_consumes_nothing(
    lab: Lab, plane: ControlPlane
) -> None:
    labels = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    plane.call("PATCH", "/api/v1/namespaces/default", labels, content="application/merge-patch+json")
    run(lab, plane, "one", "8Gi")
    put_observer(plane, "watcher", CLASS)
    put_pod(plane, "watcher", "watcher")
    running(lab, plane, "watcher")
    assert {*environment(lab, "watcher")["NVIDIA_VISIBLE_DEVICES"].split(",")} <= {*CARDS}
    run(lab, plane, "two", "8Gi")


@pytest.mark.soak
def test_a_daemon_that_is_replaced_keeps_slices_and_claims(lab: Lab, plane: ControlPlane) -> None:
    run(lab, plane, "over", "5Gi")
    had = {one["metadata"]["uid"] for one in slices(plane)}
    ids = prepared(lab)["over"]["ids"]
    with lab.successors() as replace:
        for name in ("one", "two"):
            replace()
            run(lab, plane, name, "3Gi" if name == "one" else "8Gi")
            assert prepared(lab)["over"]["ids"] == ids
        assert {one["metadata"]["uid"] for one in slices(plane)} == had


@pytest.mark.soak
def test_an_upgrade_that_is_refused_leaves_slices_and_claims_as_they_are(lab: Lab, plane: ControlPlane) -> None:
    run(lab, plane, "present", "5Gi")
    had, pid = {one["metadata"]["uid"] for one in slices(plane)}, lab.daemon.status()["pid"]
    broken = lab.folder / "broken"
    broken.touch()
    try:
        done = lab.daemon.run("replace")
    finally:
        broken.unlink()
    assert (done.returncode, "installed now is broken" in done.stderr) == (1, True)
    run(lab, plane, "after", "3Gi")
    assert lab.daemon.status()["pid"] == pid
    assert {one["metadata"]["uid"] for one in slices(plane)} == had


@pytest.mark.soak
def test_an_upgrade_is_rolled_back_although_kubelet_knew_the_next_daemon_and_slices_and_claims_stay(
    lab: Lab, plane: ControlPlane
) -> None:
    run(lab, plane, "stands", "5Gi")
    had, pid = {one["metadata"]["uid"] for one in slices(plane)}, lab.daemon.status()["pid"]
    put_claim(plane, "inside", CLASS, {"memory": "3Gi"})
    with lab.held("add", lambda: put_pod(plane, "inside", "inside")), ThreadPoolExecutor(1) as beside:
        known = lab.kubelet.log.count("numPlugins=2")
        asked = beside.submit(lab.daemon.run, "replace")
        until(lab, "two instances that kubelet has", lambda: lab.kubelet.log.count("numPlugins=2") > known)
        os.kill(int(lab.daemon.log.split(" is started to take over")[-2].split()[-1]), signal.SIGKILL)
        assert asked.result().returncode == 1
    running(lab, plane, "inside")
    run(lab, plane, "next", "8Gi")
    drop(lab, plane, "stands")
    assert lab.daemon.status()["pid"] == pid
    registry = lab.daemon.paths.plugins_registry
    until(lab, "one socket", lambda: len([*registry.glob(f"{DRIVER}-*")]) == 1)
    assert {one["metadata"]["uid"] for one in slices(plane)} == had


@pytest.mark.soak
def test_a_section_moves_to_kubelets_device_plugins_and_back_and_nothing_is_sold_twice(
    lab: Lab, plane: ControlPlane
) -> None:
    run(lab, plane, "claimed", "5Gi")
    by_plugin = PLUGINS.replace('serve = "dra"', "")
    lab.reload(by_plugin)
    until(lab, "units that kubelet may give", lambda: allocatable(lab, plane) == 16 - 5)
    assert not slices(plane)
    plane.schedule(pod("by-units", "", limits={MEMORY: 8}))
    running(lab, plane, "by-units")
    assert card(lab, "by-units") != card(lab, "claimed")
    lab.reload(PLUGINS)
    two_cards(lab, plane)
    until(lab, "a card that is left out", lambda: sum("taints" in one for one in devices(plane).values()) == 1)
    put_claim(plane, "back", CLASS, {"memory": "8Gi"})
    put_pod(plane, "back", "back")
    until(lab, "a pod that waits", lambda: plane.unplaced("back"))
    plane.delete("by-units")
    running(lab, plane, "back")
