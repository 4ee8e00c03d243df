"""Claims are prepared and unprepared: the same ids for the same claim, and none of them for another one."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.unit.dra.prepared import DRIVER, GIB, POOL, Prepared, result, units

from nodeplug import Device, DeviceId, Exhausted, NotFound, NotReady, Part, PluginError, TryAgain
from nodeplug.dra.claims import PreparedDevice, encode_prepared
from nodeplug.dra.records import read_record
from nodeplug.dra.server import DraPlugin, Turn
from nodeplug.dra.values import Share
from nodeplug.hosting.front import Front
from nodeplug.pb import dra_v1_pb2 as pb


@pytest.fixture
def driver(tmp_path: Path) -> Prepared:
    return Prepared(tmp_path)


def turn() -> Turn:
    """It is this daemon's."""
    found = Turn()
    found.comes.set()
    return found


def test_a_claim_gets_as_many_units_as_its_amount_needs_and_the_answer_echoes_its_share(driver: Prepared) -> None:
    driver.put("one", result("a", "1500Mi"))
    (device,) = asyncio.run(driver.prepare("one"))
    assert driver.ids("one") == ("a-0", "a-1")
    assert (device.request, device.pool, device.device, device.share_id) == ("gpu", POOL, "a", "share-a")
    assert device.cdi == (f"{DRIVER}/claim=uid-one-gpu",)


