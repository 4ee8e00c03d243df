"""A node without another process or thread: a plugin that needs one waits for it, and no other plugin notices."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.node.workers.own_cgroups import OwnCgroups, own_cgroups, skip_without

import nodeplug as n
from nodeplug.testing.forked_workers import Forking
from nodeplug.worker.cgroup import write

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[..., None]


@pytest.fixture
def pids(forked_workers: Forking) -> Iterator[Path]:
    """Limit the tasks of this process, of who forks for it, and of all that they start."""
    with own_cgroups(forked_workers.pid) as own:
        skip_without(own, "pids")
        yield _limited(own)


def _limited(own: OwnCgroups) -> Path:
    return own.of("pids")


def tasks(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


async def used_beside(pids: Path, first: int) -> int:
    """Count the tasks that are not of one process, once it stays the same: a call's thread outlives its answer."""
    seen: list[int] = []
    while len(seen) < 20 or len(set(seen[-20:])) > 1:
        seen.append(int((pids / "pids.current").read_text(encoding="ascii")) - tasks(first))
        await asyncio.sleep(0.02)
    return seen[-1]


async def state_after_a_kill(guests: "Guests", pids: Path, left: int) -> str:
    """Kill the plugin where there is room for so many more tasks; return its state after the next start.

    Before that start, a plugin that was killed twice is failed for a second, too.
    """
    slot, first = guests.lifecycle.registry.slots["guest"], guests.pid()
    write(pids / "pids.max", await used_beside(pids, first) + left)
    os.kill(first, signal.SIGKILL)

    def was_started() -> bool:
        failed = slot.state == "failed" and "its process ended" not in slot.reason
        return failed or (slot.state == "running" and guests.pid() != first)

    await guests.until(was_started)
    return slot.state


async def until_it_lacks_room(attempt: Callable[[], Awaitable[bool]]) -> None:
    """Repeat what starts a plugin without enough room: a thread that ends meanwhile makes room for one."""
    for _ in range(5):
        if await attempt():
            return
    pytest.fail("the plugin always started")


@pytest.mark.parametrize("left", [0, 1, 3, *(pytest.param(one, marks=pytest.mark.whole) for one in (2, 4, 5))])
def test_a_plugin_waits_for_a_process_and_for_the_threads_that_it_needs(left: int, pids: Path, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(), other=guests.section(name="b"))
        for name in ("guest", "other"):
            await guests.call("device_allocate", name=name)
        slot, other = guests.lifecycle.registry.slots["guest"], guests.pid("other")

        async def has_failed() -> bool:
            return await state_after_a_kill(guests, pids, left) == "failed" or left >= 2

        await until_it_lacks_room(has_failed)
        if left < 2:
            assert "raise " in slot.reason
            assert "TasksMax" in slot.reason
        for _ in range(3):
            await guests.call("device_allocate", name="other")
        write(pids / "pids.max", "max")
        await guests.until(lambda: slot.state == "running")
        assert (await guests.call("device_allocate")).env == {"PID": str(guests.pid())}
        assert guests.pid("other") == other
        assert guests.lifecycle.registry.slots["other"].restarts.count == 0

    play(story)


async def does_not_start_again(guests: "Guests") -> bool:
    slot = guests.lifecycle.registry.slots["guest"]
    retry = slot.retry_after
    await guests.until(lambda: slot.retry_after > retry or slot.state == "running")
    return slot.state != "running"


def test_who_asks_a_plugin_that_has_no_process_is_told_which_limit_to_raise(pids: Path, play: Play) -> None:
    async def is_told(guests: "Guests") -> bool:
        if await state_after_a_kill(guests, pids, 1) == "running":  # where there is room for the thread that loads it
            return False
        with pytest.raises(n.TryAgain, match=r"cannot .*TasksMax"):
            await guests.call("device_allocate")
        return await does_not_start_again(guests)

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section())
        await until_it_lacks_room(lambda: is_told(guests))
        write(pids / "pids.max", "max")
        await guests.until(lambda: guests.state() == "running")

    play(story)
