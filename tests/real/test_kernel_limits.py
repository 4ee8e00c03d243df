"""containerd and runc start containers with a limit's CDI name: the hook runs with their state, before the program.

Kubelet is acted out, cards are simulated: a file says which cgroup was limited to what. The cgroup is the container's.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.real.consumers import Containerd, PrivateNode
from tests.real.consumers.containerd import BUSYBOX

from nodeplug.contract.errors import PluginError
from nodeplug.testing import BlockingKubelet, ScratchNode, folders

pytestmark = [pytest.mark.real]
MEM = "aliyun.com/gpu-mem"
GIB = 1 << 30
CARD = "GPU-00000000"
PLUGINS = f"""
[plugins.gpu.config]
driver = "simulated"
poll = "200ms"
limits = "kernel"
simulated = [{{ memory = "8GiB", uuid = "{CARD}" }}]
[[plugins.gpu.config.resources]]
sharing = "memory"
access = {{ visible_devices = "none" }}
"""
LIMITED = "simulated-limits.json"


@dataclass(frozen=True)
class Lab:
    """A daemon, a kubelet acted out, and containerd, on a node whose cgroups are those of v2."""

    daemon: ScratchNode
    kubelet: BlockingKubelet
    containerd: Containerd
    node: PrivateNode

    def admit(self, pod: str, units: int) -> str:
        """Admit a pod as kubelet does; return the CDI name that it got."""
        self.kubelet.until(lambda: self.kubelet.allocatable(MEM) >= units)
        (device,) = self.kubelet.admit(pod, {MEM: units})[MEM].cdi_devices
        return str(device.name)

    def run(self, device: str, name: str, *command: str) -> str:
        """Run a command in a container with a CDI device; return what it printed."""
        # Where v1 is mounted, too, v2 has no controllers: no shares of the CPU, then.
        options = ["--rm", "--cpu-shares", "0", "--cgroup", f"/{self.node.cgroup}/{name}", "--device", device]
        told = self.daemon.paths.run / "plugins/gpu"
        options += ["--mount", f"type=bind,src={told},dst=/mnt,options=rbind:ro"]
        return self.containerd.ctr("run", *options, BUSYBOX, name, *command)


@pytest.fixture(scope="module")
def lab(make_private_node: Callable[..., PrivateNode], consumer: Callable[[str], Path]) -> Iterator[Lab]:
    programs = consumer("containerd")
    with ExitStack() as stack:
        short_path = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
        stack.callback(folders.remove, short_path)
        private = stack.enter_context(make_private_node(short_path / "n"))
        if not Path("/sys/fs/cgroup/cgroup.controllers").exists():  # v2 is beside v1 here
            private.run("mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")
        daemon = ScratchNode(private.folder, PLUGINS, beside=private.pid, fork=True)
        kubelet = BlockingKubelet(private.folder / "var/lib/kubelet")
        (short_path / "c").mkdir()
        containerd = Containerd(
            private, short_path / "c", daemon.paths.cni_bin, daemon.paths.cni_conf, programs=programs
        )
        stack.callback(lambda: sys.stdout.write(daemon.log))  # shown when a test fails
        kubelet.start()
        stack.callback(kubelet.close)
        stack.enter_context(daemon)
        stack.enter_context(containerd)
        yield Lab(daemon, kubelet, containerd, private)


def test_a_container_is_limited_in_its_own_cgroup_before_its_program_runs_and_again_when_it_is_restarted(
    lab: Lab,
) -> None:
    device = lab.admit("web", 3)
    assert device == f"nodeplug.io/gpu-limit={CARD}.{3 * GIB}"
    for name in ("first", "again"):
        seen_by_program = json.loads(lab.run(device, name, "/bin/cat", f"/mnt/{LIMITED}"))
        assert seen_by_program[CARD][f"/sys/fs/cgroup/{lab.node.cgroup}/{name}"] == 3 * GIB


def test_a_container_without_its_limit_is_not_started_and_the_runtime_says_why(lab: Lab) -> None:
    device = lab.admit("refused", 3)
    faults = lab.daemon.paths.run / "plugins/gpu/simulated-faults.json"
    faults.write_text(json.dumps({"cards": {"0": {"limits": "the driver is in a bad mood"}}}))
    lab.kubelet.until(lambda: lab.kubelet.allocatable(MEM) == 0)  # the file was read
    with pytest.raises(PluginError, match=f"memory on {CARD} cannot be limited: the driver is in a bad mood"):
        lab.run(device, "refused", "/bin/echo", "started")
    lab.daemon.stop()
    with pytest.raises(PluginError, match="cannot be limited: nodeplug does not run on this node"):
        lab.run(device, "away", "/bin/echo", "started")
