"""What a running plugin makes of changes of the driver and of cards, and of its own faults."""

import logging
import threading
import time
from collections.abc import Sequence

import pytest
from tests.gpu.core.gpu_node import MEM
from tests.gpu.core.gpu_plugins import WHOLE, GpuPlugins, devices

from nodeplug import (
    DeviceId,
    DeviceList,
    DeviceReleased,
    Holding,
    NotFound,
    NotReady,
    ResourceName,
)
from nodeplug.testing.waiting import until
from nodeplug_gpu.inventory import Inventory


def test_a_driver_that_appears_later_brings_the_resource(plugins: GpuPlugins) -> None:
    plugins.fail(driver="absent", reason="no libnvidia-ml.so.1")
    plugin = plugins.make()
    plugin.start()
    plugin.health()
    with pytest.raises(NotFound, match="no libnvidia-ml"):
        plugin.device_list(DeviceList(resource=MEM))
    plugins.fail()
    until(lambda: len(devices(plugin)) == 4)
    assert MEM in plugins.refreshed


def test_a_failed_driver_is_told_by_health_and_by_each_unit(plugins: GpuPlugins) -> None:
    plugin = plugins.make()
    plugin.start()
    plugins.fail(driver="failed", reason="it hangs in nvmlInit")
    until(lambda: not any(one.healthy for one in devices(plugin)))
    assert {one.reason for one in devices(plugin)} == {"the driver is failed: it hangs in nvmlInit"}
    with pytest.raises(NotReady, match="it hangs in nvmlInit"):
        plugin.health()


def test_every_change_of_a_card_asks_the_daemon_for_a_new_list(plugins: GpuPlugins) -> None:
    plugin = plugins.make()
    plugin.start()
    plugins.refreshed.clear()
    plugins.fail(cards={"0": {"xid": 79}})
    until(lambda: MEM in plugins.refreshed)


def test_updates_without_a_change_ask_for_nothing(plugins: GpuPlugins) -> None:
    plugin = plugins.make()
    plugin.start()
    plugins.refreshed.clear()
    for _ in range(5):
        plugin.device_released(
            DeviceReleased(resource=MEM, ids=(DeviceId("0-0"),), namespace="default", pod="pod", container="main")
        )
        time.sleep(0.02)
    assert plugins.refreshed == []


def test_an_update_that_fails_leaves_the_last_one(plugins: GpuPlugins, caplog: pytest.LogCaptureFixture) -> None:
    plugin = plugins.make()
    plugin.start()

    def broken(resource: ResourceName) -> Sequence[Holding]:
        raise RuntimeError("a bug")

    object.__setattr__(plugin._host, "_holders", broken)
    until(lambda: "the inventory could not be updated" in caplog.text)
    assert len(devices(plugin)) == 4


def test_a_reconciler_that_fails_holds_up_no_other(plugins: GpuPlugins, caplog: pytest.LogCaptureFixture) -> None:
    followed = threading.Event()

    class Broken:
        def reconcile(self, inventory: Inventory) -> None:
            raise RuntimeError("a bug")

        def stop(self) -> None:
            pass

    class Sound(Broken):
        def reconcile(self, inventory: Inventory) -> None:
            followed.set()

    plugin = plugins.make()
    plugin._reconcilers = (Broken(), Sound())
    plugin.start()
    assert followed.wait(20)
    assert "Broken could not reconcile" in caplog.text
    assert len(devices(plugin)) == 4


def test_the_log_says_why_a_card_is_not_allocatable(plugins: GpuPlugins, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first = plugins.make()
    first.start()
    first.stop()
    second = plugins.make([{"sharing": "exclusive", "resource": WHOLE}])
    second.start()
    assert f"GPU-0000 is not allocatable as {WHOLE}: it was advertised as {MEM} (memory)" in caplog.text


def test_a_card_that_is_not_allocatable_is_counted_so(plugins: GpuPlugins) -> None:
    plugin = plugins.make()
    plugin.start()

    def offered() -> dict[str, float]:
        return {
            str(sample.labels): sample.value
            for metric in plugin.metrics()
            if metric.name == "gpu_allocatable"
            for sample in metric.samples
        }

    assert set(offered().values()) == {1.0}
    plugins.fail(cards={"0": {"lost": True}})
    until(lambda: set(offered().values()) == {0.0})
