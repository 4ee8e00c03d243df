"""Turns at the state of a loop: who has them, and tasks whose steps a thread makes."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from nodeplug.process.turns import ThreadTask, Turn, TurnLoop, loop_of_caller, on_the_loop, stepping
from nodeplug.testing.waiting import until


class Running:
    """A loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self.loop = TurnLoop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="the loop", daemon=True)
        self.thread.start()

    def task(self, coroutine: Coroutine[Any, None, None]) -> ThreadTask:
        with self.loop.turn:
            return ThreadTask(self.loop, coroutine)

    def begun(self, coroutine: Coroutine[Any, None, None]) -> ThreadTask:
        """Return a task whose steps another thread makes from now on."""
        return self.begin(self.task(coroutine))

    def begin(self, task: ThreadTask) -> ThreadTask:
        threading.Thread(target=task.run, args=(lambda: None,), name="its own", daemon=True).start()
        return task

    def on_the_loop(self, work: Callable[[], object]) -> None:
        async def do() -> None:
            work()

        asyncio.run_coroutine_threadsafe(do(), self.loop).result(10)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@pytest.fixture
def running() -> Iterator[Running]:
    found = Running()
    yield found
    found.end()


def where() -> str:
    return threading.current_thread().name


def test_the_turn_goes_to_who_has_waited_longest() -> None:
    turn, order = Turn(), []
    turn.acquire()

    def take(number: int) -> None:
        with turn:
            order.append(number)

    def stand_in_line(count: int) -> bool:
        return len(turn._line) == count

    threads = [threading.Thread(target=take, args=(number,)) for number in range(5)]
    for waiting, thread in enumerate(threads, 1):
        thread.start()
        until(partial(stand_in_line, waiting))
    turn.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_nobody_has_a_turn_while_the_loop_works(running: Running) -> None:
    began, goes_on, taken = threading.Event(), threading.Event(), threading.Event()

    def take() -> None:
        with running.loop.turn:
            taken.set()

    def work() -> None:
        began.set()
        goes_on.wait(10)

    running.loop.call_soon_threadsafe(work)
    assert began.wait(10)
    thread = threading.Thread(target=take)
    thread.start()
    until(lambda: len(running.loop.turn._line) == 1)
    assert not taken.is_set()
    goes_on.set()
    thread.join(10)
    assert taken.is_set()


def test_a_loop_that_is_never_idle_lends_its_turns(running: Running) -> None:
    def again() -> None:
        if not ended.is_set():
            running.loop.call_soon(again)

    ended = threading.Event()
    running.loop.call_soon_threadsafe(again)
    for _ in range(100):
        with running.loop.turn:
            pass
    ended.set()


def test_what_is_called_in_a_lent_turn_wakes_the_loop(running: Running) -> None:
    called = threading.Event()

    async def steps() -> None:
        loop_of_caller().call_soon(called.set)

    running.task(steps()).run(lambda: None)
    assert called.wait(10)


@pytest.mark.parametrize("count", [1, 100])
def test_what_is_left_to_the_loop_is_done_before_what_comes_later(running: Running, count: int) -> None:
    done: list[int] = []

    async def steps() -> None:
        for number in range(count):
            running.loop.leave(done.append, number)

    running.task(steps()).run(lambda: None)
    running.on_the_loop(lambda: done.append(count))
    assert done == list(range(count + 1))


def test_what_is_left_to_the_loop_is_done_although_nothing_wakes_it(running: Running) -> None:
    done = threading.Event()

    async def steps() -> None:
        running.loop.leave(done.set)

    running.task(steps()).run(lambda: None)
    assert done.wait(10)


def test_the_steps_of_a_task_are_made_in_its_thread_and_its_context(running: Running) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="")
    seen: list[object] = []

    async def steps() -> None:
        task = stepping()
        assert task is not None
        seen.append((where(), loop_of_caller() is running.loop))
        variable.set("set before")
        await task.away(lambda: seen.append(where()), lambda: seen.append("settled"), 10)
        seen.append((where(), variable.get()))

    task = running.begun(steps())
    until(task.ended.done)
    assert seen == [("its own", True), "its own", "settled", ("its own", "set before")]
    assert variable.get() == ""


