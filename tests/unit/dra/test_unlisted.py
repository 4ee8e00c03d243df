"""A section that is moved to kubelet's device plugins and back is offered again, list by list as before."""

import asyncio
from pathlib import Path
from typing import Any, cast

from tests.unit.dra.prepared import DRIVER, MEM, POOL, Prepared

from nodeplug.dra.driver import Driver
from nodeplug.dra.server import News
from nodeplug.hosting.runner import Runner


def test_what_is_listed_again_as_it_was_is_offered_again(tmp_path: Path) -> None:
    """The driver stays while a claim has some of its devices."""
    prepared = Prepared(tmp_path)
    outside = cast("Any", None)  # kubelet's side, which nobody asks here

    async def story() -> None:
        driver = Driver(
            *("cards", DRIVER, "node-1", prepared.preparation, outside, News(), Runner(), 0.01, "listed"),
            changed=lambda: None,
            who_holds=outside,
        )
        routes = [prepared.preparation.registry.route("device", MEM)]
        for _ in range(2):
            driver.serve(routes)
            while POOL not in driver.by_name():
                await asyncio.sleep(0.001)
            assert [one.name for one in driver.by_name()[POOL].devices] == ["a", "b"]
            driver.unlist()
            assert driver.by_name() == {}

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await story()

    asyncio.run(bounded())
