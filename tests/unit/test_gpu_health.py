"""How a card falls ill and comes back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug_gpu.cards import Card, GpuEvent, Snapshot, Telemetry, Uuid
from nodeplug_gpu.config import APPLICATION_XIDS, Health
from nodeplug_gpu.health import MAX_PROBATION, Condition, HealthMonitor

A, B = Uuid("GPU-a"), Uuid("GPU-b")


class Bed:
    """A monitor and its clock."""

    def __init__(self, **config: Any) -> None:
        self.monitor = HealthMonitor(Health(**config))
        self.now = 1000.0
        self.look()

    def look(self, after: float = 0.0, *, cards: tuple[Uuid, ...] = (A, B), **telemetry: Any) -> Condition:
        self.now += after
        shown = tuple(Card(uuid, index, index, "X", 1 << 34) for index, uuid in enumerate(cards))
        self.monitor.observe(
            Snapshot("running", "", "1", shown, {A: Telemetry(**telemetry)}, (), self.now), (), self.now
        )
        return self.monitor.condition(A)

    def event(self, kind: Any, code: int = 0, after: float = 0.0, card: Uuid | None = A) -> Condition:
        self.now += after
        snapshot = Snapshot("running", "", "1", tuple(Card(one, 0, 0, "X", 1) for one in (A, B)), {}, (), self.now)
        self.monitor.observe(snapshot, [GpuEvent(kind, card, code, time=self.now)], self.now)
        return self.monitor.condition(A)

    def driver(self, state: Any, reason: str) -> Condition:
        self.monitor.observe(Snapshot(state, reason, taken=self.now), (), self.now)
        return self.monitor.condition(A)


def test_a_card_that_is_seen_and_answers_is_healthy() -> None:
    assert Bed().look().state == "healthy"


@pytest.mark.parametrize("code", APPLICATION_XIDS)
def test_an_application_error_never_touches_a_card(code: int) -> None:
    bed = Bed(strikes=1)
    assert [bed.event("xid", code).state for _ in range(10)] == ["healthy"] * 10


@pytest.mark.parametrize("code", [11, 25, 37, 69, 80])
def test_work_that_makes_no_sense_cannot_take_a_card_from_its_neighbours(code: int) -> None:
    bed = Bed(strikes=1)
    assert [bed.event("xid", code).state for _ in range(10)] == ["healthy"] * 10


@pytest.mark.parametrize("code", [44, 63, 121, 141, 154, 157, 163])
def test_what_nvidia_says_to_ignore_never_touches_a_card(code: int) -> None:
    bed = Bed(strikes=1)
    assert [bed.event("xid", code).state for _ in range(10)] == ["healthy"] * 10


@pytest.mark.parametrize("code", [46, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158])
def test_what_nvidia_says_to_reset_or_restart_takes_the_card_out(code: int) -> None:
    assert not Bed().event("xid", code).allocatable


def test_an_ecc_error_that_hurt_one_application_alone_leaves_the_card_in_service() -> None:
    condition = Bed().event("xid", 94)
    assert (condition.state, condition.allocatable) == ("suspect", True)


def test_a_fatal_xid_takes_the_card_out_and_says_why() -> None:
    bed = Bed()
    condition = bed.event("xid", 79)
    assert not condition.allocatable
    assert "XID 79 (GPU has fallen off the bus)" in condition.reason


def test_a_fatal_xid_of_another_card_touches_only_that() -> None:
    bed = Bed()
    assert bed.event("xid", 79, card=B).allocatable
    assert not bed.monitor.condition(B).allocatable


def test_a_card_comes_back_after_its_probation() -> None:
    bed = Bed(probation=60)
    bed.event("xid", 48)
    assert bed.look(after=5).state == "recovering"
    assert bed.look(after=50).state == "recovering"
    assert bed.look(after=10).state == "healthy"


def test_a_recovering_card_is_not_allocatable() -> None:
    bed = Bed()
    bed.event("xid", 48)
    condition = bed.look(after=5)
    assert not condition.allocatable
    assert "probation" in condition.reason


def test_a_card_whose_driver_asks_for_a_reset_stays_out_until_it_no_longer_does() -> None:
    bed = Bed(probation=60)
    assert "reset" in bed.look(after=5, recovery_action=1).reason
    assert bed.look(after=500, recovery_action=1).state == "unhealthy"
    assert bed.look(after=5, recovery_action=0).state == "recovering"
    assert bed.look(after=60, recovery_action=0).state == "healthy"


@pytest.mark.parametrize("action", [0, 3, 5, None])
def test_an_action_that_is_not_about_the_card_itself_is_no_evidence(action: int | None) -> None:
    assert Bed().look(recovery_action=action).state == "healthy"


def test_a_minor_fault_makes_a_card_suspect_and_leaves_it_allocatable() -> None:
    condition = Bed().event("xid", 92)
    assert (condition.state, condition.allocatable) == ("suspect", True)


def test_minor_faults_within_the_window_take_the_card_out() -> None:
    bed = Bed(strikes=3, window=300)
    states = [bed.event("xid", 92, after=10).state for _ in range(3)]
    assert states == ["suspect", "suspect", "unhealthy"]


def test_minor_faults_that_are_far_apart_do_not() -> None:
    bed = Bed(strikes=3, window=300)
    assert {bed.event("xid", 92, after=301).state for _ in range(10)} == {"suspect"}


def test_a_suspect_card_is_healthy_again_when_its_faults_have_aged() -> None:
    bed = Bed(window=300)
    bed.event("xid", 92)
    assert bed.look(after=299).state == "suspect"
    assert bed.look(after=2).state == "healthy"


def test_an_unknown_xid_is_a_minor_fault() -> None:
    assert Bed().event("xid", 12345).state == "suspect"


def test_the_administrator_may_ignore_an_xid() -> None:
    assert Bed(ignore_xids=(79,)).event("xid", 79).state == "healthy"


def test_the_administrator_may_make_an_xid_fatal() -> None:
    assert Bed(fatal_xids=(31,)).event("xid", 31).state == "unhealthy"


def test_a_card_that_vanishes_is_unhealthy_at_once() -> None:
    bed = Bed()
    assert bed.look(cards=(B,)).reason == "it is no longer present"


def test_a_card_that_comes_back_is_on_probation_first() -> None:
    bed = Bed(probation=60)
    bed.look(cards=(B,))
    assert bed.look(after=5).state == "recovering"
    assert bed.look(after=60).state == "healthy"


@pytest.mark.parametrize("code", [15, 16])
def test_a_lost_card_is_out_at_once(code: int) -> None:
    assert Bed().look(error="GPU is lost", error_code=code).state == "unhealthy"


def test_a_probe_that_fails_once_is_a_minor_fault() -> None:
    assert Bed().look(error="Unknown Error", error_code=999).state == "suspect"


def test_new_uncorrected_errors_are_a_minor_fault_and_old_ones_are_none() -> None:
    bed = Bed()
    assert bed.look(uncorrected_ecc=7).state == "healthy"
    assert bed.look(uncorrected_ecc=7).state == "healthy"
    assert bed.look(uncorrected_ecc=8).state == "suspect"


def test_a_count_that_begins_anew_after_a_reload_is_no_fault() -> None:
    bed = Bed()
    bed.look(uncorrected_ecc=7)
    assert bed.look(uncorrected_ecc=0).state == "healthy"


def test_a_driver_that_is_away_takes_all_cards_out_and_gives_them_back_at_once() -> None:
    bed = Bed()
    assert "the driver is failed: it hangs" in bed.driver("failed", "it hangs").reason
    assert bed.look(after=5).state == "healthy"


def test_a_driver_that_is_away_does_not_heal_a_unhealthy_card() -> None:
    bed = Bed()
    bed.event("xid", 79)
    bed.driver("failed", "it hangs")
    assert bed.look(after=5).state == "recovering"


def test_each_relapse_doubles_the_probation() -> None:
    bed = Bed(probation=60)
    bed.event("xid", 48)
    bed.look(after=5)
    bed.event("xid", 48, after=5)
    bed.look(after=5)
    assert bed.look(after=60).state == "recovering"
    assert bed.look(after=60).state == "healthy"


def test_a_card_that_was_well_for_long_begins_with_a_short_probation_again() -> None:
    bed = Bed(probation=60, window=300)
    for _ in range(4):
        bed.event("xid", 48)
        bed.look(after=5)
    bed.look(after=MAX_PROBATION)
    bed.look(after=MAX_PROBATION)
    bed.event("xid", 48)
    bed.look(after=5)
    assert bed.look(after=60).state == "healthy"


def test_health_that_is_off_counts_only_cards_that_are_gone() -> None:
    bed = Bed(enabled=False)
    assert bed.event("xid", 79).state == "healthy"
    assert bed.look(recovery_action=2).state == "healthy"
    assert bed.look(cards=(B,)).state == "unhealthy"


def test_an_event_about_an_unknown_card_changes_nothing() -> None:
    assert Bed().event("xid", 79, card=Uuid("GPU-unknown")).state == "healthy"


def test_an_event_without_a_card_changes_nothing() -> None:
    assert Bed().event("xid", 79, card=None).state == "healthy"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["xid 79", "xid 92", "xid 31", "gone", "reset", "clean", "driver"]), st.floats(0.1, 400.0)
    ),
    max_size=40,
)


@given(STEPS)
def test_every_card_is_healthy_again_after_a_long_time_without_evidence(steps: list[tuple[str, float]]) -> None:
    bed = Bed()
    for step, after in steps:
        bed.now += after
        match step.split():
            case ["xid", code]:
                bed.event("xid", int(code))
            case ["gone"]:
                bed.look(cards=(B,))
            case ["reset"]:
                bed.look(recovery_action=1)
            case ["driver"]:
                bed.driver("failed", "it hangs")
            case _:
                bed.look()
    bed.look(after=1)
    bed.look(after=MAX_PROBATION)
    assert bed.look(after=1).state == "healthy"


@given(STEPS)
def test_a_card_that_is_not_well_always_says_why(steps: list[tuple[str, float]]) -> None:
    bed = Bed()
    for step, after in steps:
        bed.now += after
        condition = bed.event("xid", int(step.split()[1])) if step.startswith("xid") else bed.look(cards=(B,))
        assert bool(condition.reason) == (condition.state != "healthy")
