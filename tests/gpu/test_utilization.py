"""How busy cards are, and by whom: from NVML's answers to the figures of containers."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from nodeplug_gpu.cards import Snapshot, Utilization

GIB = 1 << 30
Watch = Callable[..., Any]


@pytest.fixture
def busy(nvml: Any) -> Any:
    """A driver whose first card has two processes."""
    card = nvml.state.card[0]
    nvml.add_process(card, 101, GIB)
    nvml.add_process(card, 102, GIB, kinds=2)
    return nvml


def shares(snapshot: Snapshot) -> dict[int, Utilization | None]:
    return {one.pid: one.utilization for one in snapshot.processes}


def test_a_process_has_what_nvml_has_sampled_of_it(busy: Any, watch: Watch) -> None:
    busy.sample(busy.state.card[0], 0, 40, 10, 3, 2)
    watched = watch(busy, poll=3600.0)
    assert shares(watched.running()) == {101: Utilization(40, 10, 3, 2), 102: Utilization(0, 0, 0, 0)}


def test_a_process_that_has_become_idle_uses_nothing(busy: Any, watch: Watch) -> None:
    busy.sample(busy.state.card[0], 0, 40, 10, 3, 2)
    watched = watch(busy)
    watched.until(lambda snapshot: shares(snapshot).get(101) == Utilization(0, 0, 0, 0))
    assert any(shares(one).get(101) == Utilization(40, 10, 3, 2) for one in watched.snapshots)


@pytest.mark.parametrize("rubbish", [{"sm": 4_000_000_000}, {"decoder": 101}, {"ahead": 3600 * 10**6}])
def test_an_unset_entry_of_the_answer_is_no_sample(busy: Any, watch: Watch, rubbish: dict[str, int]) -> None:
    ahead = rubbish.pop("ahead", 0)
    values = {"sm": 50, "memory": 5, "encoder": 0, "decoder": 0} | rubbish
    busy.sample(busy.state.card[0], 0, *values.values(), microseconds=time.time_ns() // 1000 + ahead)
    watched = watch(busy)
    assert shares(watched.running())[101] == Utilization(0, 0, 0, 0)
    busy.sample(busy.state.card[0], 0, 60, 6, 0, 0)
    watched.until(lambda _: any(shares(one)[101] == Utilization(60, 6, 0, 0) for one in watched.snapshots))


def test_a_driver_without_the_call_tells_no_utilization(busy: Any, watch: Watch) -> None:
    busy.install(hidden=["nvmlDeviceGetProcessUtilization", "nvmlDeviceGetUtilizationRates"])
    snapshot = watch(busy).running()
    assert shares(snapshot) == {101: None, 102: None}
    assert all(one.utilization is None and not one.error for one in snapshot.telemetry.values())


def test_a_card_without_processes_is_not_asked_whose_they_are(nvml: Any, watch: Watch) -> None:
    watched = watch(nvml)
    watched.running()
    before = watched.driver.snapshot.taken
    watched.until(lambda snapshot: snapshot.taken > before)
    assert nvml.calls("nvmlDeviceGetProcessUtilization") == 0


def test_a_card_in_mig_mode_is_not_asked_at_all(busy: Any, watch: Watch) -> None:
    busy.add_instance(busy.state.card[0])
    busy.state.card[0].process[0].gpu_instance, busy.state.card[0].process[0].compute_instance = 7, 0
    snapshot = watch(busy, poll=3600.0).running()
    assert busy.calls("nvmlDeviceGetProcessUtilization") == 0
    assert busy.calls("nvmlDeviceGetUtilizationRates") == 1  # the other card
    assert snapshot.telemetry[snapshot.cards[0].uuid].utilization is None
    assert set(shares(snapshot).values()) == {None}


def test_a_card_tells_its_own_utilization(busy: Any, watch: Watch) -> None:
    busy.state.card[0].shares.sm, busy.state.card[0].shares.memory = 70, 30
    snapshot = watch(busy).running()
    assert snapshot.telemetry[snapshot.cards[0].uuid].utilization == Utilization(70, 30)


def test_a_lost_card_is_lost_also_if_its_utilization_says_so_first(busy: Any, watch: Watch) -> None:
    watched = watch(busy)
    watched.running()
    busy.fail("nvmlDeviceGetProcessUtilization", 15, busy.state.card[0])
    lost = watched.until(lambda snapshot: snapshot.telemetry[snapshot.cards[0].uuid].error_code == 15)
    assert len(lost.cards) == 2


def test_processes_together_use_no_more_than_the_card() -> None:
    parts = [Utilization(80, 10, 0, 0), None, Utilization(70, 20, 0, 1)]
    assert Utilization.together(parts) == Utilization(100, 30, 0, 1)
    assert Utilization.together([None]) is None
