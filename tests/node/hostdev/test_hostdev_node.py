"""hostdev through the whole daemon: nodes that come, go and are held, as kubelet sees them."""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nodeplug.testing import ScratchNode
from nodeplug.testing.kubelet.allocation import AdmissionError
from nodeplug.testing.kubelet.stand_in import Kubelet

NAME = "example.com/board"
# The poll is slow on purpose: what arrives sooner came by inotify.
SUPERVISOR = 'listen = ""\ndevice_poll = "600s"\npodresources_poll = "200ms"'
Story = Callable[[Kubelet, Path, ScratchNode], Awaitable[None]]


@pytest.fixture
def root() -> Iterator[Path]:
    """Make a folder with a short name: a socket's path has at most 107 bytes."""
    with TemporaryDirectory(prefix="np") as folder:
        yield Path(folder)


def mknod(path: Path, minor: int = 3) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, minor))


def play(root: Path, story: Story, group: str = "") -> None:
    dev = root / "dev"
    dev.mkdir()

    async def run() -> None:
        async with Kubelet(root / "var/lib/kubelet") as kubelet:
            node = ScratchNode(root, plugins, supervisor=SUPERVISOR, fork=True)
            await asyncio.to_thread(node.start)
            try:
                await story(kubelet, dev, node)
            finally:
                await asyncio.to_thread(node.stop)

    plugins = f"""
        [plugins.hostdev.config]
        resources = [{{ resource = "{NAME}", groups = [{{ nodes = [{{ path = "{dev}/board*" }}] {group} }}] }}]
    """
    asyncio.run(run())


def test_node_that_is_plugged_in_becomes_allocatable_without_a_poll(root: Path) -> None:
    async def story(kubelet: Kubelet, dev: Path, node: ScratchNode) -> None:
        await kubelet.until(lambda: NAME in kubelet.resources)
        mknod(dev / "board0")
        await kubelet.until_allocatable(NAME, 1)
        mknod(dev / "board1")
        await kubelet.until_allocatable(NAME, 2)

    play(root, story)


def test_container_is_granted_its_node(root: Path) -> None:
    async def story(kubelet: Kubelet, dev: Path, node: ScratchNode) -> None:
        mknod(dev / "board0")
        await kubelet.until_allocatable(NAME, 1)
        answer = (await kubelet.admit("pod", {NAME: 1}))[NAME]
        assert [(node.host_path, node.permissions) for node in answer.devices] == [(str(dev / "board0"), "rw")]

    play(root, story)


def test_shared_node_serves_as_many_containers_as_its_count(root: Path) -> None:
    async def story(kubelet: Kubelet, dev: Path, node: ScratchNode) -> None:
        mknod(dev / "board0")
        await kubelet.until_allocatable(NAME, 2)
        one = (await kubelet.admit("one", {NAME: 1}))[NAME]
        two = (await kubelet.admit("two", {NAME: 1}))[NAME]
        assert one.devices == two.devices
        with pytest.raises(AdmissionError):
            await kubelet.admit("three", {NAME: 1})

    play(root, story, ", count = 2")


def test_node_that_is_unplugged_while_held_stays_in_the_capacity_until_released(root: Path) -> None:
    async def story(kubelet: Kubelet, dev: Path, node: ScratchNode) -> None:
        mknod(dev / "board0")
        await kubelet.until_allocatable(NAME, 1)
        await kubelet.admit("pod", {NAME: 1})
        await kubelet.admit("other", {})  # a kubelet that names no pod at all is not believed for a while
        # A pod that only the checkpoint names is held until its folder goes, and the stand-in makes no folders of pods.
        holders = node.paths.state / "holders.json"
        await kubelet.until(lambda: holders.exists() and '"pod": "pod"' in holders.read_text())
        assert node.status()["resources"][0]["allocated"] == 1
        (dev / "board0").unlink()
        await kubelet.until_allocatable(NAME, 0)
        assert kubelet.capacity(NAME) == 1
        kubelet.remove_pod("pod", "default")
        await kubelet.until(lambda: kubelet.capacity(NAME) == 0)

    play(root, story)


def test_node_that_comes_back_is_healthy_again(root: Path) -> None:
    async def story(kubelet: Kubelet, dev: Path, node: ScratchNode) -> None:
        mknod(dev / "board0")
        await kubelet.until_allocatable(NAME, 1)
        (dev / "board0").unlink()
        await kubelet.until_allocatable(NAME, 0)
        mknod(dev / "board0")
        await kubelet.until_allocatable(NAME, 1)
        assert kubelet.capacity(NAME) == 1

    play(root, story)
