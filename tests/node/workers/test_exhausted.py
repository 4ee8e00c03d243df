"""A node without another process or thread: a plugin that needs one waits for it, and no other plugin notices."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
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


@pytest.mark.parametrize("left", [0, 1, 3, *(pytest.param(one, marks=pytest.mark.whole) for one in (2, 4, 5))])
def test_a_plugin_waits_for_a_process_and_for_the_threads_that_it_needs(left: int, pids: Path, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(), other=guests.section(name="b"))
        for name in ("guest", "other"):
            await guests.call("device_allocate", name=name)
        slot, other, first = guests.lifecycle.registry.slots["guest"], guests.pid("other"), guests.pid()
        write(pids / "pids.max", await used_beside(pids, first) + left)
        os.kill(first, signal.SIGKILL)
        await guests.until(lambda: slot.state == "failed" or (slot.state == "running" and guests.pid() != first))
        if left < 2:
            assert slot.state == "failed"
            assert "raise " in slot.reason
            assert "TasksMax" in slot.reason
        for _ in range(3):
            await guests.call("device_allocate", name="other")
        write(pids / "pids.max", "max")
        await guests.until(lambda: slot.state == "running" and guests.pid() != first)
        assert (await guests.call("device_allocate")).env == {"PID": str(guests.pid())}
        assert guests.pid("other") == other
        assert guests.lifecycle.registry.slots["other"].restarts.count == 0

    play(story)


async def is_left_without_a_process(guests: "Guests", pids: Path) -> bool:
    """Kill the plugin where there is room for the thread that loads it, and no more."""
    slot, first = guests.lifecycle.registry.slots["guest"], guests.pid()
    write(pids / "pids.max", await used_beside(pids, first) + 1)
    os.kill(first, signal.SIGKILL)

    await guests.until(lambda: slot.state == "failed" or (slot.state == "running" and guests.pid() != first))
    return slot.state == "failed"


def test_who_asks_a_plugin_that_has_no_process_is_told_which_limit_to_raise(pids: Path, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section())
        while not await is_left_without_a_process(guests, pids):
            pass  # a thread of the daemon's that ended meanwhile left room for one more
        slot = guests.lifecycle.registry.slots["guest"]
        with pytest.raises(n.TryAgain, match=r"cannot .*TasksMax"):
            await guests.call("device_allocate")
        retry = slot.retry_after
        await guests.until(lambda: slot.retry_after > retry)
        write(pids / "pids.max", "max")
        await guests.until(lambda: slot.state == "running")

    play(story)
