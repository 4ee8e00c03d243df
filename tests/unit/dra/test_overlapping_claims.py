"""Claims of devices that overlap: what one consumes, no other gets, whatever the scheduler has promised."""

import asyncio
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.unit.dra.overlapping import instances, parts, whole
from tests.unit.dra.prepared import Prepared, result

from nodeplug import Counters, Device, DeviceId, Exhausted


@pytest.fixture
def driver(tmp_path: Path) -> Prepared:
    """A card that is given away whole, or as instances, or in parts."""
    made = Prepared(tmp_path)
    made.plugin.listed = [whole(), *parts(of="shared"), *instances(), Device(DeviceId("other"))]
    for name, device in (("whole", "card"), ("first", "card-mig-0"), ("second", "card-mig-1"), ("other", "other")):
        made.put(name, result(device))
    made.put("some", result("shared", "2Gi"))
    made.put("more", result("shared", "6Gi"))
    made.put("both", result("card-mig-0"), result("card-mig-1", request="two"))
    made.put("greedy", result("card-mig-0"), result("card", request="two"))
    return made


def refused(driver: Prepared, name: str) -> str:
    with pytest.raises(Exhausted) as error:
        asyncio.run(driver.prepare(name))
    assert driver.ids(name) == ()
    return error.value.message


async def end(driver: Prepared, *names: str) -> None:
    for name in names:
        await driver.unprepare(name)
    await driver.preparation.release()


def test_a_whole_card_waits_until_the_last_of_its_instances_is_released(driver: Prepared) -> None:
    for name in ("first", "second"):
        asyncio.run(driver.prepare(name))
    said = refused(driver, "whole")
    assert said == (
        "device card of pool node-1/example.com/mem: 6442450944 free of 8589934592 of memory of 'card', 8589934592 "
        "wanted; held by claim ns/first, claim ns/second; it is tried again"
    )
    asyncio.run(end(driver, "first"))
    assert "held by claim ns/second;" in refused(driver, "whole")
    asyncio.run(end(driver, "second"))
    asyncio.run(driver.prepare("whole"))
    assert driver.ids("whole") == ("card",)


def test_an_instance_waits_until_the_whole_card_is_released_and_its_plugin_has_heard_of_it(driver: Prepared) -> None:
    asyncio.run(driver.prepare("whole"))
    assert "0 free of 8589934592 of memory of 'card'" in refused(driver, "first")
    driver.plugin.deaf = True
    asyncio.run(end(driver, "whole"))
    assert "claim ns/whole (ended, its plugin has not heard of it yet)" in refused(driver, "first")
    driver.plugin.deaf = False
    asyncio.run(driver.preparation.release())
    asyncio.run(driver.prepare("first"))


def test_instances_that_fit_beside_each_other_are_granted_and_so_is_what_overlaps_nothing(driver: Prepared) -> None:
    for name in ("first", "second", "other"):
        asyncio.run(driver.prepare(name))
    asyncio.run(end(driver, "first", "second"))
    asyncio.run(driver.prepare("both"))
    assert driver.ids("both") == ("card-mig-0", "card-mig-1")


def test_a_card_that_is_shared_by_amounts_is_consumed_once_and_free_with_its_last_part(driver: Prepared) -> None:
    for name in ("some", "more"):
        asyncio.run(driver.prepare(name))
    assert "held by claim ns/more, claim ns/some;" in refused(driver, "first")
    asyncio.run(end(driver, "some"))
    assert "held by claim ns/more;" in refused(driver, "first")
    asyncio.run(end(driver, "more"))
    asyncio.run(driver.prepare("first"))
    assert "held by claim ns/first;" in refused(driver, "some")


def test_one_claim_does_not_get_an_instance_and_the_card_that_it_is_cut_from(driver: Prepared) -> None:
    assert "held by the claim itself;" in refused(driver, "greedy")


def test_a_claim_for_observation_consumes_nothing_and_sees_what_others_have(driver: Prepared) -> None:
    driver.put("watcher", result("card", adminAccess=True))
    asyncio.run(driver.prepare("first"))
    asyncio.run(driver.prepare("watcher"))
    assert driver.ids("watcher") == ("card",)
    asyncio.run(driver.prepare("second"))
    asyncio.run(end(driver, "first", "second"))
    asyncio.run(driver.prepare("whole"))


def test_a_repeated_request_is_granted_although_its_counters_are_used_up_by_itself(driver: Prepared) -> None:
    asyncio.run(driver.prepare("whole"))
    later = driver.again()
    asyncio.run(later.prepare("whole"))
    assert later.ids("whole") == ("card",)


def test_what_a_device_consumed_is_remembered_when_it_is_listed_no_more(driver: Prepared) -> None:
    asyncio.run(driver.prepare("first"))
    driver.plugin.listed = [whole()]
    assert "held by claim ns/first;" in refused(driver.again(), "whole")


def test_amounts_in_read_only_mappings_are_remembered_too(driver: Prepared) -> None:
    fixed = MappingProxyType({"slices": 7})
    driver.plugin.listed = [Device(DeviceId("card"), counters=Counters("card", fixed, fixed))]
    asyncio.run(driver.prepare("whole"))
    (record,) = driver.again().ledger.records.values()
    assert record.held[0].counters == Counters("card", {"slices": 7}, {"slices": 7})


def test_a_claim_from_before_its_device_had_counters_consumes_what_is_listed_now(driver: Prepared) -> None:
    listed = driver.plugin.listed
    driver.plugin.listed = [Device(one.id) for one in instances()]
    asyncio.run(driver.prepare("first"))
    driver.plugin.listed = listed
    assert "held by claim ns/first;" in refused(driver.again(), "whole")


def test_what_containers_of_device_plugins_hold_is_consumed(driver: Prepared) -> None:
    driver.elsewhere.add(DeviceId("card-mig-3"))
    assert "held by containers that got it by kubelet's device plugins;" in refused(driver, "whole")
    asyncio.run(driver.prepare("first"))


def test_cards_do_not_consume_of_each_other(driver: Prepared) -> None:
    more = {"slices": 7}
    driver.plugin.listed = [*driver.plugin.listed, Device(DeviceId("b"), counters=Counters("b", more, more))]
    driver.put("b", result("b"))
    asyncio.run(driver.prepare("whole"))
    asyncio.run(driver.prepare("b"))


def test_a_device_that_is_listed_no_more_has_all_of_its_set_where_that_is_counted_otherwise_by_now(
    driver: Prepared,
) -> None:
    def listed(name: str, of: int, amount: int) -> Device:
        return Device(DeviceId(name), counters=Counters("card", {"memory": of}, {"memory": amount}))

    driver.plugin.listed = [listed("card", 80, 80), listed("card-mig-0", 80, 40)]
    asyncio.run(driver.prepare("first"))
    later = driver.again()
    later.plugin.listed = driver.plugin.listed = [listed("card", 80 << 30, 80 << 30), listed("card-mig-1", 80 << 30, 1)]
    assert "held by claim ns/first" in refused(later, "second")