def test_a_thread_that_was_away_is_used_up_and_another_is_not(running: Running) -> None:
    async def away() -> None:
        task = stepping()
        assert task is not None
        await task.away(lambda: None, lambda: None, 10)

    async def steps() -> None:
        await on_the_loop()

    first, second = running.task(away()), running.task(steps())
    first.run(lambda: None)
    second.run(lambda: None)
    assert first.used_up
    assert not second.used_up


@pytest.mark.parametrize("away", [0, 1, 3])
def test_what_comes_before_the_thread_is_away_is_done_once(running: Running, away: int) -> None:
    done: list[str] = []

    async def steps() -> None:
        task = stepping()
        assert task is not None
        for _ in range(away):
            await task.away(lambda: done.append("away"), lambda: None, 10)

    running.task(steps()).run(lambda: done.append("before"))
    assert done == ["before", *["away"] * away]


def test_the_turn_is_free_while_a_thread_is_away(running: Running) -> None:
    goes_on = threading.Event()

    async def steps() -> None:
        task = stepping()
        assert task is not None
        await task.away(lambda: goes_on.wait(10), lambda: None, 10)

    task = running.begun(steps())
    running.on_the_loop(goes_on.set)
    until(task.ended.done)


def test_a_task_that_waits_goes_on_on_the_loop(running: Running) -> None:
    seen: list[object] = []

    async def steps() -> None:
        seen.append(where())
        await on_the_loop()
        async with asyncio.timeout(10):
            await asyncio.sleep(0)
        seen.append((where(), stepping(), loop_of_caller() is running.loop, task.is_current))

    task = running.task(steps())
    running.begin(task)
    until(task.ended.done)
    assert seen == ["its own", ("the loop", None, True, True)]


def test_on_the_loop_nothing_moves(running: Running) -> None:
    running.loop.call_soon_threadsafe(lambda: None)

    async def stay() -> str:
        await on_the_loop()
        return where()

    assert asyncio.run_coroutine_threadsafe(stay(), running.loop).result(10) == "the loop"


def test_after_its_deadline_a_task_goes_on_on_the_loop_and_its_thread_is_left_behind(running: Running) -> None:
    goes_on, seen = threading.Event(), list[str]()

    async def steps() -> None:
        task = stepping()
        assert task is not None
        try:
            await task.away(lambda: goes_on.wait(10), lambda: seen.append("settled"), 0.0)
        except TimeoutError:
            await asyncio.sleep(0)
            seen.append(where())

    task = running.begun(steps())
    until(task.ended.done)
    assert seen == ["the loop"]
    goes_on.set()
    until(lambda: seen == ["the loop", "settled"])


def test_a_cancelled_task_ends_although_its_thread_does_not(running: Running) -> None:
    goes_on, seen = threading.Event(), list[object]()

    async def steps() -> None:
        task = stepping()
        assert task is not None
        try:
            await task.away(lambda: seen.append(goes_on.wait(10)), lambda: seen.append("settled"), 10)
        except asyncio.CancelledError:
            seen.append(where())
            raise

    task = running.begun(steps())
    until(lambda: task._away is not None)
    running.on_the_loop(task.cancel)
    until(task.ended.done)
    assert seen == ["the loop"]
    goes_on.set()
    until(lambda: seen[1:] == [True, "settled"])


def test_a_task_that_is_cancelled_on_the_loop_ends(running: Running) -> None:
    async def steps() -> None:
        await on_the_loop()
        await asyncio.Event().wait()

    task = running.begun(steps())
    until(lambda: task._task is not None)
    running.on_the_loop(task.cancel)
    until(task.ended.done)


def test_a_task_that_is_cancelled_before_its_first_step_makes_none(running: Running) -> None:
    seen: list[int] = []

    async def steps() -> None:
        seen.append(1)

    task = running.task(steps())
    running.on_the_loop(task.cancel)
    assert task.ended.done()
    task.run(lambda: None)
    assert not seen


def test_a_task_that_moves_before_its_first_step_is_one_of_the_loop(running: Running) -> None:
    seen: list[str] = []

    async def steps() -> None:
        seen.append(where())

    task = running.task(steps())
    running.on_the_loop(task.move)
    until(task.ended.done)
    assert seen == ["the loop"]
