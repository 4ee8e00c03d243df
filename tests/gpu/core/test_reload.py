"""The plugin in the real daemon: reloads, restarts, and a life over real sockets."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nodeplug import DeviceId
from nodeplug.testing import AdmissionError, Kubelet, ScratchNode, folders
from nodeplug_gpu.ids import by_card

MEM = "aliyun.com/gpu-mem"
WHOLE = "nvidia.com/gpu"
SUPERVISOR = 'listen = ""\ndevice_poll = "200ms"\npodresources_poll = "200ms"'
CONTROL = """#!/bin/sh
[ "$1" = -f ] || { echo 100.0; exit 0; }
echo $$ >> "$(dirname "$0")/starts"
: > "$CUDA_MPS_PIPE_DIRECTORY/control"
trap 'exit 0' TERM
while :; do sleep 0.1; done
"""


def plugins(resources: str = "", cards: str = '{ memory = "8Gi", count = 2 }', head: str = "") -> str:
    resources = resources or '[[plugins.gpu.config.resources]]\nsharing = "memory"\n'
    return (
        f'[plugins.gpu.config]\ndriver = "simulated"\npoll = "50ms"\nsimulated = [{cards}]\n'
        f'health.probation = "10ms"\n{head}{resources}'
    )


@pytest.fixture
def node(short_path: Path) -> Iterator[ScratchNode]:
    made = ScratchNode(short_path, plugins(), supervisor=SUPERVISOR, fork=True)
    yield made
    made.stop()


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await story()

    asyncio.run(bounded())


def kubelet_of(node: ScratchNode, **more: Any) -> Kubelet:
    return Kubelet(node.root / "var" / "lib" / "kubelet", **more)


def fail(node: ScratchNode, **faults: Any) -> None:
    folder = next(path for path in node.root.rglob("gpu") if path.parent.name == "plugins" and "run" in path.parts)
    new = folder / "new"
    new.write_text(json.dumps(faults))
    new.rename(folder / "simulated-faults.json")


def test_a_driver_that_appears_later_registers_the_resource(node: ScratchNode) -> None:
    async def story() -> None:
        async with kubelet_of(node) as kubelet:
            node.start()
            await kubelet.until_allocatable(MEM, 16)
            fail(node, driver="absent", reason="no library")
            node.stop()
            node.start()
            await kubelet.until(lambda: kubelet.allocatable(MEM) == 0)
            fail(node)
            await kubelet.until_allocatable(MEM, 16)

    run(story)


def test_a_node_without_a_driver_registers_nothing_and_is_well(node: ScratchNode) -> None:
    node.configure(plugins().replace('driver = "simulated"', 'driver = "nvml"\ndriver_root = "/nowhere"').replace(
        'simulated = [{ memory = "8Gi", count = 2 }]\n', ""))  # fmt: skip

    async def story() -> None:
        async with kubelet_of(node) as kubelet:
            node.start()
            await kubelet.until(lambda: "is not offered" in node.log)
            assert list(kubelet.registrations) == []
            status = node.status()
            assert {one["name"]: one["state"] for one in status["plugins"]} == {"gpu": "running"}

    run(story)


@pytest.mark.whole
@pytest.mark.node
def test_an_exchange_leaves_stream_units_and_mps_as_they_are(node: ScratchNode) -> None:
    programs = node.root / "driver" / "usr" / "bin"
    programs.mkdir(parents=True)
    for name, text in (("nvidia-cuda-mps-control", CONTROL), ("nvidia-smi", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    resource = '[[plugins.gpu.config.resources]]\nsharing = "memory"\nmps = {}\n'
    root = f'driver_root = "{node.root}/driver"\n'
    cards = '{ memory = "8Gi" }'
    node.configure(plugins(resource, cards, root))
    pids: list[str] = []

    async def story() -> None:
        seen: list[int] = []
        async with kubelet_of(node) as kubelet:
            node.start()
            await kubelet.until_allocatable(MEM, 8)
            stream = kubelet.resources[MEM].endpoint
            lists = kubelet.resources[MEM].lists
            for turn in range(3):
                node.configure(plugins(resource, cards, root + f'hang_after = "{turn + 40}s"\n'))
                await kubelet.until(lambda turn=turn: node.log.count("plugin gpu runs") == turn + 2)  # type: ignore[misc]
                await asyncio.sleep(0.5)
                seen.append(kubelet.allocatable(MEM))
            assert seen == [8, 8, 8]
            assert kubelet.resources[MEM].endpoint is stream
            assert kubelet.resources[MEM].lists == lists, "kubelet was sent a list that differs"
            pids.extend((programs / "starts").read_text().split())
            assert len(pids) == 1

    try:
        run(story)
    finally:
        for pid in (programs / "starts").read_text().split():
            os.kill(int(pid), 15)
        node.stop()
        folders.unmount_below(node.root)


def test_a_reload_that_would_advertise_a_card_twice_changes_nothing(node: ScratchNode) -> None:
    twice = (
        '[[plugins.gpu.config.resources]]\nsharing = "memory"\ncards = { index = [0, 1] }\n'
        f'[[plugins.gpu.config.resources]]\nsharing = "exclusive"\nresource = "{WHOLE}"\ncards = {{ model = ["*"] }}\n'
    )

    async def story() -> None:
        async with kubelet_of(node) as kubelet:
            node.start()
            await kubelet.until_allocatable(MEM, 16)
            stream = kubelet.resources[MEM].endpoint
            node.configure(plugins(twice))
            await kubelet.until(lambda: f"{MEM} and {WHOLE} would both advertise GPU-" in node.log)
            assert node.log.count("plugin gpu runs") == 1, "the former instance was never touched"
            assert kubelet.resources[MEM].endpoint is stream
            assert kubelet.allocatable(MEM) == 16

    run(story)


def test_a_card_that_moves_to_another_resource_is_not_advertised_while_a_pod_holds_it(node: ScratchNode) -> None:
    moved = f'[[plugins.gpu.config.resources]]\nsharing = "exclusive"\nresource = "{WHOLE}"\n'

    async def story() -> None:
        async with kubelet_of(node) as kubelet:
            node.start()
            await kubelet.until_allocatable(MEM, 16)
            await kubelet.admit("pod", {MEM: 4})
            node.configure(plugins(moved))
            await kubelet.until(lambda: kubelet.capacity(WHOLE) == 2)
            assert kubelet.allocatable(WHOLE) == 0
            with pytest.raises(AdmissionError, match="no healthy devices present"):
                await kubelet.admit("other", {WHOLE: 1})

    run(story)


@pytest.mark.parametrize(
    ("policy", "seed", "steps", "restarts"),
    [
        ("binpack", 7, 50, 3.0),
        pytest.param("binpack", 7, 250, 1.5, marks=pytest.mark.whole),
        pytest.param("spread", 8, 250, 1.5, marks=pytest.mark.whole),
    ],
)
def test_a_life_over_real_sockets_spans_no_two_cards(
    policy: str, seed: int, steps: int, restarts: float, node: ScratchNode
) -> None:
    resource = f'[[plugins.gpu.config.resources]]\nsharing = "memory"\npolicy = "{policy}"\n'
    node.configure(plugins(resource, '{ memory = "8Gi", count = 2 }, { memory = "24Gi" }'))

    async def story() -> None:
        random, pods = Random(seed), list[str]()
        async with kubelet_of(node, seed=seed) as kubelet:
            node.start()
            await kubelet.until_allocatable(MEM, 40)
            for step in range(steps):
                event = random.choices(["admit", "remove", "kubelet", "daemon"], [60, 40, restarts, restarts])[0]
                if event == "admit":
                    if await _admitted(kubelet, f"pod-{step}", random.choice([1, 2, 4, 8, 12]), seed):
                        pods.append(f"pod-{step}")
                elif event == "remove" and pods:
                    kubelet.remove_pod(pods.pop(random.randrange(len(pods))))
                elif event == "kubelet":
                    await kubelet.restart()
                    await kubelet.until(lambda: _all_are_listed(kubelet))
                elif event == "daemon":
                    node.kill()
                    await kubelet.until(lambda: kubelet.allocatable(MEM) == 0)
                    await asyncio.to_thread(node.start)
                    await kubelet.until(lambda: _all_are_listed(kubelet))

    run(story)


def _all_are_listed(kubelet: Kubelet) -> bool:
    """Whether all units are listed, and those in use are healthy. After a refusal, free units may be withheld."""
    table, used = kubelet.resources[MEM].table, kubelet.ledger.in_use.get(MEM, set())
    if table is None or not table.healthy:
        return False
    return len(table.healthy) + len(table.unhealthy) == 40 and not table.unhealthy.keys() & used


async def _admitted(kubelet: Kubelet, pod: str, size: int, seed: int) -> bool:
    table, used = kubelet.resources[MEM].table, kubelet.ledger.in_use.get(MEM, set())
    assert table is not None
    kubelet.remove_pod("nobody")
    try:
        granted = (await kubelet.admit(pod, {MEM: size}))[MEM]
    except AdmissionError as error:
        free = by_card(map(DeviceId, table.healthy.keys() - used))
        if max(map(len, free.values()), default=0) >= size:
            pytest.fail(f"seed {seed}: {size} refused though a card has them: {error}")
        return False
    held = next(entry.ids for (key, _), entry in kubelet.ledger.entries.items() if key.pod == pod)
    assert len(by_card(map(DeviceId, held))) == 1, f"seed {seed}: {sorted(held)}"
    assert granted.envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(size) == str(len(held))
    return True
