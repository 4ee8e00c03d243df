"""Limits of a card's memory by cgroup, through the driver process: the mock keeps them, the cgroups are real."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing.waiting import until
from nodeplug_gpu.cards import Uuid

GIB = 1 << 30
PATIENCE = 30.0
SET = "nvmlDeviceSetMemoryLimits_v1"
HANG = 0xBEEF
FIRST, SECOND = (Uuid(f"GPU-00000000-0000-0000-0000-{index:012x}") for index in (0, 1))


@pytest.fixture
def limits(nvml: Any) -> Any:
    """A driver that has limits by cgroup."""
    nvml.state.version = b"615.71.09"
    return nvml


def test_a_limit_is_set_on_the_cgroup_and_read_back(limits: Any, watch: Callable[..., Any], cgroups: Any) -> None:
    watched, cgroup = watch(limits, cgroups=cgroups.root), cgroups.make()
    assert watched.running().limits == {FIRST: "", SECOND: ""}
    assert limits.limits() == {}  # asking whether it can has limited nobody
    answer = watched.driver.limit(SECOND, cgroup, 3 * GIB, PATIENCE)
    assert (answer.error, answer.hard) == ("", 3 * GIB)
    assert limits.limits() == {str(cgroup): (1, 0, 3 * GIB)}


def test_a_limit_that_the_driver_makes_larger_is_not_confirmed(
    limits: Any, watch: Callable[..., Any], cgroups: Any
) -> None:
    watched, cgroup = watch(limits, cgroups=cgroups.root), cgroups.make()
    watched.running()
    limits.state.rounding = 4096
    answer = watched.driver.limit(FIRST, cgroup, 3 * GIB, PATIENCE)
    assert answer.error == f"{3 * GIB} bytes were set as the limit of {cgroup}, and the driver tells {4 * GIB} bytes"


def test_a_limit_of_a_cgroup_or_card_that_is_not_there_is_refused_by_name(
    limits: Any, watch: Callable[..., Any], cgroups: Any
) -> None:
    watched = watch(limits, cgroups=cgroups.root)
    watched.running()
    gone = watched.driver.limit(FIRST, cgroups.root / "not-there", GIB, PATIENCE)
    assert gone.error == f"{SET}: an argument is invalid (NVML error 2)"
    limits.fail(SET, 6)  # what dmem answers where the runtime has not enabled it
    without = watched.driver.limit(FIRST, cgroups.make(), GIB, PATIENCE)
    assert "has no files of the cgroup controller dmem" in without.error
    unknown = watched.driver.limit(Uuid("GPU-other"), cgroups.make(), GIB, PATIENCE)
    assert unknown.error == "GPU-other is not among the cards that the driver shows"


def test_why_a_card_cannot_have_limits_is_told_by_name(nvml: Any, watch: Callable[..., Any], cgroups: Any) -> None:
    nvml.add_instance(nvml.state.card[1])
    nvml.state.no_root = 1
    watched = watch(nvml, cgroups=cgroups.root)
    whys = watched.running().limits
    assert whys[FIRST] == "the driver lets nobody but root set limits by cgroup"
    assert whys[SECOND].startswith("it is in MIG mode")


@pytest.mark.parametrize("code", [10, 23, 999])  # timeout, insufficient resources, unknown
def test_a_failure_that_passes_is_asked_about_again(
    limits: Any, watch: Callable[..., Any], cgroups: Any, code: int
) -> None:
    limits.fail(SET, code)
    watched = watch(limits, cgroups=cgroups.root)
    assert f"NVML error {code}" in watched.running().limits[FIRST]
    limits.fail(SET, 0)
    watched.until(lambda found: found.limits == {FIRST: "", SECOND: ""})


def test_what_does_not_pass_is_asked_once(nvml: Any, watch: Callable[..., Any], cgroups: Any) -> None:
    watched = watch(nvml, cgroups=cgroups.root)  # no card of it supports limits
    watched.running()
    polls = nvml.calls("nvmlDeviceGetUtilizationRates")
    watched.until(lambda _: nvml.calls("nvmlDeviceGetUtilizationRates") > polls + 4)
    assert nvml.calls(SET) == 2  # once for each card


def test_a_driver_without_the_function_is_told_apart_from_one_that_refuses(
    nvml: Any, watch: Callable[..., Any], cgroups: Any
) -> None:
    refusing = watch(nvml, cgroups=cgroups.root)  # 570.1 of the mock has it, and no card that supports it
    assert refusing.running().limits[FIRST] == "the driver does not support limits by cgroup on this card and node"
    nvml.install(hidden=[SET])
    refusing.until(lambda found: found.limits.get(FIRST, "").startswith(f"the driver does not have {SET}; R615"))


def test_without_cgroup_v2_no_card_can_have_limits(limits: Any, watch: Callable[..., Any], tmp_path: Path) -> None:
    watched = watch(limits, cgroups=tmp_path)
    assert watched.running().limits[FIRST] == f"cgroup v2 is not mounted at {tmp_path}"
    assert limits.calls(SET) == 0


def test_nobody_is_asked_about_limits_where_none_are_wanted(limits: Any, watch: Callable[..., Any]) -> None:
    assert watch(limits).running().limits == {}
    assert limits.calls(SET) == 0


def test_a_limit_call_that_hangs_is_answered_and_costs_that_card_alone(
    limits: Any, watch: Callable[..., Any], cgroups: Any
) -> None:
    watched = watch(limits, cgroups=cgroups.root, hang_after=1.0)
    watched.running()
    limits.hang(SET)
    answer = watched.driver.limit(FIRST, cgroups.make(), GIB, PATIENCE)
    assert f"the driver hangs: {SET} of {FIRST} has not returned" in answer.error
    limits.hang(SET, hangs=False)
    until(lambda: watched.driver.snapshot.telemetry.get(SECOND) is not None)
    assert watched.driver.limit(SECOND, cgroups.make(), GIB, PATIENCE).error == ""


def test_a_limit_of_another_card_is_set_by_the_process_after_the_one_that_hangs(
    limits: Any, watch: Callable[..., Any], cgroups: Any
) -> None:
    watched, cgroup = watch(limits, cgroups=cgroups.root, hang_after=1.0), cgroups.make()
    watched.running()
    limits.fail(SET, HANG, limits.state.card[0])
    asked = limits.calls(SET)
    with ThreadPoolExecutor(2) as callers:
        hurt = callers.submit(watched.driver.limit, FIRST, cgroups.make(), GIB, PATIENCE)
        until(lambda: limits.calls(SET) > asked)
        well = callers.submit(watched.driver.limit, SECOND, cgroup, GIB, PATIENCE)
        assert f"the driver hangs: {SET} of {FIRST} has not returned" in hurt.result().error
        assert well.result().error == ""
    assert limits.limits() == {str(cgroup): (1, 0, GIB)}