def test_two_claims_of_one_card_get_different_units(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("one", result("a", "2Gi"))
        driver.put("two", result("a", "2Gi"))
        await asyncio.gather(driver.prepare("one"), driver.prepare("two"))
        assert {*driver.ids("one")} | {*driver.ids("two")} == {"a-0", "a-1", "a-2", "a-3"}

    asyncio.run(story())


def test_a_claim_that_comes_before_the_former_one_is_unprepared_is_told_who_has_it_and_succeeds_later(
    driver: Prepared,
) -> None:
    async def story() -> None:
        driver.put("former", result("a", "4Gi"))
        driver.put("next", result("a", "4Gi"))
        await driver.prepare("former")
        with pytest.raises(Exhausted, match="0 free of 4 parts, 4 wanted; held by claim ns/former"):
            await driver.prepare("next")
        assert driver.ids("next") == ()
        await driver.unprepare("former")
        await driver.preparation.release()
        await driver.prepare("next")
        assert len(driver.ids("next")) == 4

    asyncio.run(story())


def test_ids_stay_taken_until_the_plugin_has_heard_of_the_end(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("former", result("a", "4Gi"))
        driver.put("next", result("a", "4Gi"))
        await driver.prepare("former")
        driver.plugin.deaf = True
        await driver.unprepare("former")  # no pod waits for a plugin
        await driver.preparation.release()
        with pytest.raises(Exhausted, match="ended, its plugin has not heard of it yet"):
            await driver.prepare("next")
        driver.plugin.deaf = False
        await driver.preparation.release()
        await driver.prepare("next")
        (released,) = driver.plugin.released
        assert released.claim is not None
        assert (released.claim.uid, released.ids) == ("uid-former", ("a-0", "a-1", "a-2", "a-3"))

    asyncio.run(story())


def test_a_repeated_request_has_the_same_ids_and_names_and_asks_the_plugin_again(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("other", result("a", "1Gi"))
        driver.put("one", result("a", "1Gi"))
        await driver.prepare("other")
        first = await driver.prepare("one")
        await driver.unprepare("other")
        await driver.preparation.release()
        later = driver.again()
        assert await later.prepare("one") == first
        assert later.ids("one") == driver.ids("one") == ("a-1",)
        assert [one.ids for one in driver.plugin.allocated] == [("a-0",), ("a-1",), ("a-1",)]

    asyncio.run(story())


def test_a_claim_whose_plugin_refuses_keeps_its_ids_for_the_next_try_also_after_a_kill(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("one", result("a", "2Gi"))
        driver.plugin.refuses = "the driver is busy"
        with pytest.raises(TryAgain, match="the driver is busy"):
            await driver.prepare("one")
        later = driver.again()
        driver.plugin.refuses = ""
        await later.prepare("one")
        assert later.ids("one") == ("a-0", "a-1")

    asyncio.run(story())


def test_the_end_of_a_claim_is_known_after_a_kill_and_the_plugin_hears_of_it_then(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("one", result("a", "1Gi"))
        await driver.prepare("one")
        driver.plugin.deaf = True
        await driver.unprepare("one")
        later = driver.again()
        driver.plugin.deaf = False
        await later.preparation.release()
        assert (len(driver.plugin.released), later.ledger.records) == (1, {})
        assert later.journal.entries() == ()

    asyncio.run(story())


def test_the_end_of_an_unknown_claim_succeeds(driver: Prepared) -> None:
    asyncio.run(driver.unprepare("never"))


def test_a_claim_that_was_allocated_anew_gives_back_what_it_had_first(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("one", result("a", "2Gi"))
        await driver.prepare("one")
        driver.put("one", result("b", "1Gi"))
        await driver.prepare("one")
        assert driver.ids("one") == ("b-0",)
        assert [one.ids for one in driver.plugin.released] == [("a-0", "a-1")]

    asyncio.run(story())


def test_a_claim_of_the_same_name_and_another_uid_is_refused(driver: Prepared) -> None:
    driver.put("one", result("a", "1Gi"), uid="uid-later")
    with pytest.raises(NotFound, match="was replaced"):
        asyncio.run(driver.prepare("one"))


def test_a_claim_without_an_allocation_is_tried_later(driver: Prepared) -> None:
    driver.put("one")
    with pytest.raises(NotReady, match="is not allocated"):
        asyncio.run(driver.prepare("one"))


def test_a_claim_for_observation_sees_the_whole_device_and_takes_nothing(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("watcher", result("a", adminAccess=True))
        driver.put("one", result("a", "4Gi"))
        await driver.prepare("watcher")
        await driver.prepare("one")
        assert len(driver.ids("one")) == len(driver.ids("watcher")) == 4

    asyncio.run(story())


def test_units_that_containers_of_device_plugins_hold_are_not_given_to_claims(driver: Prepared) -> None:
    driver.elsewhere.update(map(DeviceId, ("a-0", "a-2")))
    driver.put("one", result("a", "2Gi"))
    asyncio.run(driver.prepare("one"))
    assert driver.ids("one") == ("a-1", "a-3")


def test_nothing_is_chosen_before_it_is_known_what_containers_hold(driver: Prepared) -> None:
    driver.put("one", result("a", "1Gi"))
    driver.unsettled = "kubelet has not been asked since"
    with pytest.raises(NotReady, match="kubelet has not been asked since"):
        asyncio.run(driver.prepare("one"))
    assert driver.ledger.records == {}


def test_a_device_that_cannot_serve_gets_no_new_claim_and_the_reason_is_told(driver: Prepared) -> None:
    driver.plugin.listed = [Device(DeviceId("a"), healthy=False, reason="XID 79"), *units("b", 4)]
    driver.put("one", result("a"))
    with pytest.raises(NotReady, match=r"device a of pool node-1/example.com/mem cannot serve: XID 79"):
        asyncio.run(driver.prepare("one"))


def test_a_device_that_is_gone_is_named(driver: Prepared) -> None:
    driver.put("one", result("c", "1Gi"))
    with pytest.raises(NotFound, match=r"device c of pool node-1/example.com/mem is gone"):
        asyncio.run(driver.prepare("one"))


def test_several_devices_of_one_request_are_granted_at_once_and_have_one_cdi_device(driver: Prepared) -> None:
    driver.put("one", result("a", "1Gi"), result("b", "1Gi"), result("b", "1Gi", request="more/first"))
    devices = asyncio.run(driver.prepare("one"))
    assert [one.ids for one in driver.plugin.allocated] == [("a-0", "b-0"), ("b-1",)]
    assert [one.cdi for one in devices] == [
        (f"{DRIVER}/claim=uid-one-gpu",),
        (f"{DRIVER}/claim=uid-one-gpu",),
        (f"{DRIVER}/claim=uid-one-more.first",),
    ]


def test_parameters_reach_the_plugin_for_the_requests_that_they_are_for(driver: Prepared) -> None:
    def opaque(value: int, *requests: str, of: str = DRIVER) -> dict[str, object]:
        return {"requests": [*requests], "opaque": {"driver": of, "parameters": {"value": value}}}

    config = [opaque(1), opaque(2, "gpu"), opaque(3, "other"), opaque(4, of="somebody.else")]
    driver.put("one", result("a", "1Gi"), config=config)
    asyncio.run(driver.prepare("one"))
    (request,) = driver.plugin.allocated
    assert [dict(one) for one in request.config] == [{"value": 1}, {"value": 2}]


def test_results_of_other_drivers_are_passed_over(driver: Prepared) -> None:
    foreign = {**result("a"), "driver": "somebody.else"}
    driver.put("one", foreign, result("b", "1Gi"))
    devices = asyncio.run(driver.prepare("one"))
    assert [one.device for one in devices] == ["b"]


def test_a_claim_that_cannot_be_written_down_takes_nothing(driver: Prepared) -> None:
    driver.put("one", result("a", "1Gi"))
    driver.journal.folder.parent.joinpath("journal").write_text("in the way")
    with pytest.raises(PluginError):
        asyncio.run(driver.prepare("one"))
    assert driver.ledger.records == {}
    assert driver.plugin.allocated == []


def test_a_spec_that_was_lost_is_written_again_and_a_strangers_stays(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("one", result("a", "1Gi"))
        await driver.prepare("one")
        (spec,) = driver.specs.iterdir()
        before = spec.read_bytes()
        spec.unlink()
        ours, other = driver.specs / f"{DRIVER}-claim_gone.json", driver.specs / "vendor.json"
        ours.touch()
        other.touch()
        await driver.preparation.restore()
        assert spec.read_bytes() == before
        assert {*driver.specs.iterdir()} == {spec, other}

    asyncio.run(story())


def test_the_spec_of_a_claim_has_what_its_plugin_has_granted_and_goes_with_it(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("one", result("a", "2Gi"))
        await driver.prepare("one")
        (path,) = driver.specs.iterdir()
        assert json.loads(path.read_text()) == {
            "cdiVersion": "0.5.0",
            "kind": f"{DRIVER}/claim",
            "devices": [{"name": "uid-one-gpu", "containerEdits": {"env": ["UNITS=a-0,a-1"]}}],
        }
        await driver.unprepare("one")
        assert not [*driver.specs.iterdir()]

    asyncio.run(story())


def test_a_share_without_an_amount_is_all_of_its_device(driver: Prepared) -> None:
    (device,) = [one for one in driver.pools()[POOL].devices if one.name == "a"]
    assert len(driver.ledger.choose(device, Share("gpu", POOL, "a"), ())) == 4


def test_a_claim_that_is_prepared_again_is_not_released_by_the_end_that_came_before(driver: Prepared) -> None:
    async def story() -> None:
        for name in ("slow", "again"):
            driver.put(name, result("a", "2Gi"))
            await driver.prepare(name)
            await driver.unprepare(name)
        async with driver.preparation._lock("uid-slow"):  # somebody is at the first one
            releasing = asyncio.create_task(driver.preparation.release())
            await asyncio.sleep(0)
            await driver.prepare("again")
            ids = driver.ids("again")
        await releasing
        assert driver.ids("again") == ids != ()
        driver.put("other", result("a", "2Gi"))
        await driver.prepare("other")
        assert not {*ids} & {*driver.ids("other")}

    asyncio.run(story())


def test_all_calls_about_a_claim_have_one_key_so_that_a_release_waits_for_an_allocation_that_is_overdue(
    driver: Prepared,
) -> None:
    async def story() -> None:
        driver.put("one", result("a", "1Gi"))
        plugin = DraPlugin(driver.preparation, Front(driver.preparation.runner), turn())
        named = [pb.Claim(uid="uid-one", namespace="ns", name="one")]
        answer = await plugin.NodePrepareResources(pb.NodePrepareResourcesRequest(claims=named), None)
        assert not answer.claims["uid-one"].error
        await plugin.NodeUnprepareResources(pb.NodeUnprepareResourcesRequest(claims=named), None)
        await driver.preparation.release()

    asyncio.run(story())
    assert len(driver.plugin.released) == 1
    assert {*driver.keys} == {f"{DRIVER}:uid-one"}


def test_a_request_that_its_caller_gives_up_goes_on_to_its_end(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("one", result("a", "1Gi"))
        plugin = DraPlugin(driver.preparation, Front(driver.preparation.runner), turn())
        named = [pb.Claim(uid="uid-one", namespace="ns", name="one")]
        lock = driver.preparation._lock("uid-one")
        async with lock:
            asked = asyncio.create_task(plugin.NodePrepareResources(pb.NodePrepareResourcesRequest(claims=named), None))
            await asyncio.sleep(0.01)
            asked.cancel()
        while not driver.ids("one") or not [*driver.specs.glob("*.json")]:
            await asyncio.sleep(0.01)
        assert driver.ledger.records["cards uid-one"].phase == "prepared"

    asyncio.run(story())


def test_ids_stay_taken_while_their_plugin_is_not_loaded(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("one", result("a", "1Gi"))
        await driver.prepare("one")
        driver.registry.exchange(["cards"], [])
        driver.awaited = True
        await driver.unprepare("one")
        await driver.preparation.release()
        assert driver.ids("one") == ("a-0",)
        driver.awaited = False  # its section is gone: nobody has to hear of it
        await driver.preparation.release()
        assert driver.ledger.records == {}

    asyncio.run(story())


def test_the_end_of_a_claim_removes_a_record_that_nobody_remembers(driver: Prepared) -> None:
    async def story() -> None:
        driver.put("one", result("a", "1Gi"))
        await driver.prepare("one")
        driver.ledger.forget("cards uid-one")
        await driver.unprepare("one")
        assert driver.journal.entries() == ()

    asyncio.run(story())


def test_a_record_of_a_later_version_with_more_in_it_is_read(driver: Prepared) -> None:
    driver.put("one", result("a", "1Gi"))
    asyncio.run(driver.prepare("one"))
    (entry,) = driver.journal.entries()
    entry.data["held"][0]["share"]["later"] = True
    entry.data["claim"]["later"] = True
    assert read_record(entry) == driver.ledger.records["cards uid-one"]


def test_kubelet_gets_the_request_of_a_subrequest() -> None:
    (device,) = encode_prepared([PreparedDevice("main/first", "pool", "a", ())]).devices
    assert list(device.request_names) == ["main"]


def test_a_capacity_with_a_domain_is_one_of_the_device(driver: Prepared) -> None:
    name = "example.com/memory"
    driver.plugin.listed = [Device(DeviceId(f"a-{n}"), part=Part(DeviceId("a"), {name: GIB})) for n in range(4)]
    consumed = {"consumedCapacity": {name: "2Gi"}}
    driver.put("one", result("a") | consumed)
    asyncio.run(driver.prepare("one"))
    assert len(driver.ids("one")) == 2
