"""What the server has stored, against what it was sent: what counts, what has vanished, and what is to be written."""

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nodeplug import Device, DeviceId, Part, ResourceName
from nodeplug.dra.pools import pool_of
from nodeplug.dra.slices import slices_of
from nodeplug.dra.stored import Changes, Difference, changes, difference, generation_after

Slices = list[dict[str, Any]]
MEMORY = ResourceName("example.com/gpu-mem")
PART = Part(DeviceId("card"), {"memory": 1 << 30})
CARDS = [
    *(Device(DeviceId(f"card-{number}"), part=PART) for number in range(4)),
    Device(DeviceId("ill"), healthy=False, reason="XID 79", attributes={"model": "H100", "on": False, "zero": 0}),
]


def wanted(devices: Sequence[Device] = CARDS, resource: str = MEMORY, generation: int = 1) -> Slices:
    pool = pool_of("node-1", ResourceName(resource), devices)
    return slices_of("gpu.nodeplug.io", "node-1", "uid", pool, generation, "NoSchedule")


def stored(slices: Slices) -> Slices:
    """Return slices as a server has them: with what it adds, without what is empty."""
    found: Slices = copy.deepcopy(slices)
    for number, one in enumerate(found):
        one["metadata"] |= {
            "uid": f"u{number}",
            "resourceVersion": str(100 + number),
            "generation": 1,
            "managedFields": [],
        }
        if not one["spec"]["devices"]:
            del one["spec"]["devices"]
        for device in one["spec"].get("devices", []):
            for taint in device.get("taints", []):
                taint["timeAdded"] = "2026-11-26T16:00:00Z"
    return found


def first(slices: Slices) -> dict[str, Any]:
    device: dict[str, Any] = slices[0]["spec"]["devices"][0]
    return device


def many(count: int) -> list[Device]:
    return [Device(DeviceId(f"d{number}")) for number in range(count)]


def versions(slices: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(one["metadata"].get("resourceVersion", ""), one["spec"]["pool"]["generation"]) for one in slices]


def test_what_a_server_adds_is_no_difference() -> None:
    assert not difference(wanted(), stored(wanted()))
    assert difference(wanted(), stored(wanted())).sentence == ""


def test_an_empty_pool_is_stored_without_the_field() -> None:
    assert not difference(wanted([]), stored(wanted([])))


def test_a_default_that_a_later_server_adds_is_no_difference() -> None:
    there = stored(wanted())
    first(there)["somethingNew"] = {"a": 1}
    there[0]["spec"]["perDevice"] = "x"
    assert not difference(wanted(), there)


def test_a_quantity_may_be_written_in_another_way() -> None:
    there = stored(wanted())
    first(there)["capacity"]["memory"]["value"] = str(4 << 30)
    assert not difference(wanted(), there)


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda one: one["capacity"]["memory"].update(value="8Gi"), "memory.value was sent as '4Gi' and is '8Gi'"),
        (lambda one: one["capacity"].update(more={"value": "1"}), "more was sent as None and is {'value': '1'}"),
        (lambda one: one["attributes"].update(x={"int": 0}), "attributes.x was sent as None and is {'int': 0}"),
        (lambda one: one["attributes"].pop("resource"), "resource was sent as {'string': 'example.com/gpu-mem'}"),
        (lambda one: one["attributes"].update(resource={"bool": True}), "attributes.resource.string was sent as"),
        (lambda one: one.update(taints=[{"key": "a", "effect": "None"}]), "card.taints was sent as None"),
        (lambda one: one.update(name="other"), "other"),
    ],
)  # fmt: skip
def test_what_somebody_has_changed_is_a_difference(change: Change, told: str) -> None:
    there = stored(wanted())
    change(first(there))
    found = difference(wanted(), there)
    assert found.dropped == ()
    assert any(told in one for one in found.others)
    assert "stored otherwise than they were sent: 0000-" in found.sentence


def test_a_whole_device_that_somebody_made_a_shared_one_is_a_difference() -> None:
    there = stored(wanted(many(1)))
    first(there)["allowMultipleAllocations"] = True
    assert difference(wanted(many(1)), there).others


def test_another_order_of_devices_is_a_difference() -> None:
    there = stored(wanted())
    there[0]["spec"]["devices"].reverse()
    assert difference(wanted(), there).others


def test_a_slice_that_is_not_there_is_a_difference() -> None:
    assert difference(wanted(), []).others == (f"{wanted()[0]['metadata']['name']} is not there",)


def test_many_differences_are_told_in_a_few_words() -> None:
    there = stored(wanted(many(60)))
    for device in there[0]["spec"]["devices"]:
        device["attributes"] = {}
    assert difference(wanted(many(60)), there).sentence.endswith(" and 55 more")


