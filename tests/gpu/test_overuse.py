"""Containers that use more memory of a card than allocated: real processes in real cgroups, simulated memory."""

import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeplug import DeviceId, ResourceName
from nodeplug.testing import host
from nodeplug.testing.waiting import until
from nodeplug_gpu.allocations import Allocation
from nodeplug_gpu.cards import Card, GpuProcess, Snapshot, Uuid
from nodeplug_gpu.config import Memory
from nodeplug_gpu.containers import Containers
from nodeplug_gpu.holders import Container
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.overuse import TERM_TIMEOUT, OveruseWatch
from nodeplug_gpu.pool import Pool, PoolMember

CARD = Uuid("GPU-1")
GIB = 1 << 30
WEB = Container("default", "web", "main")
RESOURCE = "aliyun.com/gpu-mem"
UNIFIED = Path("/sys/fs/cgroup")
CGROUP = UNIFIED if (UNIFIED / "cgroup.controllers").exists() else UNIFIED / "pids"


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Scene:
    """One container of kubelet's with one process on one card."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture, **overuse: Any) -> None:
        self.folder, self.caplog, self.clock = folder, caplog, Clock()
        self.unknown = ""
        self.entry = Memory.model_validate({"sharing": "memory", "overuse": overuse})
        caplog.set_level(logging.INFO)
        self.watch = OveruseWatch(
            {RESOURCE: self.entry},
            host(folder, plugin="gpu"),
            lambda: Containers(logs=folder / "containers"),
            self.clock,
        )

    def look(self, *processes: GpuProcess, after: float = 0.0, allocated: int | None = 4 * GIB) -> None:
        self.clock.now += after
        one = Allocation(WEB, ResourceName(RESOURCE), CARD, (DeviceId("u"),), allocated)
        snapshot = Snapshot(
            "running", cards=(Card(CARD, 0, 0, "X", 16 * GIB),), processes=processes, taken=self.clock.now
        )
        pools = {RESOURCE: Pool(tuple(PoolMember(card) for card in snapshot.cards))}
        allocations = (one,) if allocated is not None else ()
        self.watch.reconcile(Inventory(snapshot, pools, {}, allocations, allocations_unknown=self.unknown))


@pytest.fixture
def container(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the cgroup of a container, and kubelet's link to its log."""
    if not os.access(CGROUP / "cgroup.procs", os.W_OK):
        pytest.skip("needs control groups that can be written")
    name = os.urandom(32).hex()
    pod = CGROUP / f"nodeplug-gpu-test-{os.getpid()}.slice"
    group = pod / f"cri-containerd-{name}.scope"
    group.mkdir(parents=True)
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / f"web_default_main-{name}.log").symlink_to("/nowhere")
    process = subprocess.Popen(["sleep", "600"])
    (group / "cgroup.procs").write_text(str(process.pid))
    yield process
    process.kill()
    process.wait()
    for cgroup in (group, pod):  # a process leaves its cgroup a moment after its parent has learnt of its end
        until(lambda cgroup=cgroup: removed(cgroup))  # type: ignore[misc] # mypy cannot infer the default


def removed(cgroup: Path) -> bool:
    with suppress(OSError):
        cgroup.rmdir()
    return not cgroup.exists()


