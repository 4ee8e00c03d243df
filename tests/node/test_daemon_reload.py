"""Reloads of a whole daemon under callers of all three styles: nobody is refused, nothing is cut off."""

import asyncio
import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nodeplug import Pod, mounts, unmount
from nodeplug.testing import FlexCaller, FlexVolume, ScratchNode
from nodeplug.testing.kubelet import Kubelet
from nodeplug.testing.scratch_cni import new_netns
from nodeplug.testing.waiting import until

PLUGIN = """
import time
from ipaddress import ip_interface
from pathlib import Path
from nodeplug import CniClaim, CniIp, CniResult, VolumeClaim, hookimpl, mount
from pydantic import BaseModel

class Plugin:
    class Config(BaseModel, extra="forbid"):
        folder: Path
        mark: str

    def __init__(self, config, host):
        self.folder, self.mark = config.folder, config.mark

    @hookimpl
    def claims(self):
        return [CniClaim("slow"), VolumeClaim("example/slow")]

    def _pass(self, what):
        (self.folder / f"{what}-{self.mark}").touch()
        while not (self.folder / f"go-{what}-{self.mark}").exists():
            time.sleep(0.005)

    @hookimpl
    def start(self):
        self._pass("start")

    @hookimpl
    def cni_add(self, request):
        self._pass("add")
        return CniResult(ips=(CniIp(ip_interface({"old": "192.0.2.1/32", "new": "192.0.2.2/32"}[self.mark])),))

    @hookimpl
    def cni_del(self): ...

    @hookimpl
    def volume_stage(self, request):
        mount("tmpfs", request.staging_path, "tmpfs")
        (Path(request.staging_path) / self.mark).touch()
"""


class Slow:
    """A daemon whose plugin goes on where `go` lets it."""

    def __init__(self, root: Path, modules: Path) -> None:
        (modules / "slow.py").write_text(PLUGIN)
        self.folder = modules
        self.node = ScratchNode(root, self._section("old"), env={"PYTHONPATH": str(modules)}, fork=True)

    def _section(self, mark: str) -> str:
        return f'[plugins.slow]\nuses = "slow:Plugin"\nconfig = {{ folder = "{self.folder}", mark = "{mark}" }}\n'

    def go(self, what: str) -> None:
        (self.folder / f"go-{what}").touch()

    def reached(self, what: str) -> None:
        until((self.folder / what).exists)

    def reload(self) -> None:
        self.node.configure(self._section("new"))


@pytest.fixture
def slow(short_path: Path, tmp_path: Path) -> Iterator[Slow]:
    made = Slow(short_path, tmp_path)
    made.go("start-old")
    try:
        with made.node as node:
            until(lambda: node.status()["ready"])
            installed = node.run("install")
            assert installed.returncode == 0, installed.stderr
            yield made
    finally:
        for target in reversed([one.target for one in mounts() if Path(one.target).is_relative_to(short_path)]):
            unmount(target, lazy=True)


def add(slow: Slow) -> str:
    """Execute ADD as a runtime does; return the address."""
    config = {"cniVersion": "1.0.0", "name": "net", "type": "slow"}
    netns = new_netns()
    env = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c1",
        "CNI_IFNAME": "eth0",
        "CNI_NETNS": f"/proc/{os.getpid()}/fd/{netns.fd}",
        "CNI_PATH": str(slow.node.paths.cni_bin),
    }
    script = slow.node.paths.cni_bin / "slow"
    try:
        done = subprocess.run([script], env=env, input=json.dumps(config).encode(), capture_output=True, check=False)
    finally:
        netns.close()
    assert done.returncode == 0, done.stdout
    address: str = json.loads(done.stdout)["ips"][0]["address"]
    return address


def test_an_add_in_the_gap_waits_for_the_new_instance(slow: Slow) -> None:
    slow.go("add-new")
    slow.reload()
    slow.reached("start-new")
    with ThreadPoolExecutor(1) as callers:
        answer = callers.submit(add, slow)
        time.sleep(0.3)  # enough for the script to reach the daemon
        assert not answer.done()
        slow.go("start-new")
        assert answer.result() == "192.0.2.2/32"


@pytest.mark.whole
def test_an_add_inside_the_old_instance_is_answered_by_it_first(slow: Slow) -> None:
    with ThreadPoolExecutor(1) as callers:
        answer = callers.submit(add, slow)
        slow.reached("add-old")
        slow.go("start-new")
        slow.reload()
        time.sleep(0.6)  # enough for the daemon to read its configuration
        assert not (slow.folder / "start-new").exists()
        slow.go("add-old")
        assert answer.result() == "192.0.2.1/32"
        slow.reached("start-new")


@pytest.mark.whole
def test_a_mount_in_the_gap_waits_for_the_new_instance(slow: Slow) -> None:
    kubelet = FlexCaller(slow.node.paths.flexvolume, slow.node.root / "kubelet", "example/slow", timeout=60)
    slow.reload()
    slow.reached("start-new")
    with ThreadPoolExecutor(1) as callers:
        target = callers.submit(kubelet.mount, Pod(name="web", uid="uid-1"), FlexVolume("data"))
        time.sleep(0.3)
        assert not target.done()
        slow.go("start-new")
        assert (target.result() / "new").exists()
        kubelet.unmount(Pod(name="web", uid="uid-1"), "data")


def test_kubelet_sees_no_end_of_a_stream_while_the_daemon_reloads(short_path: Path) -> None:
    (short_path / "dev").mkdir()
    os.mknod(short_path / "dev" / "a0", stat.S_IFCHR | 0o600, os.makedev(1, 3))

    def plugins(count: int) -> str:
        nodes = f'{{ path = "{short_path}/dev/a*" }}'
        group = f"{{ nodes = [{nodes}], count = {count} }}"
        return f'[plugins.hostdev.config]\nresources = [{{ resource = "example.com/a", groups = [{group}] }}]\n'

    async def story() -> None:
        scratch = ScratchNode(short_path, plugins(1), fork=True)
        async with Kubelet(scratch.paths.device_plugins.parent) as kubelet:
            with scratch:
                await kubelet.until_allocatable("example.com/a", 1)
                for count in range(2, 5):
                    await asyncio.to_thread(scratch.configure, plugins(count))
                    await kubelet.until_allocatable("example.com/a", count)
                    await kubelet.admit(f"pod{count}", {"example.com/a": 1})
                assert len(kubelet.registrations) == 1
                assert kubelet.streams("example.com/a") == 1

    asyncio.run(story())
