"""Simulated cards, and the file that hurts them."""

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nodeplug_gpu.cards import GpuProcess
from nodeplug_gpu.driver.simulated import SimulatedCard, SimulatedDriver, simulate

GIB = 1 << 30
PAIR = SimulatedCard(model="Simulated A100", memory="40GiB", count=2, numa_node=1)


@pytest.fixture
def faults(tmp_path: Path) -> Callable[..., None]:
    """Write the file of failures, in one step as a careful writer does."""

    def write(*, text: str = "", **keys: Any) -> None:
        (tmp_path / "new").write_text(text or json.dumps(keys))
        (tmp_path / "new").rename(tmp_path / "faults.json")

    return write


@pytest.fixture
def simulated(tmp_path: Path, follow: Callable[[Any], Any]) -> Callable[..., Any]:
    log = logging.LoggerAdapter(logging.getLogger("nodeplug.gpu"), {})

    def begin(*cards: SimulatedCard, node: str = "n1", poll: float = 0.02) -> Any:
        return follow(SimulatedDriver(cards or (PAIR,), poll, tmp_path / "faults.json", log, node=node))

    return begin


def test_the_cards_of_the_configuration_are_there(simulated: Callable[..., Any]) -> None:
    snapshot = simulated(PAIR, SimulatedCard(memory="16Gi", compute_capability=(7, 0))).running()
    assert [(card.index, card.minor, card.model, card.memory) for card in snapshot.cards] == [
        (0, 0, "Simulated A100", 40 * GIB),
        (1, 1, "Simulated A100", 40 * GIB),
        (2, 2, "Simulated GPU", 16 * GIB),
    ]
    assert [card.numa_node for card in snapshot.cards] == [1, 1, None]
    assert snapshot.cards[2].compute_capability == (7, 0)
    assert all(telemetry.error_code == 0 and telemetry.used == 0 for telemetry in snapshot.telemetry.values())


def test_uuids_are_stable_per_node_and_differ_between_nodes() -> None:
    assert simulate([PAIR], "n1") == simulate([PAIR], "n1")
    assert {card.uuid for card in simulate([PAIR], "n1")}.isdisjoint(card.uuid for card in simulate([PAIR], "n2"))


def test_a_uuid_may_be_chosen() -> None:
    assert simulate([SimulatedCard(uuid="GPU-1234")])[0].uuid == "GPU-1234"


def test_mig_profiles_divide_a_card() -> None:
    card = simulate([SimulatedCard(memory="80GiB", mig=("1g.10gb", "2g.20gb"))])[0]
    assert card.mig
    assert [(one.profile, one.memory, one.gpu_instance) for one in card.instances] == [
        ("1g.10gb", 10 * GIB, 1),
        ("2g.20gb", 20 * GIB, 2),
    ]
    assert len({one.uuid for one in card.instances}) == 2


@pytest.mark.parametrize(
    ("written", "size"),
    [("80GiB", 80 * GIB), ("80Gi", 80 * GIB), ("81559MiB", 81559 << 20), ("1T", 10**12), ("1.5GiB", 3 * GIB // 2)],
)
def test_memory_is_written_as_people_write_it(written: str, size: int) -> None:
    assert SimulatedCard.model_validate({"memory": written}).memory == size


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": "much"},
        {"memory": "1000"},
        {"memory": "-1GiB"},
        {"count": 0},
        {"count": 65},
        {"count": 2, "uuid": "GPU-1234"},
        {"mig": ["big"]},
        {"uuid": "card"},
        {"numa_node": -1},
        {"colour": "green"},
    ],
)
def test_a_card_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SimulatedCard.model_validate(wrong)


def test_a_lost_card_stays_with_its_error_until_the_file_says_otherwise(
    simulated: Callable[..., Any], faults: Callable[..., None]
) -> None:
    driver = simulated()
    lost, well = driver.running().cards
    faults(cards={"0": {"lost": True}})
    snapshot = driver.until(lambda snapshot: snapshot.telemetry[lost.uuid].error_code == 15)
    assert snapshot.cards == (lost, well)
    assert snapshot.telemetry[well.uuid].error_code == 0
    faults()
    driver.until(lambda snapshot: snapshot.telemetry[lost.uuid].error_code == 0)


def test_a_card_is_named_by_uuid_too(simulated: Callable[..., Any], faults: Callable[..., None]) -> None:
    driver = simulated()
    uuid = driver.running().cards[1].uuid
    faults(cards={uuid: {"error": "it smokes"}})
    snapshot = driver.until(lambda snapshot: snapshot.telemetry[uuid].error)
    assert (snapshot.telemetry[uuid].error, snapshot.telemetry[uuid].error_code) == ("it smokes", 999)


def test_a_card_that_is_gone_is_not_shown_and_comes_back(
    simulated: Callable[..., Any], faults: Callable[..., None], tmp_path: Path
) -> None:
    driver = simulated()
    cards = driver.running().cards
    faults(cards={"0": {"gone": True}})
    driver.until(lambda snapshot: snapshot.cards == cards[1:])
    (tmp_path / "faults.json").unlink()
    driver.until(lambda snapshot: snapshot.cards == cards)


def test_an_xid_is_one_event_for_each_writing(simulated: Callable[..., Any], faults: Callable[..., None]) -> None:
    driver = simulated()
    uuid = driver.running().cards[0].uuid
    faults(cards={"0": {"xid": [79, 48]}})
    driver.until(lambda _: len(driver.events) == 2)
    faults(cards={"0": {"xid": 13}})
    driver.until(lambda _: len(driver.events) == 3)
    assert [(event.kind, event.card, event.code) for event in driver.events] == [
        ("xid", uuid, 79),
        ("xid", uuid, 48),
        ("xid", uuid, 13),
    ]


