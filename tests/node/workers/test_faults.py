"""A plugin that goes wrong in its own process: its callers are told, it comes back, and no neighbour notices."""

import asyncio
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.node.workers.conftest import children
from tests.suites import divided

import nodeplug as n
from nodeplug.contract.hookspecs import ANSWERS, RESERVED

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[[Any], None]
CALLED = [hook for hook in ANSWERS if hook not in {*RESERVED, "claims", "prepare", "start", "stop"}]
KINDS = frozenset({"health", "device_list", "cni_add", "volume_stage", "extender_filter"})
"""A hook of each kind of claim, and one of none."""
pytestmark = pytest.mark.unprivileged


def mark(guests: "Guests") -> str:
    return str(guests.folder / "it has gone wrong")


@pytest.mark.parametrize("hook", divided(CALLED, KINDS))
def test_a_process_that_is_killed_inside_a_hook_is_started_again(hook: str, play: Play) -> None:
    if hook.startswith("cni_") and os.geteuid() != 0:
        pytest.skip("a call of CNI enters a namespace: needs root")

    async def story(guests: "Guests") -> None:
        await guests.apply(
            guest=guests.section(at=hook, how="killed", once=mark(guests)), other=guests.section(name="b")
        )
        first, other = guests.pid(), guests.pid("other")
        with pytest.raises(
            n.TryAgain, match=f"the process of plugin 'guest' ended during {hook}: it was killed by SIGKILL"
        ):
            await guests.call(hook)
        await guests.until(lambda: guests.state() == "running" and guests.pid() != first)
        await guests.call(hook)
        assert guests.pid("other") == other

    play(story)


def test_a_request_that_cannot_cross_is_refused_and_the_next_one_is_answered(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section())
        asked = await guests.call("device_list")
        with pytest.raises(n.InvalidRequest, match="the request of device_list cannot cross to another process"):
            await guests.call("device_list", n.DeviceList(resource=n.ResourceName("example.com/\ud800")))
        assert await guests.call("device_list") == asked

    play(story)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("exits", "it exited with status 7"),
        ("segfault", "it was killed by SIGSEGV"),
        ("forks", "it exited with status 7"),
        ("junk", "it broke the wire: its message is no JSON"),
        ("huge", "it broke the wire: it announces a message of 8589934590 bytes"),
        ("stale", "it broke the wire: it speaks of a call that has ended"),
        ("twice", "it broke the wire: [0-9]+ bytes follow its message"),
        ("hangs up", "it exited with status 0"),
        ("speaks", "it broke the wire: nobody asked for its 'surprise'"),
        ("babbles", "it broke the wire: its message is no JSON"),
        ("hoards", "it broke the wire: more than 64 descriptors come with its message"),
    ],
)
def test_a_process_that_ends_or_breaks_the_wire_is_started_again(how: str, why: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="device_list", how=how, once=mark(guests)))
        first = guests.pid()
        with suppress(n.TryAgain):  # some answer first
            await guests.call("device_list")
        restarts = guests.lifecycle.registry.slots["guest"].restarts
        await guests.until(lambda: restarts.count == 1 and guests.state() == "running" and guests.pid() != first)
        await guests.call("device_list")
        assert re.match(why, restarts.why), restarts.why

    play(story)


@pytest.mark.parametrize("how", ["hangs", "burns", "stopped", "half", "closes descriptors"])
def test_a_process_that_does_not_come_back_is_ended_and_started_again(how: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        faulty = guests.section(at="device_list", how=how, once=mark(guests), deadline=0.3, restart_after_overdue=2)
        await guests.apply(guest=faulty)
        first = guests.pid()
        with pytest.raises(n.TryAgain):
            await guests.call("device_list")
        await guests.until(lambda: guests.state() == "running" and guests.pid() != first)
        await guests.call("device_list")

    play(story)


@pytest.mark.parametrize("at", ["claims", "construct", "start"])
@pytest.mark.parametrize("how", ["killed", "exits"])
def test_a_process_that_ends_before_its_plugin_runs_is_tried_again(at: str, how: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at=at, how=how, once=mark(guests)))
        assert guests.state() == "failed"
        assert "the process of plugin 'guest' ended during" in guests.lifecycle.registry.slots["guest"].reason
        await guests.until(lambda: guests.state() == "running")
        await guests.call("device_list")

    play(story)


@pytest.mark.parametrize("how", ["hangs", "stopped"])
def test_a_process_whose_plugin_does_not_load_in_time_is_killed_and_another_one_tried(how: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="construct", how=how, once=mark(guests), load=2.0))
        worker = guests.lifecycle.registry.slots["guest"].instance.worker
        first = worker.pid if worker is not None else 0
        await guests.until(lambda: "did not end within 2 s" in guests.lifecycle.registry.slots["guest"].reason)
        await guests.until(lambda: guests.state() == "running", seconds=30)
        assert not group(first)

    play(story)


def test_a_plugin_that_ends_again_and_again_is_started_ever_later(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="device_list", how="exits"))
        slot = guests.lifecycle.registry.slots["guest"]
        for count in range(1, 4):
            with pytest.raises(n.TryAgain):
                await guests.call("device_list")
            await guests.until(lambda: slot.restarts.count == count)  # noqa: B023 - it is asked in this very turn
            slot.retry_at = 0.0
            await guests.until(lambda: guests.state() == "running")
        assert re.findall(r"; restart \d is (.*)", caplog.text) == ["now", "in 1 s", "in 2 s"]

    play(story)


