"""The example plugins against the real daemon, with stand-ins for kubelet and the container runtime."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug import Pod
from nodeplug.testing import CniRuntime, FlexCaller, FlexVolume, Kubelet, Sandbox, ScratchNode

PLUGINS = """
[plugins.fuse]
uses = "fuse:Fuse"
[plugins.wire]
uses = "wire:Wire"
[plugins.host-local]
[plugins.audit]
uses = "audit:Audit"
[plugins.scratch]
uses = "scratch:Scratch"
config = { size = "4m" }
"""
NETWORK = {
    "cniVersion": "1.0.0",
    "name": "net",
    "plugins": [{"type": "example-wire", "ipam": {"type": "nodeplug-host-local", "subnet": "10.9.0.0/24"}}],
}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def node() -> Iterator[ScratchNode]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path has at most 107 bytes
        pools = f'config = {{ data_dir = "{folder}/addresses" }}'
        plugins = PLUGINS.replace("[plugins.host-local]", f"[plugins.host-local]\n{pools}")
        node = ScratchNode(Path(folder), plugins, env={"PYTHONPATH": str(Path(__file__).parent)})
        with node:
            node.run("install")
            yield node


def test_a_pod_gets_the_device(node: ScratchNode) -> None:
    async def scenario() -> list[str]:
        async with Kubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
            await kubelet.until_allocatable("example.com/fuse", 16)
            granted = await kubelet.admit("pod", {"example.com/fuse": 1})
            return [device.host_path for device in granted["example.com/fuse"].devices]

    assert asyncio.run(scenario()) == ["/dev/fuse"]


@needs_root
def test_a_container_is_attached_once_and_detached_twice(node: ScratchNode) -> None:
    runtime = CniRuntime(NETWORK, [node.paths.cni_bin])
    with Sandbox(node.root / "container") as sandbox:
        first = runtime.add("c1", sandbox.path)
        assert runtime.add("c1", sandbox.path) == first
        assert first["ips"][0]["address"] == "10.9.0.2/24"
        assert sandbox.links() == ("eth0", "lo")
        assert "container c1 got 10.9.0.2/24 in network net" in node.log
        runtime.delete("c1", sandbox.path)
        assert sandbox.links() == ("lo",)
        runtime.delete("c1", None)


@needs_root
def test_two_pods_share_a_volume_until_both_are_gone(node: ScratchNode) -> None:
    caller = FlexCaller(node.paths.flexvolume, node.root / "kubelet", "example/scratch")
    pods = Pod(uid="1"), Pod(uid="2")
    one, other = (caller.mount(pod, FlexVolume("data", {"name": "shared"})) for pod in pods)
    (one / "word").write_text("seen by both")
    assert (other / "word").read_text() == "seen by both"
    for pod in pods:
        caller.unmount(pod, "data")
    assert node.status()["volumes"] == []
