"""A daemon that kubelet knows already while another one still serves: it waits for its turn."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.unit.dra.prepared import Prepared, result

from nodeplug.dra.server import DeviceHealth, DraPlugin, News, Turn
from nodeplug.dra.values import Pool
from nodeplug.hosting.front import Front
from nodeplug.pb import dra_health_v1alpha1_pb2 as health_pb
from nodeplug.pb import dra_v1_pb2 as pb


class Told:
    """A stream of kubelet's."""

    messages = 0

    async def write(self, message: object) -> None:
        del message
        self.messages += 1


class Nothing:
    """No devices."""

    pools: Sequence[Pool] = ()


def test_requests_that_come_before_a_daemons_turn_wait_and_nothing_is_told_of_health(tmp_path: Path) -> None:
    driver = Prepared(tmp_path)

    async def story() -> None:
        driver.put("one", result("a", "1Gi"))
        waiting, news, told = Turn(), News(), Told()
        plugin = DraPlugin(driver.preparation, Front(driver.preparation.runner), waiting)
        named = [pb.Claim(uid="uid-one", namespace="ns", name="one")]
        health = asyncio.create_task(
            DeviceHealth(Nothing(), news, waiting).NodeWatchResources(health_pb.NodeWatchResourcesRequest(), told)
        )
        asked = asyncio.create_task(plugin.NodePrepareResources(pb.NodePrepareResourcesRequest(claims=named), None))
        await asyncio.sleep(0.05)
        assert (asked.done(), told.messages, driver.ids("one")) == (False, 0, ())
        waiting.comes.set()
        assert not (await asked).claims["uid-one"].error
        news.end()
        await health
        assert told.messages == 1

    asyncio.run(story())
