"""kubelet and the daemon end in the middle of their work, and come back: no pod loses anything."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.real.consumers import Lab

ONE = {"example.com/widget": 1}
Volumes = dict[str, dict[str, Any]]
Difference = Callable[[], list[str]]


def test_a_container_keeps_its_device_through_a_kubelet_restart_without_a_second_allocation(
    lab: Lab, difference: Difference
) -> None:
    lab.run("steady", limits=ONE)
    before = (lab.kubelet.container("steady"), lab.allocations(), lab.devices_of("steady"))
    lab.kubelet.stop()
    lab.until_listed(lab.kubelet.start)
    assert (lab.kubelet.container("steady"), lab.allocations(), lab.devices_of("steady")) == before
    lab.run("other", limits=ONE)
    assert not set(lab.devices_of("other")) & set(lab.devices_of("steady"))
    assert difference() == []


def test_pods_outlive_a_killed_daemon_and_new_ones_get_what_is_left(
    lab: Lab, difference: Difference, volumes: Volumes
) -> None:
    lab.run("old", limits=ONE, volumes=volumes)
    container = lab.kubelet.container("old")
    lab.daemon.kill()
    devices = lab.devices_of("old")
    lab.until_listed(lab.daemon.start)
    lab.run("new", limits=ONE)
    assert not set(lab.devices_of("new")) & set(devices)
    assert lab.kubelet.container("old") == container
    assert difference() == []


def test_a_pod_comes_up_although_the_daemon_was_killed_during_its_add(lab: Lab, difference: Difference) -> None:
    lab.kill_while_held("add", lambda: lab.put("adding"))
    lab.until_listed(lab.daemon.start)
    assert lab.kubelet.running("adding")["status"]["podIP"].startswith("10.88.")
    assert difference() == []


@pytest.mark.soak
def test_a_pod_gets_its_volume_although_the_daemon_was_killed_during_its_mount(
    lab: Lab, difference: Difference, volumes: Volumes
) -> None:
    lab.kill_while_held("mount", lambda: lab.put("mounting", volumes={"/data": volumes["/data"]}))
    lab.until_listed(lab.daemon.start)
    lab.kubelet.running("mounting")
    assert lab.mount_type("mounting", "/data") == "ext4"
    assert difference() == []


@pytest.mark.soak
def test_a_pod_that_ends_while_the_daemon_is_away_is_cleaned_up_at_its_return(lab: Lab, difference: Difference) -> None:
    lab.run("leaving")
    lab.daemon.kill()
    lab.kubelet.drop("leaving")
    assert [path for path in lab.daemon.paths.spool.iterdir() if path.suffix == ".frame"]
    lab.until_listed(lab.daemon.start)
    assert difference() == []