def test_the_log_of_a_restart_names_the_process_and_counts(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="device_list", how="exits"))
        slot, pids = guests.lifecycle.registry.slots["guest"], []
        for count in (1, 2):
            pids.append(guests.pid())
            with pytest.raises(n.TryAgain):
                await guests.call("device_list")
            await guests.until(lambda: slot.restarts.count == count and slot.state == "running")  # noqa: B023 - as above
        for line in (
            f"process {pids[0]} of plugin guest ended: it exited with status 7; restart 1 is now",
            f"process {pids[1]} of plugin guest ended: it exited with status 7; restart 2 is in 1 s",
        ):
            assert line in caplog.text

    play(story)


@pytest.mark.parametrize("turns", [2, pytest.param(4, marks=pytest.mark.whole)])
def test_a_process_that_ends_while_its_section_changes_does_not_bring_the_former_section_back(
    turns: int, play: Play
) -> None:
    async def story(guests: "Guests") -> None:
        for turn in range(turns):  # the restart of the former begins at different times of the change
            await guests.apply(guest=guests.section(name="former"))
            first = guests.pid()
            changing = asyncio.create_task(guests.apply(guest=guests.section(name="later")))
            await asyncio.sleep(0.1 * turn)
            with suppress(ProcessLookupError):  # the change was faster
                os.kill(first, signal.SIGKILL)
            await changing
            await asyncio.sleep(1)  # longer than a restart takes: nothing may happen any more
            await guests.until(lambda: guests.state() == "running")
            assert guests.lifecycle.registry.slots["guest"].instance.section.config["name"] == "later"

    play(story)


@pytest.mark.parametrize("uses", ["worker_guest:Guest", "worker_guest:Unprepared"])
def test_a_new_section_whose_start_fails_leaves_no_process_of_its_own(uses: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        before = children()
        await guests.apply(guest=guests.section(uses))
        await guests.apply(guest=guests.section(uses, at="start", how="raises"))
        await guests.until(lambda: guests.lifecycle.registry.slots["guest"].rejected)
        await guests.until(lambda: guests.state() == "running" and children() - before == {guests.pid()})
        await guests.call("device_list")

    play(story)


def test_calls_wait_while_a_process_is_started_again(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="device_allocate", how="killed", once=mark(guests)))
        with pytest.raises(n.TryAgain):
            await guests.call("device_allocate")
        assert (await guests.call("device_allocate")).env.keys() == {"PID"}

    play(story)


def test_a_process_that_changes_its_folder_or_closes_descriptors_harms_nobody_else(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        odd = guests.section(at="health", how="changes folder")
        await guests.apply(guest=odd, other=guests.section(name="b"))
        await guests.call("health")
        assert (await guests.call("inspect"))["folder"] == "/proc"
        assert (await guests.call("inspect", name="other"))["folder"] == "/"

    play(story)


@pytest.mark.parametrize("how", ["attaches descriptors", "lingers"])
def test_a_process_that_sends_descriptors_that_nobody_asked_for_is_killed_and_they_are_closed(
    how: str, play: Play
) -> None:
    async def story(guests: "Guests") -> None:
        guest = guests.section(at="device_list", how=how, once=mark(guests))
        await guests.apply(guest=guest, other=guests.section(name="b"))
        first, before = guests.pid(), open_files()
        with suppress(n.TryAgain):  # the answer may come before the end
            await guests.call("device_list")
        await guests.call("device_list", name="other")
        await guests.until(lambda: guests.state() == "running" and guests.pid() != first)
        assert "attached descriptors that nobody has asked for" in guests.lifecycle.registry.slots["guest"].restarts.why
        await guests.until(lambda: open_files() < before + 60)

    play(story)


def test_a_long_request_to_a_process_that_reads_nothing_keeps_nobody_else_waiting(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(restart_after_overdue=100), other=guests.section(name="b"))
        await guests.call("volume_stage")  # its channel waits for the next call
        os.kill(guests.pid(), signal.SIGSTOP)
        options = {"text": "x" * (4 << 20)}
        driver, volume = "example/disk", n.VolumeId("v")
        asked = n.VolumeStage(driver=driver, volume_id=volume, staging_path="/s", options=options)
        stage = asyncio.create_task(guests.call("volume_stage", asked))
        await asyncio.sleep(0)
        await guests.call("device_list", name="other")
        assert not stage.done()
        os.kill(guests.pid(), signal.SIGCONT)
        await stage

    play(story)


def test_what_a_hook_raises_is_what_its_caller_gets(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(
            guest=guests.section(at="device_list", how="refuses"),
            other=guests.section(name="b", at="volume_detach", how="raises"),
        )
        with pytest.raises(n.Exhausted, match="nothing is left; 0 of 3"):
            await guests.call("device_list")
        with pytest.raises(n.PluginError, match="volume_detach of plugin 'other' raised ValueError: a stray"):
            await guests.call("volume_detach", name="other")
        (record,) = [one for one in caplog.records if "raised ValueError" in one.getMessage()]
        assert "in volume_detach" in record.trace  # type: ignore[attr-defined]

    play(story)


def test_a_child_that_a_plugin_left_in_its_group_ends_with_its_process(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="device_list", how="forks", once=mark(guests)))
        first = guests.pid()
        with pytest.raises(n.TryAgain):
            await guests.call("device_list")
        await guests.until(lambda: not group(first))

    play(story)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def group(leader: int) -> list[int]:
    found = []
    for pid in [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()]:
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == leader:
                found.append(pid)
    return found
