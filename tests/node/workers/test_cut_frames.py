"""A process that ends in the middle of what it says or hears, or closes what it speaks on and lives on."""

import asyncio
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.ended import has_ended
from tests.node.workers.cut_frames import CUT

import nodeplug as n

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[[Any], None]
pytestmark = pytest.mark.unprivileged


def mark(guests: "Guests") -> str:
    return str(guests.folder / "it has gone wrong")


async def until_started_again(guests: "Guests", first: int) -> str:
    """Wait until another process serves, and is asked; return why the first one ended."""
    await guests.until(lambda: guests.state() == "running" and guests.pid() != first)
    await guests.call("device_list")
    restarts = guests.lifecycle.registry.slots["guest"].restarts
    assert restarts.count == 1
    return restarts.why


@pytest.mark.parametrize("how", CUT)
def test_a_process_that_is_killed_in_the_middle_of_its_answer_is_one_that_was_killed(how: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="device_list", how=how, once=mark(guests)))
        first = guests.pid()
        with pytest.raises(n.TryAgain, match="ended during device_list: it was killed by SIGKILL; ask again"):
            await guests.call("device_list")
        assert await until_started_again(guests, first) == "it was killed by SIGKILL"

    play(story)


def test_a_process_that_is_killed_while_a_long_request_is_sent_fails_that_call_alone(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(), other=guests.section(name="b"))
        await guests.call("volume_stage")
        first = guests.pid()
        os.kill(first, signal.SIGSTOP)
        volume = {"driver": "example/disk", "volume_id": n.VolumeId("v"), "staging_path": "/s"}
        asked = n.VolumeStage(**volume, options={"text": "x" * (4 << 20)})  # type: ignore[arg-type]
        stage = asyncio.create_task(guests.call("volume_stage", asked))
        await guests.until(lambda: is_half_sent(guests))
        os.kill(first, signal.SIGKILL)
        with pytest.raises(n.TryAgain, match="ended during volume_stage: it was killed by SIGKILL; ask again"):
            await stage
        await until_started_again(guests, first)
        await guests.call("volume_stage", asked)
        assert guests.lifecycle.registry.slots["other"].restarts.count == 0

    play(story)


def is_half_sent(guests: "Guests") -> bool:
    """Whether the channel of a call is full, so that the rest of its request waits in the daemon."""
    worker = guests.lifecycle.registry.slots["guest"].instance.worker
    assert worker is not None
    look = select.poll()
    for channel in list(worker._channels):
        look.register(channel.fileno(), select.POLLOUT)
    return bool(worker._channels) and not look.poll(0)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("closes its socket", "it closed its socket and lived on"),
        ("closes its call", "it closed the channel of a call and lived on"),
    ],
)
def test_a_process_that_closes_what_it_speaks_on_and_lives_on_is_killed(how: str, why: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="device_list", how=how, once=mark(guests)))
        first = guests.pid()
        told = pytest.raises(n.TryAgain, match=f"{why}; ask again")
        with told if how == "closes its call" else suppress(n.TryAgain):  # the other call may be answered first
            await guests.call("device_list")
        assert await until_started_again(guests, first) == why
        assert has_ended(first)

    play(story)


def test_a_process_that_answers_with_a_wrong_type_breaks_the_wire(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="device_list", how="lies", once=mark(guests)))
        first = guests.pid()
        wrong = "it broke the wire: a value of it is wrong: 0.id"
        with pytest.raises(n.TryAgain, match=f"ended during device_list: {wrong}"):
            await guests.call("device_list")
        assert (await until_started_again(guests, first)).startswith(wrong)

    play(story)


def test_the_end_of_a_process_is_noticed_though_a_child_of_it_holds_its_sockets(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="device_list", how="leaves a session", once=mark(guests)))
        first = guests.pid()
        try:
            with pytest.raises(n.TryAgain, match="ended during device_list: it exited with status 7"):
                await guests.call("device_list")
            assert await until_started_again(guests, first) == "it exited with status 7"
            assert alone(child(guests))
        finally:
            os.kill(child(guests), signal.SIGKILL)

    play(story)


def child(guests: "Guests") -> int:
    return int((guests.folder / "state" / "child").read_text(encoding="ascii"))


def alone(pid: int) -> bool:
    """Whether a process lives, in a session of its own, and holds sockets."""
    sockets = [one for one in Path(f"/proc/{pid}/fd").iterdir() if str(one.readlink()).startswith("socket:")]
    return os.getsid(pid) == pid and len(sockets) >= 2


def test_a_process_that_is_killed_in_prepare_leaves_the_former_one_serving(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section())
        first = guests.pid()
        await guests.apply(guest=guests.section(at="prepare", how="killed", once=mark(guests)))
        slot = guests.lifecycle.registry.slots["guest"]
        assert (guests.state(), guests.pid()) == ("running", first)
        assert "the process of plugin 'guest' ended during prepare: it was killed by SIGKILL" in slot.rejected
        assert (await guests.call("device_allocate")).env == {"PID": str(first)}
        await guests.apply(guest=guests.section(name="later"))
        assert (guests.state(), slot.rejected) == ("running", "")
        assert guests.pid() != first

    play(story)


def test_a_process_that_is_killed_in_stop_makes_way_for_the_next_one(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="stop", how="killed"))
        first = guests.pid()
        await guests.apply(guest=guests.section(at="stop", how="killed", name="later"))
        assert guests.state() == "running"
        assert guests.pid() != first
        assert "plugin guest did not stop: the process of plugin 'guest' ended during stop" in caplog.text
        # Nor does it count as a restart at the end of the daemon, which follows.
        assert guests.lifecycle.registry.slots["guest"].restarts.count == 0

    play(story)
