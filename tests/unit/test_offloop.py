"""Work beside the event loop: who waits in line, who is refused, and what goes on by itself."""

import asyncio
import threading
import time
from functools import partial

import pytest

from nodeplug.process.aside import aside
from nodeplug.process.lane import Lane, Unanswered


def test_a_long_line_is_served_while_each_piece_of_work_ends_in_time() -> None:
    async def story() -> list[int]:
        lane = Lane("the disk", patience=1.0)

        def piece(number: int) -> int:
            time.sleep(0.02)
            return number

        return await asyncio.gather(*(lane.run(partial(piece, number)) for number in range(75)))

    assert asyncio.run(story()) == list(range(75))


def test_all_in_line_are_refused_when_one_piece_does_not_come_back_and_served_when_it_has() -> None:
    returns = threading.Event()

    async def story() -> None:
        lane = Lane("the disk", patience=0.1)
        asked = [lane.run(returns.wait), *(lane.run(time.monotonic) for _ in range(3))]
        refused = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in refused] == [Unanswered] * 4
        assert all("the disk does not answer (for" in str(one) for one in refused)
        with pytest.raises(Unanswered):
            await lane.run(time.monotonic)
        returns.set()
        while lane.stuck:
            await asyncio.sleep(0.01)
        assert await lane.run(lambda: "served") == "served"

    asyncio.run(story())


def test_who_stops_waiting_leaves_the_line_to_the_others() -> None:
    returns = threading.Event()

    async def story() -> None:
        lane = Lane("the disk", patience=None)
        first, gone, last = (asyncio.create_task(lane.run(work)) for work in (returns.wait, returns.clear, lambda: 3))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait({gone})
        returns.set()
        assert (await first, await last) == (True, 3)
        assert returns.is_set()

    asyncio.run(story())


def test_who_stops_waiting_in_the_moment_of_the_turn_keeps_nobody_from_it() -> None:
    async def story() -> None:
        lane = Lane("the disk", patience=None)
        for steps in range(12):
            tasks = [asyncio.create_task(lane.run(lambda: 1)) for _ in range(2)]
            for _ in range(steps):
                await asyncio.sleep(0)
            tasks[0].cancel()
            await asyncio.wait(tasks, timeout=5)
            assert tasks[1].result() == 1

    asyncio.run(story())


def test_a_result_that_comes_when_nobody_waits_any_more_is_closed() -> None:
    returns, closed = threading.Event(), threading.Event()

    async def story() -> None:
        lane = Lane("the disk", patience=0.05)

        def work() -> threading.Event:
            returns.wait()
            return closed

        with pytest.raises(Unanswered):
            await lane.run(work, late=threading.Event.set)
        assert not closed.is_set()
        returns.set()
        assert await asyncio.wait_for(aside(lambda: closed.wait(20), "wait"), 20)

    asyncio.run(story())


def test_a_thread_that_waits_and_a_task_that_waits_share_the_line() -> None:
    async def story() -> None:
        lane, done = Lane("the disk", patience=5.0), list[int]()
        first = lane.begin(lambda: done.append(1))
        waited = aside(lambda: lane.wait(first), "wait")
        await lane.run(lambda: done.append(2))
        await waited
        assert done == [1, 2]

    asyncio.run(story())
