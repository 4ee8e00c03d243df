"""A driver offers what its section lists, says while the plugin is away, and offers it again when it is back."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

from tests.unit.dra.prepared import DRIVER, MEM, POOL, Prepared

from nodeplug.dra.driver import Driver
from nodeplug.dra.server import News
from nodeplug.hosting.runner import Runner

WHY = "its process ended: SIGKILL"


def driver_of(prepared: Prepared) -> Driver:
    outside = cast("Any", None)  # kubelet's side, which nobody asks here
    return Driver(
        *("cards", DRIVER, "node-1", prepared.preparation, outside, News(), Runner(), 0.01, "listed"),
        changed=lambda: None,
        who_holds=outside,
    )


async def listed(driver: Driver) -> None:
    while POOL not in driver.by_name():
        await asyncio.sleep(0.001)


async def until_waiting(waiting: asyncio.Future[None]) -> None:
    """Let others go on for several turns of one who waits."""
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 30))


def test_what_is_listed_again_as_it_was_is_offered_again(tmp_path: Path) -> None:
    """A section moves to kubelet's device plugins and back: its driver stays while a claim has devices of it."""
    prepared = Prepared(tmp_path)

    async def story() -> None:
        driver = driver_of(prepared)
        routes = [prepared.preparation.registry.route("device", MEM)]
        for _ in range(2):
            driver.serve(routes)
            await listed(driver)
            assert [one.name for one in driver.by_name()[POOL].devices] == ["a", "b"]
            driver.unlist()
            assert driver.by_name() == {}

    run(story())


def test_a_pool_says_that_its_plugin_is_away_until_the_next_list(tmp_path: Path) -> None:
    prepared = Prepared(tmp_path)

    async def story() -> None:
        driver = driver_of(prepared)
        routes = [prepared.preparation.registry.route("device", MEM)]
        driver.serve(routes)
        await listed(driver)
        assert driver.by_name()[POOL].away == ""
        driver.withdraw(WHY)
        pool = driver.by_name()[POOL]
        assert (pool.away, [one.name for one in pool.devices]) == (WHY, ["a", "b"])
        driver.serve(routes)
        while driver.by_name()[POOL].away:
            await asyncio.sleep(0.001)
        driver.unlist()

    run(story())


def test_the_first_list_of_a_plugin_that_starts_is_waited_for(tmp_path: Path) -> None:
    prepared = Prepared(tmp_path)

    async def story() -> None:
        driver = driver_of(prepared)
        waiting = asyncio.ensure_future(driver.listed(POOL))
        await until_waiting(waiting)
        driver.serve([prepared.preparation.registry.route("device", MEM)])
        await waiting
        assert POOL in driver.by_name()
        driver.unlist()

    run(story())


def test_a_pool_that_is_not_on_its_way_is_not_waited_for(tmp_path: Path) -> None:
    prepared = Prepared(tmp_path)

    async def story() -> None:
        driver = driver_of(prepared)
        driver.unlist()
        await driver.listed(POOL)  # nobody claims it
        driver.serve([prepared.preparation.registry.route("device", MEM)])
        await driver.listed("node-1/another")
        await driver.listed(POOL)
        driver.unlist()

    run(story())


def test_a_first_list_that_failed_is_not_waited_for(tmp_path: Path) -> None:
    prepared = Prepared(tmp_path)
    prepared.plugin.cannot_list = "the cards do not answer"

    async def story() -> None:
        driver = driver_of(prepared)
        driver.serve([prepared.preparation.registry.route("device", MEM)])
        await driver.listed(POOL)
        assert POOL not in driver.by_name()
        driver.unlist()

    run(story())
