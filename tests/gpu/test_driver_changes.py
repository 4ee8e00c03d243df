"""What changes while the driver runs: cards, events, MIG, processes, health; on the mock."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug import ResourceName
from nodeplug.testing import host
from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.cards import GpuProcess, Utilization
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.driver.process import NvmlDriver
from nodeplug_gpu.tracker import InventoryTracker

Watch = Callable[..., Any]
GIB = 1 << 30
SHORT = 0.05


@pytest.fixture
def listening(nvml: Any, watch: Watch) -> Any:
    """A driver that has asked for the events of both cards."""
    watched = watch(nvml)
    watched.running()
    watched.until(lambda _: nvml.calls("nvmlDeviceRegisterEvents") == 2)
    return watched


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (0x2, "ecc"),
        (0x8, "xid"),
        (0x100, "mig"),
        (0x800, "retirement"),
        (0x2000, "ecc"),
        (0x4000, "unavailable"),
        (0x8000, "recovery"),
    ],
)
def test_an_event_reaches_the_observer_with_its_card_and_code(nvml: Any, listening: Any, kind: int, name: str) -> None:
    before = time.monotonic()
    nvml.event(1, kind, 79)
    event = listening.event(lambda event: event.kind == name)
    assert (event.card, event.code) == (listening.driver.snapshot.cards[1].uuid, 79)
    assert (event.gpu_instance, event.compute_instance) == (None, None)
    assert before <= event.time <= time.monotonic()


def test_an_event_of_an_instance_names_it(nvml: Any, listening: Any) -> None:
    nvml.event(0, 0x8, 31, instance=7)
    event = listening.event(lambda event: event.code == 31)
    assert (event.gpu_instance, event.compute_instance) == (7, 0)


def test_faults_of_one_instance_take_out_that_instance_alone(nvml: Any, watch: Watch, tmp_path: Path) -> None:
    for _ in range(7):
        nvml.add_instance(nvml.state.card[0])
    watched = watch(nvml)
    watched.running()
    watched.until(lambda _: nvml.calls("nvmlDeviceRegisterEvents") == 2)
    name = ResourceName("nvidia.com/mig")
    cards = {"uuid": [nvml.state.card[0].uuid.decode()]}
    config = GpuConfig.model_validate({"resources": [{"sharing": "mig", "resource": name, "cards": cards}]})
    tracker = InventoryTracker(config, host(tmp_path), NodePaths(run=tmp_path))
    tracker.update(watched.driver.snapshot)
    for _ in range(3):
        nvml.event(0, 0x8, 94, instance=9)
    watched.until(lambda _: len(watched.events) == 3)
    inventory = tracker.update(watched.driver.snapshot, watched.events)
    listed = {one.id: one.reason for one in inventory.devices(config.resources[0], name)}
    assert len(listed) == 7
    assert [one for one, why in listed.items() if why] == [watched.driver.snapshot.cards[0].instances[2].uuid]


def test_an_event_of_a_card_that_no_poll_has_shown_has_no_card(nvml: Any, listening: Any) -> None:
    nvml.event(64, 0x8, 79)
    assert listening.event(lambda event: event.kind == "xid").card is None


def test_events_come_in_order_and_none_is_lost(nvml: Any, listening: Any) -> None:
    for code in range(1, 41):
        nvml.event(code % 2, 0x8, code)
    listening.event(lambda event: event.code == 40)
    assert [event.code for event in listening.events] == list(range(1, 41))


def test_an_event_brings_a_poll_at_once(nvml: Any, watch: Watch) -> None:
    watched = watch(nvml, poll=3600.0)
    watched.running()
    watched.until(lambda _: nvml.calls("nvmlDeviceRegisterEvents") == 2)
    nvml.state.card[0].recovery.bits = 1
    nvml.event(0, 0x8000, 1)
    watched.until(lambda snapshot: snapshot.telemetry[snapshot.cards[0].uuid].recovery_action == 1)


def test_waiting_for_events_begins_anew_after_an_error(nvml: Any, listening: Any) -> None:
    nvml.fail("nvmlEventSetWait_v2", 15)
    listening.until(lambda _: nvml.calls("nvmlEventSetFree") > 0)
    nvml.fail("nvmlEventSetWait_v2", 0)
    registered = nvml.calls("nvmlDeviceRegisterEvents")
    listening.until(lambda _: nvml.calls("nvmlDeviceRegisterEvents") >= registered + 1)
    waits = nvml.calls("nvmlEventSetWait_v2")
    listening.until(lambda _: nvml.calls("nvmlEventSetWait_v2") > waits + 1)
    nvml.event(0, 0x8, 48)
    assert listening.event(lambda event: event.code == 48).card == listening.driver.snapshot.cards[0].uuid


def test_a_card_that_sends_no_events_is_polled_all_the_same(nvml: Any, watch: Watch) -> None:
    nvml.state.card[0].events = 0
    watched = watch(nvml)
    watched.running()
    watched.until(lambda _: nvml.calls("nvmlEventSetWait_v2") > 0)
    assert nvml.calls("nvmlDeviceRegisterEvents") == 1
    nvml.state.card[0].ecc.bits = 5
    watched.until(lambda snapshot: snapshot.telemetry[snapshot.cards[0].uuid].uncorrected_ecc == 5)


def test_a_card_that_appears_is_seen_and_its_events_are_asked_for(nvml: Any, listening: Any) -> None:
    nvml.add_card()
    listening.until(lambda snapshot: len(snapshot.cards) == 3)
    listening.until(lambda _: nvml.calls("nvmlDeviceRegisterEvents") == 3)
    nvml.event(2, 0x8, 13)
    assert listening.event(lambda event: event.code == 13).card == listening.driver.snapshot.cards[2].uuid


def test_a_card_that_vanishes_is_no_longer_shown(nvml: Any, listening: Any) -> None:
    nvml.state.count = 1
    snapshot = listening.until(lambda snapshot: len(snapshot.cards) == 1)
    assert snapshot.unreadable == ()
    assert snapshot.telemetry.keys() == {snapshot.cards[0].uuid}


def test_no_card_at_all_is_a_running_driver(nvml: Any, watch: Watch) -> None:
    nvml.state.count = 0
    watched = watch(nvml)
    assert watched.running().cards == ()
    nvml.add_card()
    watched.until(lambda snapshot: len(snapshot.cards) == 1)


def test_a_library_that_knows_only_the_cards_of_its_start_is_started_again_for_a_new_card(
    nvml: Any, watch: Watch
) -> None:
    nvml.state.sticky = 1
    nvml.bind("0000:3a:00.0", "0000:3b:00.0")
    watched = watch(nvml)
    watched.running()
    nvml.add_card()
    nvml.bind("0000:3a:00.0", "0000:3b:00.0", "0000:3c:00.0")
    watched.until(lambda snapshot: len(snapshot.cards) == 3)
    assert {snapshot.state for snapshot in watched.snapshots} == {"running"}


def test_a_lost_card_stays_in_sight_with_the_error(nvml: Any, listening: Any) -> None:
    nvml.fail("nvmlDeviceGetHandleByIndex_v2", 15, nvml.state.card[0])
    snapshot = listening.until(lambda snapshot: snapshot.telemetry[snapshot.cards[0].uuid].error_code == 15)
    assert len(snapshot.cards) == 2
    assert "the GPU is lost" in snapshot.telemetry[snapshot.cards[0].uuid].error
    nvml.fail("nvmlDeviceGetHandleByIndex_v2", 0, nvml.state.card[0])
    listening.until(lambda snapshot: not snapshot.telemetry[snapshot.cards[0].uuid].error)


def test_health_numbers_follow_the_card(nvml: Any, listening: Any) -> None:
    card = nvml.state.card[1]
    card.recovery.bits, card.ecc.bits, card.used = 4, 17, 3 * GIB
    uuid = listening.driver.snapshot.cards[1].uuid
    snapshot = listening.until(
        lambda snapshot: snapshot.telemetry[uuid].used == 3 * GIB and snapshot.telemetry[uuid].recovery_action == 4
    )
    assert snapshot.telemetry[uuid].uncorrected_ecc == 17


def test_a_card_that_is_divided_while_it_runs_shows_its_instances(nvml: Any, listening: Any) -> None:
    card = nvml.state.card[0]
    nvml.add_instance(card, gigabytes=10, slices=1)
    nvml.add_instance(card, gigabytes=20, slices=2, compute_slices=1)
    snapshot = listening.until(lambda snapshot: len(snapshot.cards[0].instances) == 2)
    assert snapshot.cards[0].mig
    first, second = snapshot.cards[0].instances
    assert (first.profile, first.memory, first.gpu_instance, first.compute_instance) == ("1g.10gb", 10000 << 20, 7, 0)
    assert second.profile == "1c.2g.20gb"
    assert first.uuid == snapshot.cards[0].uuid.replace("GPU-", "MIG-") + "-0"
    card.mig = card.parts = 0
    assert listening.until(lambda snapshot: not snapshot.cards[0].mig).cards[0].instances == ()


def test_the_name_of_an_instance_gives_its_profile(nvml: Any, watch: Watch) -> None:
    nvml.add_instance(nvml.state.card[0]).name = b"NVIDIA H100 80GB HBM3 MIG 1g.10gb+me"
    assert watch(nvml).running().cards[0].instances[0].profile == "1g.10gb+me"


def test_instances_may_have_gaps(nvml: Any, watch: Watch) -> None:
    card = nvml.state.card[0]
    for _ in range(3):
        nvml.add_instance(card)
    card.part[1].uuid = b""
    assert [one.gpu_instance for one in watch(nvml).running().cards[0].instances] == [7, 9]


def test_an_instance_that_cannot_be_described_is_left_out_alone(nvml: Any, watch: Watch) -> None:
    card = nvml.state.card[0]
    nvml.add_instance(card)
    nvml.add_instance(card).uuid = b"nonsense"
    snapshot = watch(nvml).running()
    assert len(snapshot.cards[0].instances) == 1
    assert snapshot.unreadable[0].startswith("MIG instance 1 of GPU-")


def test_processes_of_all_kinds_are_listed_once_with_what_they_hold(nvml: Any, watch: Watch) -> None:
    card = nvml.state.card[0]
    nvml.add_process(card, 11, GIB, kinds=1)
    nvml.add_process(card, 12, 2 * GIB, kinds=2)
    nvml.add_process(card, 13, 3 * GIB, kinds=4)
    nvml.add_process(card, 14, 4 * GIB, kinds=7)
    nvml.add_process(card, 15, (1 << 64) - 1)
    snapshot = watch(nvml).running()
    uuid = snapshot.cards[0].uuid
    held = {11: GIB, 12: 2 * GIB, 13: 3 * GIB, 14: 4 * GIB, 15: None}
    idle = Utilization(0, 0, 0, 0)
    assert set(snapshot.processes) == {GpuProcess(pid, uuid, used, None, idle) for pid, used in held.items()}


def test_a_process_on_an_instance_names_it(nvml: Any, watch: Watch) -> None:
    card = nvml.state.card[0]
    nvml.add_instance(card)
    nvml.add_process(card, 11, GIB, instance=7)
    snapshot = watch(nvml).running()
    assert snapshot.processes[0].instance == snapshot.cards[0].instances[0].uuid


def test_processes_that_end_are_gone_with_the_next_poll(nvml: Any, watch: Watch) -> None:
    nvml.add_process(nvml.state.card[0], 11, GIB)
    watched = watch(nvml)
    watched.until(lambda snapshot: snapshot.processes)
    nvml.state.card[0].processes = 0
    watched.until(lambda snapshot: not snapshot.processes)


@pytest.mark.whole
def test_sixty_four_cards_with_instances_and_processes_are_one_poll(nvml: Any, watch: Watch) -> None:
    for _ in range(62):
        nvml.add_card()
    for card in nvml.state.card[:64]:
        for pid in range(16):
            nvml.add_process(card, 100 + pid, GIB)
        for _ in range(7):
            nvml.add_instance(card)
    snapshot = watch(nvml, poll=1.0, hang_after=20.0).running()
    assert len({card.uuid for card in snapshot.cards}) == 64
    assert sum(len(card.instances) for card in snapshot.cards) == 448
    assert len(snapshot.processes) == 1024


def test_a_poll_like_the_one_before_is_not_told(nvml: Any, watch: Watch) -> None:
    watched = watch(nvml)
    first = watched.running().taken
    watched.until(lambda snapshot: snapshot.taken > first)
    looks = nvml.calls("nvmlDeviceGetCount_v2")
    watched.until(lambda _: nvml.calls("nvmlDeviceGetCount_v2") > looks + 3)
    assert len(watched.snapshots) == 1


def test_a_driver_that_fails_again_and_again_is_not_started_in_a_storm(
    nvml: Any, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    pause: Callable[..., None] = NvmlDriver._pause

    def noted(driver: NvmlDriver, selector: Any, seconds: float) -> None:
        asked.append(seconds)
        pause(driver, selector, seconds)

    monkeypatch.setattr(NvmlDriver, "_pause", noted)
    nvml.fail("nvmlInitWithFlags", 0xDEAD)
    watched = watch(nvml, poll=3600.0)
    watched.until(lambda snapshot: snapshot.generation >= 4)
    assert asked[:3] == [0.1, 0.2, 0.4]
    taken = {snapshot.generation: snapshot.taken for snapshot in watched.snapshots}
    assert all(taken[number + 1] - taken[number] >= asked[number - 1] for number in (1, 2, 3))
