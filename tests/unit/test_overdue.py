"""Which new calls are refused when earlier ones hang."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import nodeplug as n
from nodeplug.hosting.call import Call
from nodeplug.hosting.hook_call import HookCall
from nodeplug.hosting.overdue import (
    ASIDES,
    LIMIT,
    RELEASES,
    TOTAL,
    CallSubject,
    is_stuck,
    missed,
    obstacle,
    obstacles,
    subject_of,
)
from nodeplug.hosting.slot import Slot
from nodeplug.hosting.strays import Strays


@dataclass(frozen=True)
class Hanging:
    hook: str
    subject: CallSubject
    age: float = 10.0
    seconds: float = 10.0


def network(name: str, **config: Any) -> CallSubject:
    return CallSubject(f"network {name}", config)


def hanging(count: int, hook: str = "cni_add", subject: CallSubject = network("a")) -> list[Hanging]:  # noqa: B008 - frozen
    return [Hanging(hook, subject)] * count


def test_one_less_than_the_limit_refuses_nothing() -> None:
    assert obstacle(hanging(LIMIT - 1), "cni_add", network("a")) == ""


def test_the_limit_refuses_calls_for_the_same_subject_alone() -> None:
    known = hanging(LIMIT)
    assert obstacle(known, "cni_add", network("a")).startswith("is quarantined for network a: ")
    assert obstacle(known, "cni_check", network("a")) != ""
    assert obstacle(known, "cni_add", network("b")) == ""


def test_a_network_that_takes_the_name_of_another_is_another() -> None:
    known = hanging(LIMIT, subject=network("a", bridge="x"))
    assert obstacle(known, "cni_add", network("a", bridge="y")) == ""
    of_a_call: dict[str, Any] = {"runtimeConfig": {"mac": "m"}, "Args": {}, "prevResult": {}}
    assert obstacle(known, "cni_add", network("a", bridge="x", **of_a_call)) != ""


@pytest.mark.parametrize("hook", sorted(RELEASES))
def test_what_ends_something_is_refused_only_when_others_of_its_kind_hang(hook: str) -> None:
    assert obstacle(hanging(TOTAL), hook, network("a")) == ""
    assert obstacle(hanging(LIMIT, hook), hook, network("a")) != ""
    assert obstacle(hanging(LIMIT, hook), "cni_add", network("a")) == ""


def test_the_threads_of_a_plugin_are_bounded() -> None:
    known = [Hanging("volume_publish", CallSubject(f"volume {number}")) for number in range(TOTAL)]
    assert obstacle(known[1:], "volume_publish", CallSubject("volume x")) == ""
    said = obstacle(known, "volume_publish", CallSubject("volume x"))
    assert said == f"is quarantined: {TOTAL} of its calls have not come back"


@pytest.mark.parametrize("hook", sorted(ASIDES))
def test_hooks_that_no_caller_needs_do_not_count(hook: str) -> None:
    assert obstacle(hanging(TOTAL, hook), "cni_add", network("a")) == ""


def test_each_reason_is_told_once() -> None:
    assert len(obstacles([*hanging(LIMIT), *hanging(LIMIT, subject=network("b"))])) == 2


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (None, ""),
        (n.DeviceList(resource=n.ResourceName("example.com/a")), "resource example.com/a"),
        (n.ExtenderBind(claim="e", namespace="n", pod="p", uid="u", node="x"), "extender e"),
        (n.VolumeUnpublish(driver="a/b", volume_id=n.VolumeId("v"), target_path="/t"), "volume v of a/b"),
        (n.VolumeDetach(driver="a/b", volume_name="w", node="x"), "volume w of a/b"),
        (n.VolumeSnapshotDelete(driver="a/b", snapshot_id="s"), "volume s of a/b"),
        (n.VolumeList(driver="a/b"), "driver a/b"),
    ],
)
def test_a_request_says_what_it_works_on(request_: Any, name: str) -> None:
    assert subject_of(request_).name == name


def test_a_plugin_of_which_nothing_returns_is_stuck() -> None:
    assert is_stuck(hanging(4), 4, since_others=11.0)
    assert not is_stuck(hanging(3), 4, since_others=11.0)
    assert is_stuck([Hanging("cni_add", network("a"), age=40.0)], 4, since_others=41.0)


def test_a_plugin_whose_calls_for_other_networks_return_is_not_stuck() -> None:
    assert not is_stuck(hanging(4), 4, since_others=9.0)
    assert not is_stuck([Hanging("cni_add", network("a"), age=400.0)], 4, since_others=9.0)
    assert is_stuck([*hanging(3), Hanging("cni_add", network("b"), age=8.0)], 4, since_others=9.0)


def test_a_plugin_whose_health_hangs_or_that_has_no_more_threads_is_stuck_whatever_returns() -> None:
    assert is_stuck(hanging(4, "health", CallSubject()), 4, since_others=0.0)
    assert is_stuck(hanging(TOTAL), 4, since_others=0.0)


def test_hooks_that_no_caller_needs_make_no_plugin_stuck() -> None:
    assert not is_stuck(hanging(TOTAL, next(iter(ASIDES))), 1, since_others=1e9)


def test_what_a_request_waited_before_its_hook_began_is_no_lateness_of_the_hook() -> None:
    async def scenario() -> None:
        slot, call = Slot("probe"), Call("mount", "volume:a/b")
        call.started -= 600
        slot.overdue.add(HookCall("probe", "volume_stage", call, 5, lambda: None, lambda: None, Strays()))
        assert missed(slot.overdue) == 1

    asyncio.run(scenario())
