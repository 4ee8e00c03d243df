"""One card that hangs, and a driver process that not even SIGKILL ends; on the mock alone.

A call counts as hung after about a second: on a busy machine everything stands still for a few tenths of one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug_gpu.driver.process import NvmlDriver
from nodeplug_gpu.driver.running import RunningProcess

HANG = 0xBEEF
CALLS_OF_A_CARD = [
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetComputeRunningProcesses_v3",
]

Watch = Callable[..., Any]


@pytest.mark.parametrize(
    "symbol", [CALLS_OF_A_CARD[0], *(pytest.param(one, marks=pytest.mark.whole) for one in CALLS_OF_A_CARD[1:])]
)
def test_a_card_that_hangs_while_the_driver_runs_is_the_only_one_with_an_error(
    nvml: Any, watch: Watch, symbol: str
) -> None:
    watched = watch(nvml, hang_after=0.8, retry_after=0.2)
    hurt, well = watched.running().cards
    nvml.fail(symbol, HANG, nvml.state.card[0])
    snapshot = watched.until(lambda snapshot: snapshot.telemetry[hurt.uuid].error)
    assert snapshot.cards == (hurt, well)
    assert snapshot.telemetry[hurt.uuid].error_code == 10
    assert f"the driver hangs: {symbol} of " in snapshot.telemetry[hurt.uuid].error
    assert not snapshot.telemetry[well.uuid].error
    asked_again = watched.until(lambda now: now.generation > snapshot.generation + 1)
    assert asked_again.telemetry[hurt.uuid].error
    nvml.fail(symbol, 0, nvml.state.card[0])
    watched.until(lambda snapshot: not snapshot.telemetry[hurt.uuid].error)
    assert {snapshot.state for snapshot in watched.snapshots} == {"running"}


def test_a_card_that_hangs_from_the_start_is_left_out_and_the_others_are_there(nvml: Any, watch: Watch) -> None:
    nvml.fail("nvmlDeviceGetName", HANG, nvml.state.card[0])
    watched = watch(nvml, hang_after=1.0)
    assert "nvmlDeviceGetName" in watched.until(lambda snapshot: snapshot.state != "starting").reason
    snapshot = watched.running()
    assert [card.index for card in snapshot.cards] == [1]
    assert snapshot.unreadable[0].startswith("card 0: the driver hangs: nvmlDeviceGetName of GPU-")


def test_a_card_that_hangs_when_its_events_are_asked_for_is_left_alone_too(nvml: Any, watch: Watch) -> None:
    nvml.fail("nvmlDeviceRegisterEvents", HANG, nvml.state.card[1])
    watched = watch(nvml, hang_after=1.0)
    cards = watched.running().cards
    snapshot = watched.until(lambda snapshot: snapshot.telemetry[cards[1].uuid].error)
    assert "nvmlDeviceRegisterEvents" in snapshot.telemetry[cards[1].uuid].error
    assert not snapshot.telemetry[cards[0].uuid].error


@pytest.mark.parametrize("symbol", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
def test_waiting_for_events_that_hangs_costs_the_events_alone(nvml: Any, watch: Watch, symbol: str) -> None:
    nvml.hang(symbol)
    watched = watch(nvml, hang_after=1.0, retry_after=0.5)
    before = watched.running()
    snapshot = watched.until(lambda snapshot: snapshot.reason)
    wanted = f"no events, cards are polled every 0.05 s: the driver hangs: {symbol} has not returned"
    assert snapshot.reason.startswith(wanted)
    nvml.state.card[0].used = 5 << 30
    watched.until(lambda snapshot: snapshot.telemetry[before.cards[0].uuid].used == 5 << 30)
    nvml.hang(symbol, hangs=False)
    watched.until(lambda snapshot: not snapshot.reason and snapshot.generation > before.generation + 1)
    nvml.event(0, 0x8, 79)
    watched.event(lambda event: event.code == 79)
    assert {snapshot.state for snapshot in watched.snapshots} == {"running"}


def test_cards_that_all_hang_are_a_failure_of_the_driver(nvml: Any, watch: Watch) -> None:
    watched = watch(nvml, hang_after=1.0)
    before = watched.running()
    nvml.hang("nvmlDeviceGetMemoryInfo_v2")
    snapshot = watched.until(lambda snapshot: snapshot.state == "failed")
    assert snapshot.cards == before.cards
    assert "the driver hangs: nvmlDeviceGetMemoryInfo_v2" in snapshot.reason


def test_new_cards_on_the_bus_end_the_leaving_alone(nvml: Any, watch: Watch) -> None:
    nvml.bind("0000:3a:00.0", "0000:3b:00.0")
    watched = watch(nvml, hang_after=1.0, retry_after=3600.0)
    cards = watched.running().cards
    nvml.fail("nvmlDeviceGetMemoryInfo_v2", HANG, nvml.state.card[0])
    watched.until(lambda snapshot: snapshot.telemetry[cards[0].uuid].error)
    nvml.fail("nvmlDeviceGetMemoryInfo_v2", 0, nvml.state.card[0])
    nvml.bind("0000:3b:00.0")
    watched.until(lambda snapshot: not snapshot.telemetry[cards[0].uuid].error)


def test_a_driver_that_hangs_is_stopped_without_waiting_for_it(nvml: Any, watch: Watch) -> None:
    watched = watch(nvml, hang_after=3600.0)
    watched.running()
    nvml.hang("nvmlDeviceGetCount_v2")
    calls = nvml.calls("nvmlDeviceGetCount_v2")
    watched.until(lambda _: nvml.calls("nvmlDeviceGetCount_v2") > calls)
    pid = watched.driver.pid
    watched.driver.stop()
    assert not Path(f"/proc/{pid}").exists()


def test_processes_that_do_not_end_are_few(nvml: Any, follow: Callable[[Any], Any], log: Any) -> None:
    driver = NvmlDriver(nvml.root, 0.05, 2.0, log, sysfs=nvml.sysfs)
    stuck = [RunningProcess({}, 2.0, log) for _ in range(3)]
    driver._unkillable = list(stuck)
    watched = follow(driver)
    try:
        snapshot = watched.until(lambda snapshot: snapshot.state == "failed")
        assert snapshot.reason == "3 driver processes hang in the kernel; the node needs a reboot"
        assert (driver.pid, driver.unkillable) == (0, 3)
        stuck[0].kill(5.0)
        watched.running()
        assert driver.unkillable == 2
    finally:
        for process in stuck:
            process.kill(5.0)
