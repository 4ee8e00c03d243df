"""The plugin's start and stop: threads, order, and a start that is repeated. The driver is the simulated one."""

import gc
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.own_descriptors import open_descriptors

from nodeplug import (
    Device,
    DeviceAllocate,
    DeviceId,
    DeviceList,
    DeviceReleased,
    Holding,
    InvalidRequest,
    NotFound,
    NotReady,
    ResourceName,
)
from nodeplug.testing import folders, host
from nodeplug.testing.waiting import until
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.driver import Observer
from nodeplug_gpu.driver.simulated import SimulatedDriver
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.plugin import FAULTS_FILE, Gpu

MEM, WHOLE = ResourceName("aliyun.com/gpu-mem"), ResourceName("nvidia.com/gpu")
ONE_CARD = [{"memory": "4Gi", "uuid": "GPU-0000"}]
MEMORY: dict[str, Any] = {"sharing": "memory"}
CHOSEN_TWICE: list[dict[str, Any]] = [
    {"sharing": "exclusive", "resource": WHOLE, "cards": {"index": [0]}},
    MEMORY | {"cards": {"model": ["Simulated*"]}},
]


@pytest.fixture
def with_nodes(tmp_path: Path) -> str:
    """A root whose /dev has a card."""
    root = tmp_path / "nodes"
    (root / "dev").mkdir(parents=True)
    for name in ("nvidiactl", "nvidia0"):
        (root / "dev" / name).touch()
    return str(root)


