"""Overuse where claims hold the memory: several containers may share one, and some are not known to use theirs."""

import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug import DeviceId, ResourceName
from nodeplug.testing import host
from nodeplug_gpu.allocations import Allocation
from nodeplug_gpu.cards import Card, GpuProcess, Snapshot, Uuid
from nodeplug_gpu.config import Memory
from nodeplug_gpu.containers import Containers
from nodeplug_gpu.holders import Container
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.overuse import OveruseWatch
from nodeplug_gpu.pool import Pool, PoolMember

CARD = Uuid("GPU-1")
GIB = 1 << 30
RESOURCE = "aliyun.com/gpu-mem"
MAIN, SIDE = Container("default", "web", "main"), Container("default", "web", "side")
UNITS = tuple(DeviceId(f"u-{number}") for number in range(4))


class Scene:
    """Processes that stand in containers by files as those of proc(5) and of kubelet."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1000.0
        (folder / "logs").mkdir()
        self.watch = OveruseWatch(
            {RESOURCE: Memory.model_validate({"sharing": "memory", "overuse": {"kill_after": "30s"}})},
            host(folder, plugin="gpu"),
            lambda: Containers(folder / "proc", folder / "logs"),
            lambda: self.now,
        )
        self.processes: dict[Container, subprocess.Popen[bytes]] = {}

    def start(self, container: Container) -> None:
        process = self.processes[container] = subprocess.Popen(["sleep", "600"])
        name = f"{len(self.processes):064x}"
        (self.folder / "proc" / str(process.pid)).mkdir(parents=True)
        (self.folder / "proc" / str(process.pid) / "cgroup").write_text(f"0::/pods/{name}\n")
        (self.folder / "logs" / f"{container.pod}_{container.namespace}_{container.name}-{name}.log").touch()

    def look(self, *holders: Container, after: float = 0.0, **used: int) -> None:
        """Look at what the containers of these names use, in Gi, while some hold four units."""
        self.now += after
        found = [GpuProcess(one.pid, CARD, used[who.name] * GIB) for who, one in self.processes.items()]
        held = [
            Allocation(one, ResourceName(RESOURCE), CARD, UNITS, 4 * GIB, claims=("default/four",)) for one in holders
        ]
        pools = {RESOURCE: Pool((PoolMember(Card(CARD, 0, 0, "X", 16 * GIB)),))}
        self.watch.reconcile(Inventory(Snapshot("running", processes=tuple(found)), pools, {}, tuple(held)))

    @property
    def alive(self) -> set[str]:
        return {who.name for who, one in self.processes.items() if one.poll() is None}


@pytest.fixture
def scene(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Scene]:
    caplog.set_level(logging.INFO)
    made = Scene(tmp_path)
    made.start(MAIN)
    made.start(SIDE)
    yield made
    for one in made.processes.values():
        one.kill()
        one.wait()


def test_containers_that_share_a_claim_exceed_it_together_and_the_one_that_uses_most_is_ended(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for after in (0, 61, 31):
        scene.look(MAIN, SIDE, main=2, side=4, after=after)
    assert scene.processes[SIDE].wait(10) == -15
    assert scene.alive == {"main"}
    warning = "container default/web/main on GPU-1 uses 2Gi (6Gi with those that share its claim) and was allocated 4Gi"
    assert any(record.message.startswith(warning) for record in caplog.records)


def test_containers_that_share_a_claim_and_stay_within_it_are_left_alone(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for after in (0, 61, 31):
        scene.look(MAIN, SIDE, main=1, side=3, after=after)
    assert scene.alive == {"main", "side"}
    assert not caplog.records


def test_a_container_whose_claim_has_no_names_yet_is_not_told_to_have_no_allocation(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for after in (0, 61, 31):
        scene.look(Container("default", "", "", "four"), main=1, side=3, after=after)
    assert not any(one.unallocated for one in scene.watch.usage.values())
    assert not caplog.records


def test_a_container_of_another_namespace_has_no_allocation_all_the_same(scene: Scene) -> None:
    scene.look(Container("other", "", "", "four"), main=1, side=3)
    assert all(one.unallocated for one in scene.watch.usage.values())
