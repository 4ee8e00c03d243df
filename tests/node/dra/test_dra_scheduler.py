"""The scheduler that is acted out for claims: one sentence for each of kube-scheduler's rules."""

from typing import Any

import pytest
from tests.node.dra.objects import card, slice_of, wants, wants_part

from nodeplug.testing.dra import Pending, ResourceApi, Scheduler

pytestmark = pytest.mark.unprivileged
NO_SCHEDULE = {"key": "acme.example.com/xid", "value": "79", "effect": "NoSchedule"}


def publish(api: ResourceApi, *devices: dict[str, Any], **more: Any) -> None:
    api.create("resourceslices", slice_of(*devices, **more))


def placed(scheduler: Scheduler, name: str, *requests: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Place a pod with one claim, both of this name, and return what it got."""
    scheduler.claim(name, *requests, **more)
    return results(scheduler.place(name, [name])[0])


def results(claim: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = claim["status"]["allocation"]["devices"]["results"]
    return found


def devices(found: list[dict[str, Any]]) -> list[str]:
    return [one["device"] for one in found]


def test_two_claims_share_a_card_and_a_third_waits_until_one_is_gone(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("one"))
    first = placed(scheduler, "a", wants_part("5Gi"))
    second = placed(scheduler, "b", wants_part("3Gi"))
    with pytest.raises(
        Pending, match=r"cannot allocate all claims.*has 0 bytes of memory left, and 2\.?0?Gi are wanted"
    ):
        placed(scheduler, "c", wants_part("2Gi"))
    assert scheduler.retry() == []
    scheduler.free("b")
    assert scheduler.retry() == ["c"]
    assert scheduler.pending == {}
    assert first[0]["shareID"] != second[0]["shareID"]
    assert first[0]["consumedCapacity"] == {"memory": "5Gi"}


def test_an_amount_is_rounded_up_to_the_step(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("one"))
    assert placed(scheduler, "a", wants_part("1500Mi"))[0]["consumedCapacity"] == {"memory": "2Gi"}


def test_without_an_amount_the_default_is_consumed(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("one"))
    assert placed(scheduler, "a", wants())[0]["consumedCapacity"] == {"memory": "8Gi"}


def test_without_a_policy_the_whole_amount_is_consumed_unless_asked(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, {"name": "one", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}})
    assert placed(scheduler, "a", wants_part("1500Mi"))[0]["consumedCapacity"] == {"memory": "1500Mi"}
    with pytest.raises(Pending):
        placed(scheduler, "b", wants())


def test_a_policy_of_nothing_lets_claims_count_nothing(api: ResourceApi, scheduler: Scheduler) -> None:
    policy = {"default": "0", "validRange": {"min": "0"}}
    publish(api, card("one") | {"capacity": {"memory": {"value": "8Gi", "requestPolicy": policy}}})
    found = [placed(scheduler, f"c{number}", wants())[0]["consumedCapacity"] for number in range(20)]
    assert found == [{"memory": "0"}] * 20


def test_the_first_card_in_the_list_is_filled_first(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("z"), card("a"))
    assert [devices(placed(scheduler, f"c{n}", wants_part("4Gi"))) for n in range(3)] == [["z"], ["z"], ["a"]]


def test_slices_are_tried_by_name(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("late"), name="b", pool={"name": "b"})
    publish(api, card("early"), name="a", pool={"name": "a"})
    assert devices(placed(scheduler, "a", wants())) == ["early"]


def test_only_the_highest_generation_of_a_pool_counts(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("old"), name="a")
    publish(api, card("new"), name="b", pool={"generation": 2})
    assert devices(placed(scheduler, "a", wants())) == ["new"]


def test_a_pool_without_all_of_its_slices_is_ignored(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("one"), name="a", pool={"resourceSliceCount": 2})
    with pytest.raises(Pending, match=r"incomplete pool acme\.example\.com/pool: 1 of 2 slices"):
        placed(scheduler, "a", wants())
    publish(api, card("two"), name="b", pool={"resourceSliceCount": 2})
    assert scheduler.retry() == ["a"]


def test_slices_of_other_nodes_do_not_count(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("one"), nodeName="node-2")
    with pytest.raises(Pending):
        placed(scheduler, "a", wants())


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_taint_refuses_new_claims(api: ResourceApi, scheduler: Scheduler, effect: str) -> None:
    publish(api, card("ill", taints=[NO_SCHEDULE | {"effect": effect}]))
    with pytest.raises(Pending, match="has the taint"):
        placed(scheduler, "a", wants())


def test_a_taint_without_effect_refuses_nobody(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("one", taints=[NO_SCHEDULE | {"effect": "None"}]))
    assert devices(placed(scheduler, "a", wants())) == ["one"]


def test_a_claim_that_tolerates_a_taint_gets_the_card(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("ill", taints=[NO_SCHEDULE]))
    tolerations = [{"key": "acme.example.com/xid", "operator": "Exists"}]
    assert devices(placed(scheduler, "a", wants(tolerations=tolerations))) == ["ill"]


def test_a_request_for_two_never_gets_two_shares_of_one_card(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("one"))
    with pytest.raises(Pending):
        placed(scheduler, "a", wants_part("1Gi", count=2))
    api.change("resourceslices", "acme-0", slice_of(card("one"), card("two")))
    assert scheduler.retry() == ["a"]


def test_two_requests_may_share_a_card_unless_they_are_to_differ(api: ResourceApi, scheduler: Scheduler) -> None:
    cards = [card(name, attributes={"uuid": {"string": name}}) for name in ("one", "two")]
    publish(api, *cards)
    both = wants_part("1Gi"), wants_part("1Gi", name="other")
    assert devices(placed(scheduler, "a", *both)) == ["one", "one"]
    apart = [{"distinctAttribute": "acme.example.com/uuid"}]
    assert devices(placed(scheduler, "b", *both, constraints=apart)) == ["one", "two"]


def test_all_requests_of_a_claim_are_served_or_none(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("one"))
    with pytest.raises(Pending):
        placed(scheduler, "a", wants_part("5Gi"), wants_part("5Gi", name="other"))
    assert "status" not in (api.get("resourceclaims", "a", "default") or {})
    assert devices(placed(scheduler, "b", wants())) == ["one"]


def test_a_whole_device_serves_one_claim(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, {"name": "one"})
    found = placed(scheduler, "a", wants())
    assert found == [{"request": "gpu", "driver": "acme.example.com", "pool": "pool", "device": "one"}]
    with pytest.raises(Pending, match="is in use"):
        placed(scheduler, "b", wants())


def test_a_claim_for_observation_gets_a_device_in_use_and_consumes_nothing(
    api: ResourceApi, scheduler: Scheduler
) -> None:
    publish(api, {"name": "one"})
    assert placed(scheduler, "watcher", wants(adminAccess=True))[0]["adminAccess"] is True
    assert devices(placed(scheduler, "a", wants())) == ["one"]
    assert devices(placed(scheduler, "other", wants(adminAccess=True, allocationMode="All"))) == ["one"]


def test_the_first_alternative_that_fits_is_taken(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("one"))
    options = [wants_part(amount, name=name) for name, amount in (("large", "16Gi"), ("small", "2Gi"))]
    available = [{"name": one["name"], **one["exactly"]} for one in options]
    found = placed(scheduler, "a", {"name": "gpu", "firstAvailable": available})
    assert [one["request"] for one in found] == ["gpu/small"]


def test_instances_and_the_shared_card_exclude_each_other_by_counters(api: ResourceApi, scheduler: Scheduler) -> None:
    counters = {"name": "gpu0", "counters": {"slots": {"value": "2"}}}
    whole, part = ([{"counterSet": "gpu0", "counters": {"slots": {"value": size}}}] for size in ("2", "1"))
    instances = [{"name": f"mig-{number}", "consumesCounters": part} for number in range(2)]
    publish(api, name="a", sharedCounters=[counters], pool={"resourceSliceCount": 2})
    publish(api, card("card", consumesCounters=whole), *instances, name="b", pool={"resourceSliceCount": 2})
    first = placed(scheduler, "a", wants_part("3Gi"))
    assert devices([*first, *placed(scheduler, "b", wants_part("5Gi"))]) == ["card", "card"]
    with pytest.raises(Pending, match="others have it"):
        placed(scheduler, "c", wants())
    scheduler.free("a")
    scheduler.free("b")
    whole_card = [{"cel": {"expression": "!device.allowMultipleAllocations"}}]
    assert devices(placed(scheduler, "d", wants(selectors=whole_card))) == ["mig-0"]
    with pytest.raises(Pending, match="others have it"):
        placed(scheduler, "e", wants_part("1Gi"))


def test_an_attribute_that_a_device_lacks_is_an_error_and_not_false(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("one"))
    selectors = [{"cel": {"expression": 'device.attributes["acme.example.com"].model == "a"'}}]
    with pytest.raises(Pending, match="no such key: model"):
        placed(scheduler, "a", wants(selectors=selectors))


def test_what_a_class_and_the_claim_configure_is_in_the_allocation(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, card("one"))
    config = {"opaque": {"driver": "acme.example.com", "parameters": {"a": 1}}}
    scheduler.add_class("configured", "device.allowMultipleAllocations", config=[config])
    scheduler.claim("a", wants(deviceClassName="configured"), config=[{**config, "requests": ["gpu"]}])
    allocation = scheduler.place("a", ["a"])[0]["status"]["allocation"]
    assert [one["source"] for one in allocation["devices"]["config"]] == ["FromClass", "FromClaim"]
    assert allocation["nodeSelector"]


def test_two_pods_share_a_claim_and_the_last_one_frees_it(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, {"name": "one"})
    scheduler.claim("a", wants())
    scheduler.place("p1", ["a"])
    shared = scheduler.place("p2", ["a"])[0]
    assert [user["name"] for user in shared["status"]["reservedFor"]] == ["p1", "p2"]
    scheduler.free("p1")
    assert results(api.get("resourceclaims", "a", "default") or {})
    scheduler.free("p2")
    assert (api.get("resourceclaims", "a", "default") or {})["status"] == {}


def test_a_claim_in_use_is_deleted_with_its_last_pod(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, {"name": "one"})
    placed(scheduler, "a", wants())
    scheduler.delete("a")
    assert api.get("resourceclaims", "a", "default") is not None
    scheduler.free("a")
    assert api.get("resourceclaims", "a", "default") is None


def test_a_forced_deletion_gives_the_device_to_the_next_pod_at_once(api: ResourceApi, scheduler: Scheduler) -> None:
    publish(api, {"name": "one"})
    scheduler.claim("a", wants(), pod="old")
    scheduler.place("old", ["a"])
    scheduler.free("old")  # no kubelet has unprepared anything
    assert api.get("resourceclaims", "a", "default") is None
    assert devices(placed(scheduler, "new", wants())) == ["one"]
