"""The plugin's start and stop: threads, order, and a start that is repeated. The driver is the simulated one."""

import gc
import threading
from typing import Any

import pytest
from tests.gpu.core.gpu_node import MEM
from tests.gpu.core.gpu_plugins import MEMORY, WHOLE, GpuPlugins, devices
from tests.own_descriptors import open_descriptors

from nodeplug import (
    DeviceId,
    DeviceList,
    Holding,
    InvalidRequest,
    NotReady,
)
from nodeplug.testing.waiting import until
from nodeplug_gpu.driver import Observer
from nodeplug_gpu.driver.simulated import SimulatedDriver

CHOSEN_TWICE: list[dict[str, Any]] = [
    {"sharing": "exclusive", "resource": WHOLE, "cards": {"index": [0]}},
    MEMORY | {"cards": {"model": ["Simulated*"]}},
]


def own_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(("gpu:", "nodeplug-gpu"))}


def test_the_first_list_after_start_is_whole(plugins: GpuPlugins) -> None:
    plugin = plugins.make()
    plugin.start()
    assert [one.healthy for one in plugin.device_list(DeviceList(resource=MEM))] == [True] * 4


def test_nothing_is_left_after_many_starts_and_stops(plugins: GpuPlugins) -> None:
    gc.collect()  # what tests before this one left in cycles may go at any time
    before = len(open_descriptors())
    for _ in range(20):
        plugin = plugins.make()
        plugin.start()
        plugin.stop()
    assert own_threads() == set()
    gc.collect()
    until(lambda: len(open_descriptors()) <= before)  # other threads have some for a moment


def test_stop_without_start_and_a_second_stop_succeed(plugins: GpuPlugins) -> None:
    plugin = plugins.make()
    plugin.stop()
    plugin.start()
    plugin.stop()
    plugin.stop()
    assert own_threads() == set()


def test_a_card_that_two_entries_choose_refuses_the_start_with_both_and_without_waiting(
    plugins: GpuPlugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeplug_gpu.plugin._START_TIMEOUT", 3600.0)
    with pytest.raises(InvalidRequest, match=f"{WHOLE} and {MEM} would both advertise GPU-0000"):
        plugins.make(CHOSEN_TWICE).start()
    assert own_threads() == set()


def test_a_start_that_failed_can_be_repeated_on_the_same_instance(plugins: GpuPlugins) -> None:
    plugin = plugins.make(CHOSEN_TWICE)
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            plugin.start()
    plugins.fail(cards={"0": {"gone": True}})
    plugin.start()
    plugins.fail()
    until(lambda: plugin.inspect()["conflict"])
    with pytest.raises(NotReady, match="would both advertise"):
        plugin.health()


def test_a_repeated_start_advertises_cards_as_the_first_would_have(plugins: GpuPlugins) -> None:
    plugin = plugins.make()
    (plugins.folder / "journal").touch()
    plugin.start()
    plugin.stop()
    plugin.start()
    assert len(devices(plugin)) == 4
    plugins.fail(cards={"0": {"lost": True}})
    until(lambda: not any(one.healthy for one in devices(plugin)))


def test_stop_during_start_ends_it(plugins: GpuPlugins, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = threading.Event()

    def never_looks(driver: SimulatedDriver, observer: Observer) -> None:
        entered.set()

    monkeypatch.setattr(SimulatedDriver, "start", never_looks)
    monkeypatch.setattr("nodeplug_gpu.plugin._START_TIMEOUT", 3600.0)
    plugin = plugins.make(poll="1h")
    starting = threading.Thread(target=plugin.start)
    starting.start()
    entered.wait(20)
    plugin.stop()
    starting.join(20)
    assert not starting.is_alive()
    assert own_threads() == set()


def test_a_snapshot_before_start_has_returned_is_used(plugins: GpuPlugins, monkeypatch: pytest.MonkeyPatch) -> None:
    start = SimulatedDriver.start

    def looks_at_once(driver: SimulatedDriver, observer: Observer) -> None:
        start(driver, observer)
        until(lambda: driver.snapshot.state == "running")
        observer(driver.snapshot, ())

    monkeypatch.setattr(SimulatedDriver, "start", looks_at_once)
    plugin = plugins.make()
    plugin.start()
    assert len(devices(plugin)) == 4


@pytest.mark.parametrize("told", [True, False], ids=["kubelet tells", "kubelet does not tell"])
def test_a_restart_while_a_card_is_lost_goes_on_listing_it(told: bool, plugins: GpuPlugins) -> None:
    first = plugins.make()
    first.start()
    ids = [one.id for one in devices(first)]
    plugins.held = (
        [Holding(resource=MEM, ids=(DeviceId(ids[0]),), namespace="default", pod="pod", container="main")]
        if told
        else None
    )
    first.stop()
    plugins.fail(cards={"0": {"gone": True}})
    second = plugins.make()
    second.start()
    assert [(one.id, one.healthy) for one in devices(second)] == [(name, False) for name in ids]


def test_a_slow_driver_is_waited_for_where_cards_were_advertised(
    plugins: GpuPlugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plugins.make()
    first.start()
    first.stop()
    start = SimulatedDriver.start
    late: list[threading.Timer] = []

    def answers_late(driver: SimulatedDriver, observer: Observer) -> None:
        late.append(threading.Timer(0.3, start, (driver, observer)))
        late[0].start()

    monkeypatch.setattr(SimulatedDriver, "start", answers_late)
    monkeypatch.setattr("nodeplug_gpu.plugin._START_TIMEOUT", 0.01)
    second = plugins.make()
    second.start()
    late[0].join()
    assert [one.healthy for one in second.device_list(DeviceList(resource=MEM))] == [True] * 4


def test_an_instance_that_was_prepared_lists_its_cards_as_soon_as_it_has_started(plugins: GpuPlugins) -> None:
    plugin = plugins.make(poll="1h")
    plugin.prepare()
    plugin.start()
    assert [one.healthy for one in plugin.device_list(DeviceList(resource=MEM))] == [True] * 4


def test_an_instance_that_prepares_follows_nothing_and_advertises_nothing(plugins: GpuPlugins) -> None:
    plugin = plugins.make([MEMORY | {"access": {"cdi": "field", "cdi_folder": str(plugins.folder / "cdi")}}])
    plugin.prepare()
    assert not (plugins.folder / "cdi").exists()
    assert plugins.refreshed == []
    plugin.stop()
    assert own_threads() == set()


def test_a_card_that_two_entries_choose_is_found_while_the_former_instance_serves(plugins: GpuPlugins) -> None:
    plugin = plugins.make(CHOSEN_TWICE)
    with pytest.raises(InvalidRequest, match=f"{WHOLE} and {MEM} would both advertise GPU-0000"):
        plugin.prepare()
