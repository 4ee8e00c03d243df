"""MPS in the real daemon, beside a kubelet: what a pod is given, and what is left in the end."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeplug.contract.mounts import mounts
from nodeplug.testing import Kubelet, ScratchNode, folders
from nodeplug_gpu.mps.record import recorded

pytestmark = pytest.mark.node

MEM = "aliyun.com/gpu-mem"
SUPERVISOR = 'listen = ""\ndevice_poll = "200ms"\npodresources_poll = "200ms"'


def section(driver_root: Path, mps: str = "mps = {}\n", name: str = "gpu") -> str:
    return (
        f'[plugins.{name}]\nuses = "gpu"\n'
        f'[plugins.{name}.config]\ndriver = "simulated"\npoll = "50ms"\ndriver_root = "{driver_root}"\n'
        'simulated = [{ memory = "8Gi" }]\n'
        f'[[plugins.{name}.config.resources]]\nsharing = "memory"\n{mps}'
    )


@pytest.fixture
def node(short_path: Path, driver_root: Path) -> Iterator[ScratchNode]:
    made = ScratchNode(short_path, section(driver_root), supervisor=SUPERVISOR, fork=True)
    yield made
    made.stop()
    for record in short_path.rglob("daemon.json"):
        if (pid := recorded(record)) is not None:
            os.kill(pid, signal.SIGKILL)
    folders.unmount_below(short_path)


def mounted(node: ScratchNode) -> list[str]:
    return sorted(Path(mount.target).name for mount in mounts() if Path(mount.target).is_relative_to(node.root))


async def shm_of(kubelet: Kubelet, pod: str) -> Path:
    granted = (await kubelet.admit(pod, {MEM: 2}))[MEM]
    (found,) = [mount for mount in granted.mounts if mount.container_path == "/dev/shm"]
    return Path(found.host_path)


def run(story: Callable[[Kubelet], Coroutine[Any, Any, None]], node: ScratchNode) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120), Kubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
            node.start()
            await kubelet.until_allocatable(MEM, 8)
            await story(kubelet)

    asyncio.run(bounded())


@pytest.mark.whole
def test_pods_share_memory_that_outlives_a_killed_nodeplug(node: ScratchNode) -> None:
    async def story(kubelet: Kubelet) -> None:
        (await shm_of(kubelet, "first") / "of-the-first").touch()
        os.kill(node.pid, signal.SIGKILL)
        node.stop()
        assert mounted(node) == ["log", "shm"]
        before = len(kubelet.registrations)
        node.start()
        await kubelet.until(lambda: len(kubelet.registrations) > before and kubelet.allocatable(MEM) == 8)
        assert (await shm_of(kubelet, "second") / "of-the-first").exists()
        assert mounted(node) == ["log", "shm"]

    run(story, node)


@pytest.mark.whole
def test_nothing_stays_mounted_when_mps_is_switched_off(node: ScratchNode, driver_root: Path) -> None:
    async def story(kubelet: Kubelet) -> None:
        assert mounted(node) == ["log", "shm"]
        node.configure(section(driver_root, mps=""))
        await kubelet.until(lambda: not mounted(node))

    run(story, node)


def test_memory_stays_mounted_while_a_pod_holds_the_card_that_is_shared_without_mps_next(
    node: ScratchNode, driver_root: Path
) -> None:
    async def story(kubelet: Kubelet) -> None:
        given = await shm_of(kubelet, "pod")
        node.configure(section(driver_root, mps=""))
        await kubelet.until(lambda: "under its former limits (MPS)" in node.log)
        await asyncio.sleep(0.5)  # ten looks
        assert given.is_mount()

    run(story, node)


@pytest.mark.whole
def test_pods_share_memory_and_daemon_while_their_section_is_renamed_and_named_back(
    node: ScratchNode, driver_root: Path
) -> None:
    async def story(kubelet: Kubelet) -> None:
        (await shm_of(kubelet, "gpu") / "of-the-first").touch()
        for turn, name in enumerate(("cards", "gpus", "gpu")):
            node.configure(section(driver_root, name=name))
            await kubelet.until(lambda name=name, turn=turn: node.log.count(f"plugin {name} runs") > (turn == 2))  # type: ignore[misc]
            await kubelet.until_allocatable(MEM, 8)
            if name != "gpu":
                assert (await shm_of(kubelet, name) / "of-the-first").exists()
        assert mounted(node) == ["log", "shm"]

    run(story, node)


@pytest.mark.whole
def test_nothing_stays_mounted_when_mps_is_switched_off_in_a_section_of_another_name(
    node: ScratchNode, driver_root: Path
) -> None:
    async def story(kubelet: Kubelet) -> None:
        assert mounted(node) == ["log", "shm"]
        node.configure(section(driver_root, mps="", name="cards"))
        await kubelet.until(lambda: not mounted(node))

    run(story, node)
