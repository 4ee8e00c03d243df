"""kubelet with containerd, standalone: devices, network and volumes of static pods.

One kubelet serves all tests of a file. Each has pods of names of its own: one manifest is one pod to kubelet.
"""

from collections.abc import Callable
from typing import Any

from tests.real.consumers import Lab

ONE = {"example.com/widget": 1}
GROUP = 4242
Volumes = dict[str, dict[str, Any]]
Difference = Callable[[], list[str]]


def test_a_pod_gets_its_device_its_address_and_its_volumes(lab: Lab, difference: Difference, volumes: Volumes) -> None:
    allocations = lab.allocations()
    found = lab.run("whole", limits=ONE, volumes=volumes, fs_group=GROUP)
    assert len(lab.devices_of("whole")) == 1
    assert lab.allocations() == allocations + 1
    assert found["status"]["podIP"].startswith("10.88.")
    assert found["status"]["podIP"] in lab.kubelet.execute("whole", "/bin/ip", "address", "show", "eth0")
    assert (lab.mount_type("whole", "/data"), lab.mount_type("whole", "/memory")) == ("ext4", "tmpfs")
    owners = lab.kubelet.execute("whole", "/bin/stat", "-c", "%g", "/data", "/memory").split()
    assert owners == [str(GROUP), str(GROUP)]
    assert difference() == []


def test_the_daemon_learns_who_holds_a_device(lab: Lab, difference: Difference) -> None:
    def holders() -> set[str]:
        return {unit["holder"] for unit in lab.resource()["units"]}

    found = lab.run("holder", limits=ONE)
    lab.kubelet.wait_for("the holder", lambda: f"default/{found['metadata']['name']}/main" in holders())
    lab.kubelet.drop("holder")
    lab.kubelet.wait_for("the release", lambda: holders() == {""})
    assert difference() == []


def test_data_is_there_after_the_pod_is_replaced(lab: Lab, difference: Difference, volumes: Volumes) -> None:
    lab.run("writer", "echo kept > /data/file", volumes=volumes)
    # A shell makes the file before it writes.
    read = "/bin/sh", "-c", "cat /data/file || true"
    lab.kubelet.wait_for("the data", lambda: lab.kubelet.execute("writer", *read) == "kept\n")
    lab.kubelet.drop("writer")
    lab.run("reader", volumes=volumes)
    assert lab.kubelet.execute("reader", "/bin/cat", "/data/file") == "kept\n"
    assert difference() == []


def test_no_pod_gets_a_device_that_vanished_until_it_is_back(lab: Lab, difference: Difference) -> None:
    here, away = lab.folder / "dev", lab.folder / "away"
    lab.until_listed(lambda: here.rename(away))
    lab.put("refused", limits=ONE)
    unhealthy = "no healthy devices present; cannot allocate unhealthy devices example.com/widget"
    assert ("Requested: 1, Available: 0" if lab.kubelet.old else unhealthy) in lab.kubelet.failed("refused")
    lab.until_listed(lambda: away.rename(here))
    lab.run("healed", limits=ONE)
    assert lab.devices_of("healed")
    assert difference() == []
