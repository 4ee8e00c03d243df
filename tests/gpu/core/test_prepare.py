"""A reload of the plugin with a start that is slow: what is served meanwhile, and what waits for what."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import Kubelet, ScratchNode, folders

MEM, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu"
SUPERVISOR = 'listen = ""\ndevice_poll = "200ms"\npodresources_poll = "200ms"'
MEMORY = '[[plugins.gpu.config.resources]]\nsharing = "memory"\n'
SILENT_CONTROL = """#!/bin/sh
# Stands in for an nvidia-cuda-mps-control that never opens its socket.
[ "$1" = -f ] || exit 1
echo $$ >> "$(dirname "$0")/starts"
exec sleep 600
"""


@pytest.fixture
def node(short_path: Path) -> Iterator[ScratchNode]:
    made = ScratchNode(short_path, "", supervisor=SUPERVISOR, fork=True)
    yield made
    made.stop()


def nvml_section(root: Path, head: str = "") -> str:
    return f'[plugins.gpu.config]\ndriver_root = "{root}"\npoll = "100ms"\n{head}{MEMORY}'


def run(story: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await story()

    asyncio.run(bounded())


# The longer time is more than any deadline of Allocate and GetPreferredAllocation.
@pytest.mark.whole
@pytest.mark.parametrize("seconds", [2.0, 12.0])
def test_pods_are_admitted_while_a_reloaded_instance_waits_for_the_driver(
    seconds: float, node: ScratchNode, nvml: Any
) -> None:
    node.configure(nvml_section(nvml.root))

    async def story() -> None:
        async with Kubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
            node.start()
            await kubelet.until_allocatable(MEM, 120)
            stream = kubelet.resources[MEM].endpoint
            calls = nvml.calls("nvmlInitWithFlags")
            nvml.hang("nvmlInitWithFlags")
            node.configure(nvml_section(nvml.root, 'hang_after = "60s"\n'))
            await kubelet.until(lambda: nvml.calls("nvmlInitWithFlags") > calls)
            begun = time.monotonic()
            while time.monotonic() - begun < seconds:
                name = f"pod-{time.monotonic_ns()}"
                assert (await kubelet.admit(name, {MEM: 3}))[MEM].envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"
                kubelet.remove_pod(name)
                await asyncio.sleep(0.5)
            assert node.log.count("plugin gpu runs") == 1
            nvml.hang("nvmlInitWithFlags", hangs=False)
            await kubelet.until(lambda: node.log.count("plugin gpu runs") == 2)
            await kubelet.admit("after", {MEM: 3})
            assert kubelet.resources[MEM].endpoint is stream
            assert kubelet.allocatable(MEM) == 120

    run(story)


@pytest.mark.whole
@pytest.mark.node
def test_a_card_without_mps_does_not_wait_for_the_mps_daemon_of_another(node: ScratchNode) -> None:
    programs = node.root / "driver" / "usr" / "bin"
    programs.mkdir(parents=True)
    for name, text in (("nvidia-cuda-mps-control", SILENT_CONTROL), ("nvidia-smi", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    node.configure(
        f'[plugins.gpu.config]\ndriver = "simulated"\npoll = "50ms"\ndriver_root = "{node.root}/driver"\n'
        'simulated = [{ memory = "8Gi", count = 2 }]\n'
        f"{MEMORY}mps = {{}}\ncards = {{ index = [0] }}\n"
        f'[[plugins.gpu.config.resources]]\nsharing = "exclusive"\nresource = "{WHOLE}"\ncards = {{ index = [1] }}\n'
    )

    async def story() -> None:
        async with Kubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
            node.start()
            await kubelet.until_allocatable(WHOLE, 1)
            assert kubelet.capacity(MEM) == 0, "the card without MPS was listed no earlier than the other"
            await kubelet.until(lambda: kubelet.capacity(MEM) == 8)
            assert kubelet.allocatable(MEM) == 0

    try:
        run(story)
    finally:
        for pid in (programs / "starts").read_text().split():
            os.kill(int(pid), 9)
        node.stop()
        folders.unmount_below(node.root)