@pytest.fixture
def scene(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Scene:
    return Scene(tmp_path, caplog, grace="60s", tolerance="256Mi", kill_after="30s")


def on_card(process: "subprocess.Popen[bytes]", used: int | None) -> GpuProcess:
    return GpuProcess(process.pid, CARD, used)


def test_memory_of_a_process_is_counted_for_its_container(scene: Scene, container: "subprocess.Popen[bytes]") -> None:
    scene.look(on_card(container, 3 * GIB))
    usage = scene.watch.usage[WEB, CARD]
    assert (usage.used, usage.allocated_bytes, usage.over_since) == (3 * GIB, 4 * GIB, None)


def test_a_process_outside_of_containers_is_unattributed(scene: Scene) -> None:
    scene.look(GpuProcess(os.getpid(), CARD, GIB))
    assert dict(scene.watch.unattributed) == {CARD: GIB}
    assert not scene.watch.usage


def test_a_process_that_has_ended_is_unattributed(scene: Scene) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    scene.look(on_card(gone, GIB))
    assert dict(scene.watch.unattributed) == {CARD: GIB}


def test_memory_that_the_driver_does_not_tell_counts_as_none(
    scene: Scene, container: "subprocess.Popen[bytes]"
) -> None:
    scene.look(on_card(container, None))
    assert scene.watch.usage[WEB, CARD].used == 0


def test_the_context_of_cuda_is_tolerated(scene: Scene, container: "subprocess.Popen[bytes]") -> None:
    scene.look(on_card(container, 4 * GIB + (256 << 20)))
    assert scene.watch.usage[WEB, CARD].over_since is None


def test_overuse_is_warned_of_once_after_the_grace(scene: Scene, container: "subprocess.Popen[bytes]") -> None:
    for _ in range(5):
        scene.look(on_card(container, 6 * GIB), after=14)
    assert not scene.caplog.records
    for _ in range(2):
        scene.look(on_card(container, 6 * GIB), after=10)
    assert [record.message for record in scene.caplog.records] == [
        (
            "container default/web/main on GPU-1 uses 6Gi and was allocated 4Gi, for 66 s now: its neighbours may run "
            "out of memory; give the container more units, or limit it with mps"
        )
    ]


def test_overuse_that_passes_is_forgotten(scene: Scene, container: "subprocess.Popen[bytes]") -> None:
    scene.look(on_card(container, 6 * GIB))
    scene.look(on_card(container, 3 * GIB), after=50)
    scene.look(on_card(container, 6 * GIB), after=50)
    scene.look(on_card(container, 6 * GIB), after=50)
    assert not scene.caplog.records


def test_processes_are_ended_only_after_the_warning_and_its_time(
    scene: Scene, container: "subprocess.Popen[bytes]"
) -> None:
    scene.look(on_card(container, 6 * GIB))
    scene.look(on_card(container, 6 * GIB), after=61)
    scene.look(on_card(container, 6 * GIB), after=29)
    assert container.poll() is None
    scene.look(on_card(container, 6 * GIB), after=2)
    assert container.wait(10) == -15


def test_a_process_that_ignores_sigterm_gets_sigkill(
    scene: Scene, container: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"], stdout=-1)
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    group = next(CGROUP.glob(f"nodeplug-gpu-test-{os.getpid()}.slice/*.scope"))
    (group / "cgroup.procs").write_text(str(stubborn.pid))
    for after in (0, 61, 31):
        scene.look(on_card(stubborn, 6 * GIB), after=after)
    assert stubborn.poll() is None
    scene.look(on_card(stubborn, 6 * GIB), after=TERM_TIMEOUT)
    assert stubborn.wait(10) == -9
    stubborn.stdout.close()


def test_nothing_is_ended_by_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, container: "subprocess.Popen[bytes]"
) -> None:
    scene = Scene(tmp_path, caplog)
    for _ in range(4):
        scene.look(on_card(container, 16 * GIB), after=600)
    assert container.poll() is None


def test_a_container_without_an_allocation_is_never_terminated(
    scene: Scene, container: "subprocess.Popen[bytes]"
) -> None:
    for _ in range(4):
        scene.look(on_card(container, 16 * GIB), after=600, allocated=None)
    assert container.poll() is None
    assert scene.watch.usage[WEB, CARD].allocated_bytes is None


def test_a_name_with_dots_and_dashes_is_read_right(tmp_path: Path, container: "subprocess.Popen[bytes]") -> None:
    link = next((tmp_path / "containers").iterdir())
    link.rename(link.with_name(link.name.replace("web_default_main-", "my-web.1_kube-system_side-car-2-")))
    assert Containers(logs=tmp_path / "containers").of(container.pid) == Container(
        "kube-system", "my-web.1", "side-car-2"
    )


def cut(folder: Path, pod: str) -> Path:
    """Name the only link as kubelet names it for a pod: 255 bytes at most, the end of the id is lost."""
    link = next(folder.iterdir())
    container_id = link.stem.rpartition("-")[2]
    link.unlink()
    made = folder / (f"{pod}_default_main-{container_id}"[:251] + ".log")
    made.symlink_to(f"/var/log/pods/default_{pod}_0a1b2c3d-0000/main/0.log")
    return made


def test_a_link_whose_name_was_too_long_for_the_whole_id_still_leads_to_its_container(
    tmp_path: Path, container: "subprocess.Popen[bytes]"
) -> None:
    pod = "p" * 200
    assert len(cut(tmp_path / "containers", pod).name) == 255
    assert Containers(logs=tmp_path / "containers").of(container.pid) == Container("default", pod, "main")
    assert Containers(logs=tmp_path / "containers").of(os.getpid()) is None


def test_a_link_that_has_lost_most_of_the_id_tells_nothing(
    tmp_path: Path, container: "subprocess.Popen[bytes]"
) -> None:
    cut(tmp_path / "containers", "p" * 230)
    assert Containers(logs=tmp_path / "containers").of(container.pid) is None


def test_a_folder_of_logs_that_is_missing_makes_everything_unattributed(
    tmp_path: Path, container: "subprocess.Popen[bytes]"
) -> None:
    assert Containers(logs=tmp_path / "missing").of(container.pid) is None


def test_a_container_that_holds_nothing_is_warned_of_and_never_ended(
    scene: Scene, container: "subprocess.Popen[bytes]"
) -> None:
    for _ in range(20):
        scene.look(on_card(container, 3 * GIB), after=15, allocated=None)
    (record,) = scene.caplog.records
    assert record.getMessage() == (
        "container default/web/main on GPU-1 has used 3Gi for 60 s, and kubelet reports no allocation of it: "
        "does its pod or image set NVIDIA_VISIBLE_DEVICES?"
    )
    assert scene.watch.usage[WEB, CARD].unallocated
    assert container.poll() is None


def test_nobody_is_without_allocation_while_allocations_are_not_known(
    scene: Scene, container: "subprocess.Popen[bytes]"
) -> None:
    scene.unknown = "kubelet does not tell"
    for _ in range(20):
        scene.look(on_card(container, 3 * GIB), after=15, allocated=None)
    assert not scene.watch.usage[WEB, CARD].unallocated
    assert not scene.caplog.records


def test_a_container_that_was_started_again_has_all_its_time(
    scene: Scene, container: "subprocess.Popen[bytes]"
) -> None:
    for after in (0, 61, 31):
        scene.look(on_card(container, 6 * GIB), after=after)
    assert container.wait(10) == -15
    with subprocess.Popen(["sleep", "600"]) as again:
        group = next(CGROUP.glob(f"nodeplug-gpu-test-{os.getpid()}.slice/*.scope"))
        (group / "cgroup.procs").write_text(str(again.pid))
        scene.look(on_card(again, 6 * GIB), after=TERM_TIMEOUT)
        usage = scene.watch.usage[WEB, CARD]
        assert (usage.over_since, usage.terminated) == (scene.clock.now, None)
        assert again.poll() is None
        again.kill()
