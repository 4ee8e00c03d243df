"""How one MIG instance of a card falls ill and comes back, and what it leaves to the others."""

from typing import Any

import pytest

from nodeplug_gpu.cards import Card, GpuEvent, MigInstance, Snapshot, Telemetry, Uuid
from nodeplug_gpu.config import Health
from nodeplug_gpu.health import Condition, HealthMonitor

CARD = Uuid("GPU-a")
CONTAINED = 94


class Bed:
    """A monitor, its clock, and one card in MIG mode with instances by their ids."""

    def __init__(self, **config: Any) -> None:
        self.monitor = HealthMonitor(Health(**config))
        self.now, self.mig = 1000.0, True
        self.instances = {(7, 0): "MIG-7", (8, 0): "MIG-8", (9, 0): "MIG-9-0", (9, 1): "MIG-9-1"}
        self.look()

    def look(self, *events: GpuEvent, after: float = 0.0, ecc: int = 0, taken: float | None = None) -> None:
        self.now += after
        made = tuple(MigInstance(Uuid(uuid), "1g", 1, gi, ci) for (gi, ci), uuid in self.instances.items())
        card = Card(CARD, 0, 0, "X", 1 << 34, mig=self.mig, instances=made if self.mig else ())
        found = {CARD: Telemetry(uncorrected_ecc=ecc)}
        at = self.now if taken is None else taken
        self.monitor.observe(Snapshot("running", "", "1", (card,), found, (), at), events, self.now)

    def xid(self, code: int, gi: int | None = 7, ci: int | None = 0, *, times: int = 1, **more: Any) -> None:
        for _ in range(times):
            self.look(self.event(code, gi, ci), **more)

    def event(self, code: int, gi: int | None = 7, ci: int | None = 0) -> GpuEvent:
        return GpuEvent("xid", CARD, code, gi, ci, time=self.now)

    def of(self, uuid: str) -> Condition:
        return self.monitor.condition(Uuid(uuid))

    @property
    def ill(self) -> set[str]:
        return {one for one in (CARD, *self.instances.values()) if not self.of(one).allocatable}


def test_contained_faults_of_an_instance_take_out_that_instance_alone() -> None:
    bed = Bed(strikes=3)
    bed.xid(CONTAINED, times=2)
    assert (bed.of("MIG-7").state, bed.of(CARD).state, bed.ill) == ("suspect", "healthy", set())
    bed.xid(CONTAINED)
    assert (bed.of(CARD).state, bed.ill) == ("healthy", {"MIG-7"})
    assert bed.of("MIG-7").reason == "XID 94 (contained ECC error) (3 faults in 300 s)"


def test_an_instance_comes_back_after_a_probation_as_a_card_does() -> None:
    bed = Bed(strikes=1, probation=60)
    bed.xid(CONTAINED)
    bed.look(after=5)
    assert bed.of("MIG-7").state == "recovering"
    bed.xid(CONTAINED, after=5)
    bed.look(after=5)
    bed.look(after=60)
    assert bed.of("MIG-7").state == "recovering"
    bed.look(after=60)
    assert bed.of("MIG-7").state == "healthy"


def test_an_event_of_a_gpu_instance_is_about_all_its_compute_instances() -> None:
    bed = Bed(strikes=1)
    bed.xid(CONTAINED, 9, None)
    assert bed.ill == {"MIG-9-0", "MIG-9-1"}


def test_an_event_of_a_compute_instance_is_about_that_one() -> None:
    bed = Bed(strikes=1)
    bed.xid(CONTAINED, 9, 1)
    assert bed.ill == {"MIG-9-1"}


@pytest.mark.parametrize("code", [46, 48, 62, 79, 95, 119, 140, 158])
def test_what_needs_a_reset_of_the_card_is_about_the_card_wherever_it_came_from(code: int) -> None:
    bed = Bed()
    bed.xid(code)
    assert bed.ill == {CARD}


@pytest.mark.parametrize("code", [74, 92, 171, 12345])
def test_a_fault_that_nothing_says_is_contained_is_about_the_card(code: int) -> None:
    bed = Bed(strikes=1)
    bed.xid(code)
    assert bed.ill == {CARD}


def test_a_contained_fault_without_an_instance_is_about_the_card() -> None:
    bed = Bed(strikes=1)
    bed.xid(CONTAINED, None, None)
    assert bed.ill == {CARD}


def test_a_contained_fault_that_the_administrator_calls_fatal_is_about_the_card() -> None:
    bed = Bed(fatal_xids=(CONTAINED,))
    bed.xid(CONTAINED)
    assert bed.ill == {CARD}


def test_ids_of_a_card_without_instances_mean_the_card() -> None:
    bed = Bed(strikes=1)
    bed.mig = False
    bed.look(after=5)
    bed.xid(CONTAINED, 0, 0)
    assert not bed.of(CARD).allocatable


def test_an_instance_that_was_made_anew_under_the_same_ids_begins_healthy() -> None:
    bed = Bed(strikes=1)
    bed.xid(CONTAINED)
    bed.instances[7, 0] = "MIG-new"
    bed.look(after=5)
    assert bed.ill == set()


def test_a_fault_of_an_instance_that_was_destroyed_meanwhile_is_not_that_of_its_successor() -> None:
    bed = Bed(strikes=1)
    fault = bed.event(CONTAINED)
    bed.instances[7, 0] = "MIG-new"
    bed.look(fault, after=5)
    assert bed.ill == set()


def test_a_fault_of_an_instance_that_no_poll_has_shown_yet_waits_for_one() -> None:
    bed = Bed(strikes=1)
    bed.look(bed.event(CONTAINED, 5), taken=bed.now - 1)
    assert bed.ill == set()
    bed.instances[5, 0] = "MIG-5"
    bed.look(after=1)
    assert bed.ill == {"MIG-5"}


def test_a_fault_of_an_instance_that_is_no_longer_there_hurts_nobody() -> None:
    bed = Bed(strikes=1)
    bed.look(bed.event(CONTAINED, 5), taken=bed.now - 1)
    bed.look(after=1)
    bed.instances[5, 0] = "MIG-5"
    bed.look(after=1)
    assert bed.ill == set()


def test_an_ill_instance_that_cannot_be_read_for_a_moment_is_not_healed_by_that() -> None:
    bed = Bed(strikes=1, probation=60)
    bed.xid(CONTAINED)
    hidden = bed.instances.pop((7, 0))
    bed.look(after=5)
    bed.instances[7, 0] = hidden
    bed.look(after=5)
    assert bed.ill == {"MIG-7"}


@pytest.mark.parametrize("before", [True, False])
def test_the_errors_of_memory_that_a_contained_fault_is_about_do_not_count_once_more(before: bool) -> None:
    bed = Bed(strikes=1)
    if before:
        bed.look(GpuEvent("ecc", CARD, time=bed.now), ecc=1)
        bed.xid(CONTAINED, ecc=1)
    else:
        bed.xid(CONTAINED)
        bed.look(GpuEvent("ecc", CARD, time=bed.now), ecc=1)
    bed.look(after=60, ecc=1)
    assert bed.of(CARD).state == "healthy"


def test_errors_of_memory_that_no_instance_has_had_count_against_the_card() -> None:
    bed = Bed(strikes=1)
    bed.look(ecc=1)
    bed.look(after=60, ecc=1)
    assert bed.ill == {CARD}
