"""kubelet 1.20.2 with containerd, without an API server: devices, networks and volumes of real pods.

One kubelet serves all tests of this file. Each has pods of names of its own: one manifest is one pod to kubelet.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import ScratchNode
from nodeplug.testing.consumers import Containerd, KubeletProcess, PrivateNode, pod

REPOSITORY = Path(__file__).parents[2]
CONFLIST = REPOSITORY / "configs" / "cni" / "10-nodeplug.conflist"
RESOURCE = "example.com/widget"
ONE = {RESOURCE: 1}
COLLECTED = 90.0  # seconds: kubelet looks once a minute for sandboxes that it lost sight of
GROUP = 4242
LOOPFILE = {
    "flexVolume": {"driver": "nodeplug/loopfile", "fsType": "ext4", "options": {"name": "data", "size": "32Mi"}}
}
TMPFS = {"flexVolume": {"driver": "nodeplug/tmpfs", "options": {"size": "1Mi"}}}
PLUGINS = """
[plugins.bridge]
[plugins.host-local]
[plugins.loopback.config]
names = ["loopback"]
[plugins.loopfile]
[plugins.tmpfs]
[plugins.hold]
uses = "hold:Hold"
[[plugins.hostdev.config.resources]]
resource = "example.com/widget"
groups = [{{ nodes = [{{ path = "{folder}/dev/widget*", container_path = "/dev/{{name}}" }}] }}]
"""
HOLD = '''
import os
import time
from pathlib import Path

from nodeplug import hookimpl

FOLDER = Path(os.environ["HOLD_FOLDER"])


def hold(verb):
    """Keep the answer of a call back, its work being done, for as long as a file exists."""
    while (FOLDER / f"hold-{verb}").exists():
        (FOLDER / f"held-{verb}").touch()
        time.sleep(0.02)


class Hold:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return []

    @hookimpl(wrapper=True)
    def cni_add(self, request):
        result = yield
        if request.network == "nodeplug":
            hold("add")
        return result

    @hookimpl(wrapper=True)
    def volume_publish(self, request):
        result = yield
        hold("mount")
        return result
'''


@dataclass(frozen=True)
class Lab:
    """A whole node: the daemon, containerd and kubelet, and the folder of two devices."""

    folder: Path
    private: PrivateNode
    daemon: ScratchNode
    containerd: Containerd
    kubelet: KubeletProcess

    @property
    def watched(self) -> tuple[Path, ...]:
        """Where a pod could leave files, the record of the devices' holders aside."""
        state, library = self.daemon.paths.state, self.private.folder / "var/lib"
        return (
            *(state / name for name in ("journal", "spool", "plugins")),
            *(self.daemon.paths.run, library / "cni", library / "kubelet/pods", library / "kubelet/plugins"),
        )

    def resource(self) -> dict[str, Any]:
        return next(entry for entry in self.daemon.status()["resources"] if entry["resource"] == RESOURCE)

    def allocations(self) -> int:
        return sum(call["verb"] == "Allocate" for call in self.daemon.status()["recent"])

    def lists_taken(self) -> int:
        return self.kubelet.log.count(f"State pushed for device plugin {RESOURCE}")

    def streams_ended(self) -> int:
        return self.kubelet.log.count("listAndWatch ended unexpectedly")

    def until_listed(self, action: Callable[[], object]) -> None:
        """Do something that makes the daemon send a list, and wait until kubelet has taken it in."""
        before = self.lists_taken()
        action()
        self.kubelet.wait_for("a list of devices", lambda: self.lists_taken() > before)
        time.sleep(1.0)  # it logs before it stores

    def put(self, name: str, script: str = "", **more: Any) -> None:
        self.kubelet.put(pod(name, script, **more))

    def run(self, name: str, script: str = "", **more: Any) -> dict[str, Any]:
        self.put(name, script, **more)
        return self.kubelet.running(name)

    def kill_while_held(self, verb: str, start: Callable[[], None]) -> None:
        """Kill the daemon when a call has done its work and has not answered yet."""
        hold, held = (self.folder / f"{word}-{verb}" for word in ("hold", "held"))
        hold.touch()
        start()
        self.kubelet.wait_for(f"a {verb} that is held", held.exists)
        self.daemon.kill()
        hold.unlink()
        held.unlink()


