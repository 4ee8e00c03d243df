"""Pieces of work of which a few are done at a time."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from nodeplug.process.few_at_once import FewAtOnce


async def turns() -> None:
    """Let every task that can go on go on."""
    for _ in range(20):
        await asyncio.sleep(0)


class Pieces:
    """Pieces of work that end when the test says so, and which have begun."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ends = [asyncio.Event() for _ in range(6)]

    async def work(self, number: int) -> int:
        self.begun.append(number)
        await self.ends[number].wait()
        return number


def as_tasks(few: FewAtOnce, pieces: Pieces) -> "list[asyncio.Task[int]]":
    async def one(number: int) -> int:
        return await (await few.begun(partial(pieces.work, number), f"piece {number}"))

    return [asyncio.create_task(one(number)) for number in range(6)]


def in_places(few: FewAtOnce, pieces: Pieces) -> "list[asyncio.Task[int]]":
    async def one(number: int) -> int:
        async with few.place():
            return await pieces.work(number)

    return [asyncio.create_task(one(number)) for number in range(6)]


Begin = Callable[[FewAtOnce, Pieces], "list[asyncio.Task[int]]"]
both = pytest.mark.parametrize("begin", [as_tasks, in_places])


@both
def test_a_piece_begins_when_one_before_it_has_ended(begin: Begin) -> None:
    async def story() -> None:
        pieces = Pieces()
        tasks = begin(FewAtOnce(2, 60), pieces)
        await turns()
        assert pieces.begun == [0, 1]
        pieces.ends[1].set()
        await turns()
        assert pieces.begun == [0, 1, 2]
        for end in pieces.ends:
            end.set()
        assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4, 5]

    asyncio.run(story())


@both
def test_a_slow_piece_gives_up_its_place_and_goes_on(begin: Begin) -> None:
    async def story() -> None:
        pieces = Pieces()
        tasks = begin(FewAtOnce(1, 0.0), pieces)
        while pieces.begun != [0, 1, 2, 3, 4, 5]:
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        for end in pieces.ends:
            end.set()
        assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4, 5]

    asyncio.run(story())


@both
def test_a_place_is_free_again_once_after_a_slow_piece(begin: Begin) -> None:
    async def story() -> None:
        few, slow, later = FewAtOnce(1, 0.0), Pieces(), Pieces()
        for end in slow.ends:
            end.set()
        await asyncio.gather(*begin(few, slow))
        few._patience = 60
        begun = begin(few, later)
        await turns()
        assert later.begun == [0]
        for end in later.ends:
            end.set()
        await asyncio.gather(*begun)

    asyncio.run(story())


@both
def test_whoever_is_cancelled_in_the_line_takes_no_place(begin: Begin) -> None:
    async def story() -> None:
        pieces = Pieces()
        tasks = begin(FewAtOnce(1, 60), pieces)
        await turns()
        tasks[1].cancel()
        for end in pieces.ends:
            end.set()
        assert await asyncio.gather(*tasks[:1], *tasks[2:]) == [0, 2, 3, 4, 5]
        assert 1 not in pieces.begun

    asyncio.run(story())
