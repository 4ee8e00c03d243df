"""A plugin's process, or the daemon, may open no more files: the error says which of them lost a message."""

import asyncio
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.own_descriptors import may_open_no_more, no_room_for_descriptors

import nodeplug as n

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[[Any], None]
FULL = "no file descriptor was free"
LOST = f"it could not receive a message: {FULL}"
MOST = 64
pytestmark = pytest.mark.unprivileged


async def without_descriptors(guests: "Guests") -> "asyncio.Task[Any]":
    """Begin a call in which the plugin opens what it may, and wait until it has."""
    faulty = guests.section(at="device_list", how="keeps descriptors", once=str(guests.folder / "it was called"))
    await guests.apply(guest=faulty)
    resource.prlimit(guests.pid(), resource.RLIMIT_NOFILE, (MOST, MOST))
    call = asyncio.create_task(guests.call("device_list"))
    await guests.until(lambda: may_open_no_more(guests.pid()))
    return call


def test_a_process_that_cannot_take_another_call_says_why_and_is_started_again(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        first = await without_descriptors(guests)
        pid, why = (
            guests.pid(),
            rf"ended during {{}}: {LOST}; its limit is {MOST} files \(LimitNOFILE of the daemon's unit\)",
        )
        with pytest.raises(n.TryAgain, match=why.format("device_allocate")):
            await guests.call("device_allocate")
        with pytest.raises(n.TryAgain, match=why.format("device_list")):
            await first
        await guests.until(lambda: guests.state() == "running" and guests.pid() != pid)
        await guests.call("device_list")

    play(story)


@pytest.mark.node  # a call of CNI enters a namespace
def test_a_process_that_cannot_take_the_namespace_of_a_call_says_why(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section())
        await guests.call("cni_status")  # its channel waits for the next call
        resource.prlimit(guests.pid(), resource.RLIMIT_NOFILE, (3, 3))  # descriptors 0 to 2 are open
        with pytest.raises(n.TryAgain, match=f"ended during cni_status: {LOST}; its limit is 3 files "):
            await guests.call("cni_status")

    play(story)


def test_a_daemon_that_cannot_take_a_request_of_a_plugin_lets_its_process_live(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="start", how="asks again and again"))
        pid = guests.pid()
        with no_room_for_descriptors():
            await guests.until(lambda: f"a request of plugin guest is lost: {FULL}; raise LimitNOFILE" in caplog.text)
            refused = "it has ended, is ending this process, or has no free file descriptor"
            await guests.until(lambda: refused in caplog.text)
        await guests.until(lambda: "it was answered again" in caplog.text)
        await guests.call("device_list")
        assert guests.pid() == pid

    play(story)


def test_a_daemon_that_cannot_take_an_answer_says_so_of_the_process_that_it_ends(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="device_list", how="hoards", once=str(guests.folder / "once")))
        why = f"ended during device_list: the daemon could not receive its message: {FULL}; raise"
        with no_room_for_descriptors(), pytest.raises(n.TryAgain, match=why):
            await guests.call("device_list")
        await guests.until(lambda: guests.state() == "running")
        await guests.call("device_list")

    play(story)