def built_kubelet() -> Path:
    """Return the kubelet that `make kubelet` built."""
    done = subprocess.run(
        [REPOSITORY / ".ci" / "build-kubelet", "--cached"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(done.stderr.strip())
    return Path(done.stdout.strip())


def make_devices(folder: Path) -> None:
    (folder / "dev").mkdir()
    for number in range(2):
        os.mknod(
            folder / "dev" / f"widget{number}", stat.S_IFCHR | 0o666, os.makedev(1, 5)
        )  # /dev/zero by another name


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def lab(make_private_node: Callable[..., PrivateNode], folder: Path) -> Iterator[Lab]:
    program = built_kubelet()
    if any(Path("/sys/fs/cgroup").glob("kubepods*")) or any(Path("/sys/fs/cgroup").glob("*/kubepods*")):
        pytest.skip("another kubelet has its pods on this machine, and two would remove each other's")
    make_devices(folder)
    (folder / "hold.py").write_text(HOLD)
    for name in ("c", "k"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        private = stack.enter_context(make_private_node(folder / "n", cgroup="kubepods"))
        env = {"PYTHONPATH": str(folder), "HOLD_FOLDER": str(folder)}
        supervisor = 'listen = ""\npodresources_poll = "1s"'
        plugins = PLUGINS.format(folder=folder)
        daemon = ScratchNode(private.folder, plugins, supervisor=supervisor, env=env, within=private.command())
        stack.callback(lambda: sys.stdout.write(daemon.log))  # shown when a test fails
        stack.enter_context(daemon)
        installed = daemon.run("install", "--conflist", str(CONFLIST))
        assert installed.returncode == 0, installed.stderr
        containerd = Containerd(private, folder / "c", daemon.paths.cni_bin, daemon.paths.cni_conf)
        stack.enter_context(containerd)
        kubelet = KubeletProcess(private, folder / "k", program, containerd, daemon.paths.flexvolume)
        made = Lab(folder, private, daemon, containerd, kubelet)
        made.until_listed(lambda: stack.enter_context(kubelet))
        yield made
        kubelet.clear()
        kubelet.stop()
        containerd.clear()


@pytest.fixture
def difference(lab: Lab) -> Iterator[Callable[[], list[str]]]:
    """What came and went since the test began, its pods being removed; a first pod made what stays on purpose."""
    if not (lab.folder / "warm").exists():
        lab.run("warm", volumes={"/data": LOOPFILE, "/memory": TMPFS})
        lab.kubelet.clear()
        (lab.folder / "warm").touch()
    before = lab.private.inventory(*lab.watched)

    def look() -> list[str]:
        lab.kubelet.clear()
        return lab.private.inventory_since(before, *lab.watched, patience=COLLECTED)

    yield look
    lab.kubelet.clear()


def mount_type(lab: Lab, name: str, path: str) -> str:
    lines = lab.kubelet.execute(name, "/bin/cat", "/proc/mounts").splitlines()
    return next(fields[2] for fields in map(str.split, lines) if fields[1] == path)


def device_of(lab: Lab, name: str) -> str:
    """Return the one device that a pod's container sees, after reading from it."""
    (device,) = [word for word in lab.kubelet.execute(name, "/bin/ls", "/dev").split() if word.startswith("widget")]
    read = lab.kubelet.execute(name, "/bin/sh", "-c", f"dd if=/dev/{device} bs=7 count=1 2>/dev/null")
    assert read == "\0" * 7
    return device


def test_a_pod_gets_its_device_its_address_and_its_volumes(lab: Lab, difference: Callable[[], list[str]]) -> None:
    allocations = lab.allocations()
    found = lab.run("whole", limits=ONE, volumes={"/data": LOOPFILE, "/memory": TMPFS}, fs_group=GROUP)
    assert device_of(lab, "whole") in {"widget0", "widget1"}
    assert lab.allocations() == allocations + 1
    assert found["status"]["podIP"].startswith("10.88.")
    assert found["status"]["podIP"] in lab.kubelet.execute("whole", "/bin/ip", "address", "show", "eth0")
    assert (mount_type(lab, "whole", "/data"), mount_type(lab, "whole", "/memory")) == ("ext4", "tmpfs")
    owners = lab.kubelet.execute("whole", "/bin/stat", "-c", "%g", "/data", "/memory").split()
    assert owners == [str(GROUP), str(GROUP)]
    assert difference() == []


def test_the_daemon_learns_who_holds_a_device(lab: Lab, difference: Callable[[], list[str]]) -> None:
    def holders() -> set[str]:
        return {unit["holder"] for unit in lab.resource()["units"]}

    found = lab.run("holder", limits=ONE)
    lab.kubelet.wait_for("the holder", lambda: f"default/{found['metadata']['name']}/main" in holders())
    lab.kubelet.drop("holder")
    lab.kubelet.wait_for("the release", lambda: holders() == {""})
    assert difference() == []


def test_data_is_there_after_the_pod_is_replaced(lab: Lab, difference: Callable[[], list[str]]) -> None:
    lab.run("writer", "echo kept > /data/file", volumes={"/data": LOOPFILE})
    lab.kubelet.wait_for("the file", lambda: "file" in lab.kubelet.execute("writer", "/bin/ls", "/data"))
    lab.kubelet.drop("writer")
    lab.run("reader", volumes={"/data": LOOPFILE})
    assert lab.kubelet.execute("reader", "/bin/cat", "/data/file") == "kept\n"
    assert difference() == []


def test_a_container_keeps_its_device_through_a_kubelet_restart_without_a_second_allocation(
    lab: Lab, difference: Callable[[], list[str]]
) -> None:
    lab.run("steady", limits=ONE)
    before = (lab.kubelet.container("steady"), lab.allocations(), device_of(lab, "steady"))
    lab.kubelet.stop()
    lab.until_listed(lab.kubelet.start)
    assert (lab.kubelet.container("steady"), lab.allocations(), device_of(lab, "steady")) == before
    lab.run("other", limits=ONE)
    assert device_of(lab, "other") != device_of(lab, "steady")
    assert difference() == []


def test_pods_outlive_a_killed_daemon_and_new_ones_get_what_is_left(
    lab: Lab, difference: Callable[[], list[str]]
) -> None:
    lab.run("old", limits=ONE, volumes={"/data": LOOPFILE})
    container = lab.kubelet.container("old")
    lab.daemon.kill()
    device = device_of(lab, "old")
    lab.until_listed(lab.daemon.start)
    lab.run("new", limits=ONE)
    assert device_of(lab, "new") != device
    assert lab.kubelet.container("old") == container
    assert difference() == []


def test_a_pod_comes_up_although_the_daemon_was_killed_during_its_add(
    lab: Lab, difference: Callable[[], list[str]]
) -> None:
    lab.kill_while_held("add", lambda: lab.put("adding"))
    lab.until_listed(lab.daemon.start)
    assert lab.kubelet.running("adding")["status"]["podIP"].startswith("10.88.")
    assert difference() == []


def test_a_pod_gets_its_volume_although_the_daemon_was_killed_during_its_mount(
    lab: Lab, difference: Callable[[], list[str]]
) -> None:
    lab.kill_while_held("mount", lambda: lab.put("mounting", volumes={"/data": LOOPFILE}))
    lab.until_listed(lab.daemon.start)
    lab.kubelet.running("mounting")
    assert mount_type(lab, "mounting", "/data") == "ext4"
    assert difference() == []


def test_a_pod_that_ends_while_the_daemon_is_away_is_cleaned_up_at_its_return(
    lab: Lab, difference: Callable[[], list[str]]
) -> None:
    lab.run("leaving")
    lab.daemon.kill()
    lab.kubelet.drop("leaving")
    assert [path for path in lab.daemon.paths.spool.iterdir() if path.suffix == ".frame"]
    lab.until_listed(lab.daemon.start)
    assert difference() == []


def test_no_pod_gets_a_device_that_vanished_until_it_is_back(lab: Lab, difference: Callable[[], list[str]]) -> None:
    here, away = lab.folder / "dev", lab.folder / "away"
    lab.until_listed(lambda: here.rename(away))
    lab.put("refused", limits=ONE)
    assert "Requested: 1, Available: 0" in lab.kubelet.failed("refused")
    lab.until_listed(lambda: away.rename(here))
    lab.run("healed", limits=ONE)
    assert device_of(lab, "healed")
    assert difference() == []


def test_a_reload_that_brings_a_driver_ends_no_stream(lab: Lab, difference: Callable[[], list[str]]) -> None:
    plugins = PLUGINS.format(folder=lab.folder)
    scratch = '[plugins.scratch]\nuses = "tmpfs"\n[plugins.scratch.config]\ndriver = "nodeplug/scratch"\n'

    def loaded() -> bool:
        return "scratch" in {plugin["name"] for plugin in lab.daemon.status()["plugins"]}

    before = (lab.resource()["socket"], lab.streams_ended())
    lab.daemon.configure(plugins + scratch)
    lab.kubelet.wait_for("the new plugin", loaded)
    assert lab.daemon.run("install").returncode == 0
    volume = {"flexVolume": {"driver": "nodeplug/scratch", "options": {"size": "1Mi"}}}
    lab.run("scratched", limits=ONE, volumes={"/memory": volume})
    assert mount_type(lab, "scratched", "/memory") == "tmpfs"
    lab.kubelet.drop("scratched")
    lab.daemon.configure(plugins)
    lab.kubelet.wait_for("the old configuration", lambda: not loaded())
    assert lab.daemon.run("install").returncode == 0
    assert (lab.resource()["socket"], lab.streams_ended()) == before
    assert difference() == []


def test_a_changed_device_plugin_serves_new_pods_anew_and_leaves_the_old_ones_alone(
    lab: Lab, difference: Callable[[], list[str]]
) -> None:
    plugins = PLUGINS.format(folder=lab.folder)
    lab.run("unchanged", limits=ONE)
    before = (lab.kubelet.container("unchanged"), device_of(lab, "unchanged"))
    changed = plugins.replace("groups = ", 'env = { WIDGET = "changed" }\ngroups = ')
    lab.until_listed(lambda: lab.daemon.configure(changed))
    lab.run("changed", limits=ONE)
    assert "WIDGET=changed" in lab.kubelet.execute("changed", "/bin/env").split()
    assert (lab.kubelet.container("unchanged"), device_of(lab, "unchanged")) == before
    lab.until_listed(lambda: lab.daemon.configure(plugins))
    assert difference() == []