class Stage:
    """Makes plugins over one folder, and knows what they asked of the daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refreshed: list[str] = []
        self.held: Sequence[Holding] | None = ()
        self.made: list[Gpu] = []

    def plugin(self, resources: Sequence[Mapping[str, Any]] = (MEMORY,), **more: Any) -> Gpu:
        config = {"driver": "simulated", "simulated": ONE_CARD, "poll": "20ms", "resources": resources} | more
        given = host(self.folder, plugin="gpu", refresh=self.refreshed.append, holders=self._holders)
        self.made.append(Gpu(GpuConfig.model_validate(config), given))
        return self.made[-1]

    def _holders(self, resource: ResourceName) -> Sequence[Holding]:
        if self.held is None:
            raise NotReady("kubelet does not tell")
        return [one for one in self.held if one.resource == resource]

    def fail(self, **faults: Any) -> None:
        file = self.folder / "run" / FAULTS_FILE
        file.parent.mkdir(exist_ok=True)
        file.with_suffix(".new").write_text(json.dumps(faults))
        file.with_suffix(".new").rename(file)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    for plugin in made.made:
        plugin.stop()


def devices(plugin: Gpu, resource: ResourceName = MEM) -> Sequence[Device]:
    try:
        return plugin.device_list(DeviceList(resource=resource))
    except NotFound:
        return ()


def _listed(plugin: Gpu) -> bool:
    try:
        return bool(plugin.device_list(DeviceList(resource=MEM)))
    except NotReady:
        return False


def own_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(("gpu:", "nodeplug-gpu"))}


def test_the_first_list_after_start_is_whole(stage: Stage) -> None:
    plugin = stage.plugin()
    plugin.start()
    assert [one.healthy for one in plugin.device_list(DeviceList(resource=MEM))] == [True] * 4


def test_nothing_is_left_after_many_starts_and_stops(stage: Stage) -> None:
    gc.collect()  # what tests before this one left in cycles may go at any time
    before = len(open_descriptors())
    for _ in range(20):
        plugin = stage.plugin()
        plugin.start()
        plugin.stop()
    assert own_threads() == set()
    gc.collect()
    until(lambda: len(open_descriptors()) <= before)  # other threads have some for a moment


def test_stop_without_start_and_a_second_stop_succeed(stage: Stage) -> None:
    plugin = stage.plugin()
    plugin.stop()
    plugin.start()
    plugin.stop()
    plugin.stop()
    assert own_threads() == set()


def test_a_card_that_two_entries_choose_refuses_the_start_with_both_and_without_waiting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeplug_gpu.plugin._START_TIMEOUT", 3600.0)
    with pytest.raises(InvalidRequest, match=f"{WHOLE} and {MEM} would both advertise GPU-0000"):
        stage.plugin(CHOSEN_TWICE).start()
    assert own_threads() == set()


def test_a_start_that_failed_can_be_repeated_on_the_same_instance(stage: Stage) -> None:
    plugin = stage.plugin(CHOSEN_TWICE)
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            plugin.start()
    stage.fail(cards={"0": {"gone": True}})
    plugin.start()
    stage.fail()
    until(lambda: plugin.inspect()["conflict"])
    with pytest.raises(NotReady, match="would both advertise"):
        plugin.health()


def test_a_repeated_start_advertises_cards_as_the_first_would_have(stage: Stage) -> None:
    plugin = stage.plugin()
    (stage.folder / "journal").touch()
    plugin.start()
    plugin.stop()
    plugin.start()
    assert len(devices(plugin)) == 4
    stage.fail(cards={"0": {"lost": True}})
    until(lambda: not any(one.healthy for one in devices(plugin)))


def test_stop_during_start_ends_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = threading.Event()

    def never_looks(driver: SimulatedDriver, observer: Observer) -> None:
        entered.set()

    monkeypatch.setattr(SimulatedDriver, "start", never_looks)
    monkeypatch.setattr("nodeplug_gpu.plugin._START_TIMEOUT", 3600.0)
    plugin = stage.plugin(poll="1h")
    starting = threading.Thread(target=plugin.start)
    starting.start()
    entered.wait(20)
    plugin.stop()
    starting.join(20)
    assert not starting.is_alive()
    assert own_threads() == set()


def test_a_snapshot_before_start_has_returned_is_used(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    start = SimulatedDriver.start

    def looks_at_once(driver: SimulatedDriver, observer: Observer) -> None:
        start(driver, observer)
        until(lambda: driver.snapshot.state == "running")
        observer(driver.snapshot, ())

    monkeypatch.setattr(SimulatedDriver, "start", looks_at_once)
    plugin = stage.plugin()
    plugin.start()
    assert len(devices(plugin)) == 4


def test_a_driver_that_appears_later_brings_the_resource(stage: Stage) -> None:
    stage.fail(driver="absent", reason="no libnvidia-ml.so.1")
    plugin = stage.plugin()
    plugin.start()
    plugin.health()
    with pytest.raises(NotFound, match="no libnvidia-ml"):
        plugin.device_list(DeviceList(resource=MEM))
    stage.fail()
    until(lambda: len(devices(plugin)) == 4)
    assert MEM in stage.refreshed


def test_a_failed_driver_is_told_by_health_and_by_each_unit(stage: Stage) -> None:
    plugin = stage.plugin()
    plugin.start()
    stage.fail(driver="failed", reason="it hangs in nvmlInit")
    until(lambda: not any(one.healthy for one in devices(plugin)))
    assert {one.reason for one in devices(plugin)} == {"the driver is failed: it hangs in nvmlInit"}
    with pytest.raises(NotReady, match="it hangs in nvmlInit"):
        plugin.health()


@pytest.mark.parametrize("told", [True, False], ids=["kubelet tells", "kubelet does not tell"])
def test_a_restart_while_a_card_is_lost_goes_on_listing_it(told: bool, stage: Stage) -> None:
    first = stage.plugin()
    first.start()
    ids = [one.id for one in devices(first)]
    stage.held = (
        [Holding(resource=MEM, ids=(DeviceId(ids[0]),), namespace="default", pod="pod", container="main")]
        if told
        else None
    )
    first.stop()
    stage.fail(cards={"0": {"gone": True}})
    second = stage.plugin()
    second.start()
    assert [(one.id, one.healthy) for one in devices(second)] == [(name, False) for name in ids]


def test_every_change_of_a_card_asks_the_daemon_for_a_new_list(stage: Stage) -> None:
    plugin = stage.plugin()
    plugin.start()
    stage.refreshed.clear()
    stage.fail(cards={"0": {"xid": 79}})
    until(lambda: MEM in stage.refreshed)


def test_updates_without_a_change_ask_for_nothing(stage: Stage) -> None:
    plugin = stage.plugin()
    plugin.start()
    stage.refreshed.clear()
    for _ in range(5):
        plugin.device_released(
            DeviceReleased(resource=MEM, ids=(DeviceId("0-0"),), namespace="default", pod="pod", container="main")
        )
        time.sleep(0.02)
    assert stage.refreshed == []


def test_an_update_that_fails_leaves_the_last_one(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    plugin = stage.plugin()
    plugin.start()

    def broken(resource: ResourceName) -> Sequence[Holding]:
        raise RuntimeError("a bug")

    object.__setattr__(plugin._host, "_holders", broken)
    until(lambda: "the inventory could not be updated" in caplog.text)
    assert len(devices(plugin)) == 4


def test_a_reconciler_that_fails_holds_up_no_other(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    followed = threading.Event()

    class Broken:
        def reconcile(self, inventory: Inventory) -> None:
            raise RuntimeError("a bug")

        def stop(self) -> None:
            pass

    class Sound(Broken):
        def reconcile(self, inventory: Inventory) -> None:
            followed.set()

    plugin = stage.plugin()
    plugin._reconcilers = (Broken(), Sound())
    plugin.start()
    assert followed.wait(20)
    assert "Broken could not reconcile" in caplog.text
    assert len(devices(plugin)) == 4


def test_the_log_says_why_a_card_is_not_allocatable(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first = stage.plugin()
    first.start()
    first.stop()
    second = stage.plugin([{"sharing": "exclusive", "resource": WHOLE}])
    second.start()
    assert f"GPU-0000 is not allocatable as {WHOLE}: it was advertised as {MEM} (memory)" in caplog.text


def test_a_slow_driver_is_waited_for_where_cards_were_advertised(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    first = stage.plugin()
    first.start()
    first.stop()
    start = SimulatedDriver.start
    late: list[threading.Timer] = []

    def answers_late(driver: SimulatedDriver, observer: Observer) -> None:
        late.append(threading.Timer(0.3, start, (driver, observer)))
        late[0].start()

    monkeypatch.setattr(SimulatedDriver, "start", answers_late)
    monkeypatch.setattr("nodeplug_gpu.plugin._START_TIMEOUT", 0.01)
    second = stage.plugin()
    second.start()
    late[0].join()
    assert [one.healthy for one in second.device_list(DeviceList(resource=MEM))] == [True] * 4


def test_a_card_that_is_not_allocatable_is_counted_so(stage: Stage) -> None:
    plugin = stage.plugin()
    plugin.start()

    def offered() -> dict[str, float]:
        return {
            str(sample.labels): sample.value
            for metric in plugin.metrics()
            if metric.name == "gpu_allocatable"
            for sample in metric.samples
        }

    assert set(offered().values()) == {1.0}
    stage.fail(cards={"0": {"lost": True}})
    until(lambda: set(offered().values()) == {0.0})


def test_an_instance_that_was_prepared_lists_its_cards_as_soon_as_it_has_started(stage: Stage) -> None:
    plugin = stage.plugin(poll="1h")
    plugin.prepare()
    plugin.start()
    assert [one.healthy for one in plugin.device_list(DeviceList(resource=MEM))] == [True] * 4


def test_an_instance_that_prepares_follows_nothing_and_advertises_nothing(stage: Stage) -> None:
    plugin = stage.plugin([MEMORY | {"access": {"cdi": "field", "cdi_folder": str(stage.folder / "cdi")}}])
    plugin.prepare()
    assert not (stage.folder / "cdi").exists()
    assert stage.refreshed == []
    plugin.stop()
    assert own_threads() == set()


def test_a_card_that_two_entries_choose_is_found_while_the_former_instance_serves(stage: Stage) -> None:
    plugin = stage.plugin(CHOSEN_TWICE)
    with pytest.raises(InvalidRequest, match=f"{WHOLE} and {MEM} would both advertise GPU-0000"):
        plugin.prepare()


@pytest.mark.node
def test_the_first_list_of_cards_with_mps_waits_for_their_daemons_so_that_it_is_healthy(
    stage: Stage, tmp_path: Path
) -> None:
    programs = tmp_path / "driver" / "usr" / "bin"
    programs.mkdir(parents=True)
    asked = tmp_path / "asked"
    control = f"""#!/bin/sh
