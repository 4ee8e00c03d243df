"""A real kubelet and containerd with volumes of programs and images: what containers see, also after a program died."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fuse_programs import programs
from tests.real.consumers import Lab

pytestmark = pytest.mark.soak
Difference = Callable[[], list[str]]
PluginsOf = Callable[[Lab], str]
FUSE = {"flexVolume": {"driver": "nodeplug/fuse"}}
IMAGE = {"flexVolume": {"driver": "nodeplug/image", "options": {"path": "model.squashfs", "overlay": "8Mi"}}}


@pytest.mark.usefixtures("has_fuse", "drivers")
def test_a_program_that_dies_is_there_again_in_containers_with_propagation_and_in_others_when_they_start_again(
    lab: Lab, difference: Difference, source: Path
) -> None:
    lab.run("follows", volumes={"/data": FUSE}, propagation="HostToContainer")
    lab.run("stays", volumes={"/data": FUSE})

    def read(pod: str) -> str:
        return lab.kubelet.execute(pod, "/bin/sh", "-c", "cat /data/hello 2>&1 || true").strip()

    assert (read("follows"), read("stays")) == ("world", "world")
    (former,) = programs(source)
    os.kill(former, signal.SIGKILL)
    lab.kubelet.wait_for("the program", lambda: programs(source) not in ([], [former]) and read("follows") == "world")
    assert "not connected" in read("stays")
    lab.kubelet.drop("stays")
    lab.run("started-again", volumes={"/data": FUSE})
    assert read("started-again") == "world"
    assert difference() == []
    assert programs(source) == []


@pytest.mark.usefixtures("has_fuse", "drivers")
def test_a_killed_daemon_and_a_kubelet_that_starts_again_leave_a_program_and_its_pods_alone(
    lab: Lab, difference: Difference, source: Path
) -> None:
    lab.run("lasting", volumes={"/data": FUSE})
    before = (lab.kubelet.container("lasting"), programs(source))
    lab.daemon.kill()
    lab.kubelet.stop()
    assert programs(source) == before[1]
    lab.daemon.start()
    lab.kubelet.start()
    lab.run("next", volumes={"/data": FUSE})
    assert lab.kubelet.execute("lasting", "/bin/cat", "/data/hello") == "world"
    assert (lab.kubelet.container("lasting"), programs(source)) == before
    assert difference() == []


@pytest.mark.usefixtures("has_fuse", "drivers")
def test_a_pod_of_a_program_that_hangs_ends_once_the_program_is_replaced(
    lab: Lab, difference: Difference, source: Path
) -> None:
    """Kubelet itself looks at a FlexVolume's mount before it asks for the unmount, and would wait with the program."""
    lab.run("hung", volumes={"/data": FUSE})
    (pid,) = programs(source)
    os.kill(pid, signal.SIGSTOP)
    assert difference() == []
    assert programs(source) == []


@pytest.mark.usefixtures("has_loop_devices", "drivers")
def test_pods_write_to_layers_of_their_own_over_one_image(lab: Lab, difference: Difference) -> None:
    lab.run("one", "echo mine > /data/hello", volumes={"/data": IMAGE})
    lab.run("two", volumes={"/data": IMAGE})
    assert lab.mount_type("two", "/data") == "overlay"
    assert lab.kubelet.execute("one", "/bin/cat", "/data/hello") == "mine\n"
    assert lab.kubelet.execute("two", "/bin/cat", "/data/hello") == "world"
    assert difference() == []