def test_a_cluster_that_cannot_share_is_told_from_what_has_vanished() -> None:
    there = stored(wanted())
    del first(there)["allowMultipleAllocations"]
    del first(there)["capacity"]["memory"]["requestPolicy"]
    found = difference(wanted(), there)
    assert set(found.dropped) == {"allowMultipleAllocations", "requestPolicy"}
    assert found.others == ()
    assert found.unshared
    assert "feature gate DRAConsumableCapacity (on by default from Kubernetes 1.36 on) is off" in found.sentence
    assert "a claim for a part would get all of it" in found.sentence


def test_a_cluster_without_taints_is_told_and_shares_all_the_same() -> None:
    there = stored(wanted())
    del there[0]["spec"]["devices"][1]["taints"]
    found = difference(wanted(), there)
    assert found == Difference(dropped=("taints",))
    assert not found.unshared
    assert "DRADeviceTaints" in found.sentence


def test_what_is_stored_as_it_is_wanted_is_not_written() -> None:
    assert not changes(wanted(generation=1), stored(wanted(generation=9)))


def test_a_first_pool_is_created_in_the_first_generation() -> None:
    made = changes(wanted(many(70)), [])
    assert (versions(made.create), made.replace, made.delete) == ([("", 1), ("", 1)], (), ())


def test_a_change_in_one_slice_writes_all_in_a_higher_generation_over_the_versions_that_are_there() -> None:
    there = stored(wanted(many(130), generation=4))
    ill = [*many(129), Device(DeviceId("d129"), healthy=False)]
    made = changes(wanted(ill), there)
    assert (made.create, made.delete) == ((), ())
    assert versions(made.replace) == [("100", 5), ("101", 5), ("102", 5)]


def test_a_pool_that_grows_and_shrinks_creates_and_deletes_slices() -> None:
    grown = changes(wanted(many(70)), stored(wanted(many(60), generation=2)))
    assert (versions(grown.create), versions(grown.replace), grown.delete) == ([("", 3)], [("100", 3)], ())
    shrunk = changes(wanted(many(60)), stored(wanted(many(70), generation=2)))
    assert (shrunk.create, versions(shrunk.replace)) == ((), [("100", 3)])
    assert shrunk.delete == (wanted(many(70))[1]["metadata"]["name"],)


def test_a_slice_that_somebody_deleted_comes_back_in_the_generation_of_the_others() -> None:
    made = changes(wanted(many(130)), stored(wanted(many(130), generation=6))[1:])
    assert (versions(made.create), made.replace, made.delete) == ([("", 6)], (), ())


def test_slices_of_several_generations_are_all_written_anew() -> None:
    """A daemon was killed while it wrote."""
    there = [stored(wanted(many(70), generation=6))[0], stored(wanted(many(70), generation=5))[1]]
    assert [one[1] for one in versions(changes(wanted(many(70)), there).replace)] == [7, 7]


def test_a_pool_that_is_not_wanted_any_more_goes() -> None:
    gone = stored(wanted(many(1), "example.com/gone"))
    made = changes(wanted(), [*stored(wanted()), *gone])
    assert made == Changes(delete=(gone[0]["metadata"]["name"],))


def test_pools_have_generations_of_their_own() -> None:
    there = [*stored(wanted(many(1), "example.com/a", 3)), *stored(wanted(many(1), "example.com/b", 8))]
    made = changes([*wanted(many(1), "example.com/a"), *wanted(many(2), "example.com/b")], there)
    assert [one[1] for one in versions(made.replace)] == [9]


def test_what_is_wanted_is_left_as_it_is() -> None:
    before, there = wanted(many(70)), stored(wanted(many(60), generation=3))
    texts = [json.dumps(one) for one in (before, there)]
    changes(before, there)
    assert [json.dumps(one) for one in (before, there)] == texts


def test_a_new_owner_is_written() -> None:
    """The Node was made anew: its slices would go with the old one."""
    there = stored(wanted())
    there[0]["metadata"]["ownerReferences"][0]["uid"] = "former"
    assert changes(wanted(), there).replace


def test_the_next_generation_is_above_all() -> None:
    assert generation_after([]) == 1
    assert generation_after([*wanted(generation=3), *wanted(generation=7)]) == 8


def test_a_taint_that_stays_keeps_its_time_when_its_slice_is_written_again() -> None:
    there = stored(wanted())
    more = [*CARDS, Device(DeviceId("late"), healthy=False, reason="XID 31")]
    (replaced,) = changes(wanted(more), there).replace
    times = {one["name"]: [it.get("timeAdded") for it in one.get("taints", ())] for one in replaced["spec"]["devices"]}
    assert times == {"card": [], "ill": ["2026-11-26T16:00:00Z"], "late": [None]}