[ "$1" = -f ] || {{ echo 100.0; exit 0; }}
until [ -e {asked} ]; do sleep 0.05; done
touch "$CUDA_MPS_PIPE_DIRECTORY/control"
exec sleep 600
"""
    for name, text in (("nvidia-cuda-mps-control", control), ("nvidia-smi", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    plugin = stage.plugin([MEMORY | {"mps": {"stop_after": "100ms"}}], driver_root=str(tmp_path / "driver"))
    try:
        plugin.start()
        with pytest.raises(NotReady, match="its MPS control daemon is starting"):
            plugin.device_list(DeviceList(resource=MEM))
        asked.touch()
        until(lambda: _listed(plugin))
        assert [(one.healthy, one.reason) for one in plugin.device_list(DeviceList(resource=MEM))] == [(True, "")] * 4
    finally:
        plugin.stop()
        for file in tmp_path.glob("mps/*/daemon.json"):
            os.kill(json.loads(file.read_text())["pid"], 9)
        folders.unmount_below(tmp_path)


def test_a_card_whose_cdi_spec_cannot_be_written_is_not_allocatable_and_readyz_says_why(
    stage: Stage, tmp_path: Path, with_nodes: str
) -> None:
    folder = tmp_path / "cdi"
    folder.touch()
    plugin = stage.plugin([MEMORY | {"access": {"cdi": "field", "cdi_folder": str(folder)}}], dev_root=with_nodes)
    plugin.start()
    assert {one.reason.partition(":")[0] for one in devices(plugin)} == {
        "the CDI spec of nodeplug.io/gpu cannot be written"
    }
    with pytest.raises(NotReady, match=r"the CDI spec of nodeplug.io/gpu cannot be written"):
        plugin.health()
    folder.unlink()
    until(lambda: all(one.healthy for one in devices(plugin)))
    plugin.health()


def test_the_first_list_of_cards_with_a_cdi_spec_is_healthy(stage: Stage, tmp_path: Path, with_nodes: str) -> None:
    plugin = stage.plugin(
        [MEMORY | {"access": {"cdi": "field", "cdi_folder": str(tmp_path / "cdi")}}], poll="1h", dev_root=with_nodes
    )
    plugin.start()
    assert [one.healthy for one in plugin.device_list(DeviceList(resource=MEM))] == [True] * 4


def test_a_container_gets_no_cdi_name_that_the_runtime_does_not_know(
    stage: Stage, tmp_path: Path, with_nodes: str
) -> None:
    folder = tmp_path / "cdi"
    plugin = stage.plugin(
        [MEMORY | {"access": {"cdi": "field", "cdi_folder": str(folder)}}], poll="1h", dev_root=with_nodes
    )
    plugin.start()
    (device, *_) = devices(plugin)
    asked = DeviceAllocate(resource=MEM, ids=(device.id,), devices=(device,))

    def refused() -> bool:
        """A look that was asked for before may write the spec again before the container is asked for."""
        for file in folder.glob("*.json"):
            file.unlink(missing_ok=True)
        try:
            plugin.device_allocate(asked)
        except NotReady as error:
            return "nodeplug writes it again within seconds" in error.message
        return False

    until(refused)
    until(lambda: list(folder.glob("*.json")))
    assert plugin.device_allocate(asked).cdi == ("nodeplug.io/gpu=GPU-0000",)