def test_an_xid_of_an_instance_names_it(simulated: Callable[..., Any], faults: Callable[..., None]) -> None:
    faults(cards={"0": {"instance_xids": {"1": [94, 31], "7": 94}}})
    watched = simulated(SimulatedCard(memory="80GiB", mig=("1g.10gb", "1g.10gb")))
    snapshot = watched.running()
    watched.event(lambda event: event.code == 31)
    second = snapshot.cards[0].instances[1]
    assert [(one.code, one.gpu_instance, one.compute_instance) for one in watched.events] == [
        (94, second.gpu_instance, second.compute_instance),
        (31, second.gpu_instance, second.compute_instance),
    ]


def test_ecc_and_recovery_action_are_vitals_and_events(
    simulated: Callable[..., Any], faults: Callable[..., None]
) -> None:
    driver = simulated()
    uuid = driver.running().cards[0].uuid
    faults(cards={"0": {"ecc": 3, "recovery_action": 1}})
    snapshot = driver.until(lambda snapshot: snapshot.telemetry[uuid].uncorrected_ecc == 3)
    assert snapshot.telemetry[uuid].recovery_action == 1
    driver.until(lambda _: len(driver.events) == 2)
    assert {(event.kind, event.code) for event in driver.events} == {("ecc", 3), ("recovery", 1)}


def test_processes_use_the_card(simulated: Callable[..., Any], faults: Callable[..., None]) -> None:
    driver = simulated()
    uuid = driver.running().cards[0].uuid
    faults(cards={"0": {"processes": [{"pid": 7, "used": "2GiB"}, {"pid": 8}]}})
    snapshot = driver.until(lambda snapshot: snapshot.processes)
    assert snapshot.processes == (GpuProcess(7, uuid, 2 * GIB), GpuProcess(8, uuid, None))
    assert snapshot.telemetry[uuid].used == 2 * GIB


def test_mig_can_be_switched_while_the_driver_runs(simulated: Callable[..., Any], faults: Callable[..., None]) -> None:
    driver = simulated()
    driver.running()
    faults(cards={"1": {"mig": ["1g.5gb"]}})
    snapshot = driver.until(lambda snapshot: snapshot.cards[1].mig)
    assert snapshot.cards[1].instances[0].profile == "1g.5gb"
    driver.event(lambda event: event.kind == "mig")
    faults(cards={"1": {"mig": []}})
    driver.until(lambda snapshot: not snapshot.cards[1].mig)


@pytest.mark.parametrize("state", ["absent", "failed"])
def test_the_whole_driver_can_go_away(simulated: Callable[..., Any], faults: Callable[..., None], state: str) -> None:
    driver = simulated()
    cards = driver.running().cards
    faults(driver=state, reason="an upgrade")
    snapshot = driver.until(lambda snapshot: snapshot.state == state)
    assert (snapshot.cards, snapshot.reason, snapshot.telemetry) == (cards, "an upgrade", {})
    faults()
    driver.running()


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"cards": {"0": {"lots": true}}}', '{"cards": {"0": {"ecc": -1}}}', "\x00"]
)
def test_a_file_that_makes_no_sense_changes_nothing_and_is_logged_once(
    simulated: Callable[..., Any], faults: Callable[..., None], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    driver = simulated()
    uuid = driver.running().cards[0].uuid
    faults(cards={"0": {"lost": True}})
    driver.until(lambda snapshot: snapshot.telemetry[uuid].error)
    faults(text=text)
    driver.until(lambda _: "is ignored" in caplog.text)
    seen = driver.driver.snapshot.taken
    driver.until(lambda snapshot: snapshot.taken > seen)
    assert driver.driver.snapshot.telemetry[uuid].error
    assert caplog.text.count("is ignored") == 1


def test_a_fault_that_is_there_before_the_start_counts(
    simulated: Callable[..., Any], faults: Callable[..., None]
) -> None:
    faults(cards={"0": {"lost": True}})
    driver = simulated()
    snapshot = driver.running()
    assert snapshot.telemetry[snapshot.cards[0].uuid].error_code == 15


def test_a_poll_that_is_requested_does_not_wait_for_the_interval(
    simulated: Callable[..., Any], faults: Callable[..., None]
) -> None:
    driver = simulated(poll=3600.0)
    driver.running()
    faults(cards={"0": {"gone": True}})
    driver.driver.poll()
    driver.until(lambda snapshot: len(snapshot.cards) == 1)


def test_stop_may_come_twice_and_without_a_start(simulated: Callable[..., Any]) -> None:
    driver = simulated()
    driver.running()
    threads = threading.active_count()
    driver.driver.stop()
    driver.driver.stop()
    assert threading.active_count() < threads


def test_cards_of_one_description_have_its_links_between_them(simulated: Callable[..., Any]) -> None:
    pair = SimulatedCard(count=2, nvlinks=4)
    snapshot = simulated(pair, pair).running()
    numbers = {card.uuid: card.index for card in snapshot.cards}
    links = {(numbers[one.one], numbers[one.other]): one.links for one in snapshot.pairs}
    assert {two for two, count in links.items() if count == 4} == {(0, 1), (2, 3)}
    assert len(links) == 6
