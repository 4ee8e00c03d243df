"""When the provisioner tries again what has failed: not at once, although the cluster tells of it at once."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nodeplug import Exhausted, PluginError
from nodeplug.kubeapi.client import Bounds
from nodeplug.provisioner.work import Work

CLAIM = "claim default/large"


def during(life: Callable[[Work, asyncio.Event], Awaitable[None]]) -> None:
    async def go() -> None:
        async with asyncio.TaskGroup() as group:
            changed = asyncio.Event()
            await life(Work(group, changed, asyncio.Event()), changed)

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_claim_that_was_sent_away_and_comes_back_at_once_waits_for_the_pause() -> None:
    """A scheduler that sees no other node chooses the full one again, within milliseconds."""
    tries: list[float] = []

    async def full() -> None:
        tries.append(asyncio.get_running_loop().time())
        raise Exhausted("no room; another node is chosen")

    async def told(_: PluginError) -> None:
        pass

    async def life(work: Work, changed: asyncio.Event) -> None:
        work.begin(CLAIM, full, told)
        while not work.problems:
            await asyncio.sleep(0)
        for _ in range(3):
            work.forget_others(set())  # it is for another node by now
            work.begin(CLAIM, full, told)
            await asyncio.sleep(0.02)
        assert len(tries) == 1
        await changed.wait()  # the pause is over
        work.begin(CLAIM, full, told)
        while len(tries) < 2:
            await asyncio.sleep(0)

    during(life)


def test_a_failure_is_told_once_as_long_as_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeplug.provisioner.work._PAUSES", Bounds(pause=0.05, longest_pause=60.0))
    said: list[str] = []
    reasons = ["no room", "no room", "the disk fails"]

    async def failing() -> None:
        raise PluginError(reasons[0])

    async def told(error: PluginError) -> None:
        said.append(error.message)

    async def life(work: Work, changed: asyncio.Event) -> None:
        while reasons:
            work.begin(CLAIM, failing, told)
            await changed.wait()
            changed.clear()
            reasons.pop(0)

    during(life)
    assert said == ["no room", "the disk fails"]


def test_what_was_done_is_told_and_what_failed_is_not() -> None:
    done, fails = asyncio.Event(), [True]

    async def work() -> None:
        if fails.pop():
            raise PluginError("no room")

    async def told(_: PluginError) -> None:
        pass

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            works = Work(group, asyncio.Event(), done)
            works.begin("one", work, told)
            while not works.problems:
                await asyncio.sleep(0)
            assert not done.is_set()
            fails.append(False)
            works.begin("two", work, told)
            await done.wait()

    asyncio.run(asyncio.wait_for(scenario(), 20))
