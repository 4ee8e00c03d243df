"""What plugins are told of who holds devices by claims."""

import asyncio
from pathlib import Path

import pytest
from tests.unit.dra.prepared import MEM, Prepared, result

from nodeplug import Holding, ResourceName

USERS = {("ns", "five"): [("web-0", "main"), ("web-0", "side")]}


def nobody(namespace: str, claim: str) -> list[tuple[str, str]]:
    del namespace, claim
    return []


def held(driver: Prepared) -> list[tuple[str, str, str, int]]:
    found = driver.ledger.holdings(MEM, lambda namespace, claim: USERS.get((namespace, claim), []))
    return sorted((one.claim.name if one.claim else "", one.pod, one.container, len(one.ids)) for one in found)


@pytest.fixture
def driver(tmp_path: Path) -> Prepared:
    return Prepared(tmp_path)


def test_each_container_that_uses_a_claim_holds_all_of_it(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("five", result("a", "3Gi"))
        await driver.prepare("five")
        assert held(driver) == [("five", "web-0", "main", 3), ("five", "web-0", "side", 3)]

    asyncio.run(story())


def test_a_claim_whose_containers_are_not_known_is_held_all_the_same(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("other", result("b", "2Gi"))
        await driver.prepare("other")
        (one,) = driver.ledger.holdings(MEM, nobody)
        assert (one.namespace, one.pod, one.container, one.ids) == ("ns", "", "", driver.ids("other"))
        assert one.claim is not None
        assert (one.claim.uid, one.claim.request) == ("uid-other", "gpu")
        assert driver.ledger.holdings(ResourceName("example.com/other"), nobody) == []

    asyncio.run(story())


def test_a_request_for_several_devices_is_one_holding(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("five", result("a", "1Gi"), result("b", "2Gi"))
        await driver.prepare("five")
        assert held(driver) == [("five", "web-0", "main", 3), ("five", "web-0", "side", 3)]

    asyncio.run(story())


def test_what_is_observed_alone_is_held_by_nobody_and_never_released(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("whole", result("a", "4Gi"))
        driver.put("watch", result("a", adminAccess=True))
        await driver.prepare("whole")
        await driver.prepare("watch")
        assert held(driver) == [("whole", "", "", 4)]
        granted = {one.claim.name: one.claim.admin_access for one in driver.plugin.allocated if one.claim}
        assert granted == {"whole": False, "watch": True}
        await driver.unprepare("watch")
        await driver.preparation.release()
        assert driver.plugin.released == []
        assert driver.ids("watch") == ()

    asyncio.run(story())


def test_nothing_is_held_before_kubelet_could_be_answered_or_after_it_was_told_of_the_end(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("other", result("b", "2Gi"))
        driver.plugin.refuses = "not now"
        with pytest.raises(Exception, match="not now"):
            await driver.prepare("other")
        assert held(driver) == []
        driver.plugin.refuses = ""
        await driver.prepare("other")
        assert held(driver) == [("other", "", "", 2)]
        driver.plugin.deaf = True
        await driver.unprepare("other")
        assert held(driver) == []
        assert driver.ids("other") != ()

    asyncio.run(story())


def test_holdings_can_be_sent_to_a_process(driver: Prepared) -> None:
    from nodeplug.worker.encoding import read_holdings, write_holdings  # noqa: PLC0415 - this test alone
    from nodeplug.worker.wire import Message  # noqa: PLC0415 - as above

    async def story() -> list[Holding]:
        driver.put("five", result("a", "1Gi"))
        await driver.prepare("five")
        return driver.ledger.holdings(MEM, nobody)

    made = asyncio.run(story())
    assert list(read_holdings(Message({}, write_holdings(made)))) == made
