"""Specs are looked after while claims come and go: what a look has seen may be old when it acts."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.dra.prepared import Prepared, result

from nodeplug.process.aside import aside as at_once


@pytest.fixture
def driver(tmp_path: Path) -> Prepared:
    return Prepared(tmp_path)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Hold up whatever looks at all specs until the event is set."""
    event = asyncio.Event()

    async def aside(work: Callable[[], Any], about: str) -> Any:
        if about.startswith("CDI specs"):
            await event.wait()
        return await at_once(work, about)

    monkeypatch.setattr("nodeplug.dra.preparation.aside", aside)
    return event


def test_a_look_at_specs_keeps_that_of_a_claim_that_was_prepared_meanwhile(
    driver: Prepared, late: asyncio.Event
) -> None:
    async def story() -> None:
        look = asyncio.create_task(driver.preparation.restore())
        await asyncio.sleep(0)
        driver.put("one", result("a", "1Gi"))
        await driver.prepare("one")
        late.set()
        await look
        assert len([*driver.specs.iterdir()]) == 1

    asyncio.run(story())


def test_a_look_at_specs_does_not_bring_back_that_of_a_claim_that_has_ended_meanwhile(
    driver: Prepared, late: asyncio.Event
) -> None:
    async def story() -> None:
        driver.put("one", result("a", "1Gi"))
        await driver.prepare("one")
        look = asyncio.create_task(driver.preparation.restore())
        await asyncio.sleep(0)
        ended = asyncio.create_task(driver.unprepare("one"))
        for _ in range(100):
            await asyncio.sleep(0.001)
        late.set()
        await asyncio.gather(look, ended)
        assert not [*driver.specs.iterdir()]

    asyncio.run(story())


def test_a_look_at_specs_does_not_wait_for_a_claim_whose_plugin_is_at_it(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("one", result("a", "1Gi"))
        await driver.prepare("one")
        (spec,) = driver.specs.iterdir()
        spec.unlink()
        async with driver.preparation._lock("another"), driver.preparation._lock("uid-one"):
            await driver.preparation.restore()
            assert not spec.exists()
        await driver.preparation.restore()
        assert spec.exists()

    asyncio.run(story())


def test_what_a_killed_write_has_left_is_removed_when_it_is_nobodys(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("one", result("a", "1Gi"))
        await driver.prepare("one")
        (spec,) = driver.specs.iterdir()
        old, new = (spec.with_name(f".{spec.name}.{pid}") for pid in (1, 2))
        for path in (old, new):
            path.touch()
        os.utime(old, (0, 0))
        await driver.preparation.restore()
        assert {*driver.specs.iterdir()} == {spec, new}

    asyncio.run(story())
