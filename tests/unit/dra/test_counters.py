"""Devices that overlap: which lists can be true, what slices say of them, and what a server must have stored."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.dra.overlapping import ALL, GI, SMALL, instances, parts, whole

from nodeplug import Counters, Device, DeviceId, InvalidRequest, Part, ResourceName
from nodeplug.dra.pools import pool_of, without_overlapping, without_unusable
from nodeplug.dra.slices import slices_of
from nodeplug.dra.stored import changes, difference
from nodeplug.dra.values import Pool

CARD = ResourceName("example.com/card")
Slices = list[dict[str, Any]]


def pool(devices: Sequence[Device], *, taken: Sequence[str] = (), held: Sequence[str] = ()) -> Pool:
    return pool_of("node-1", CARD, devices, {*map(DeviceId, taken)}, {*map(DeviceId, held)})


def written(made: Pool) -> Slices:
    return slices_of("gpu.nodeplug.io", "node-1", "uid", made, 1, "NoSchedule")


def one(name: str, of: str, available: Mapping[str, Any], consumed: Mapping[str, Any], part: str = "") -> Device:
    return Device(
        DeviceId(name),
        counters=Counters(of, available, consumed),
        part=Part(DeviceId(part), {"memory": GI}) if part else None,
    )


# --- lists


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (
            [one("a", "card", {"x": 2}, {"x": 1}), one("b", "card", {"x": 3}, {"x": 1})],
            "counter set 'card' that example.com/card lists differ in what is available: 'a' has 2 of x, and 'b' has 3",
        ),
        ([one("a", "card", {"x": 2}, {"x": 3})], "'a', which consumes 3 of x of counter set 'card', which has 2 of x"),
        ([one("a", "card", {"x": 2}, {"y": 1})], "'a', which consumes 1 of y of counter set 'card', which has 2 of x"),
        ([one("a", "card", {"x": 2}, {"x": -1})], "'a', which consumes -1 of x of counter set 'card'"),
        ([one("a", "card", {"x": 2}, {"x": 0})], "'a', which consumes nothing of counter set 'card': a device that"),
        ([one("a", "card", {"x": 2}, {})], "'a', which consumes nothing of counter set 'card'"),
        ([one("a", "card", {"x": -2}, {"x": 1})], "counter set 'card' that example.com/card lists has -2 of x"),
        ([one("a", "card", {"x": 1 << 63}, {"x": 1})], "it must be a whole number from 0, and below 2^63"),
        ([one("a", "card", {"x": "2Gi"}, {"x": 1})], "has '2Gi' of x: it must be a whole number"),
        ([one("a", "card", {}, {})], "has 0 counters: there must be one, and at most 32"),
        ([one("a", "card", dict.fromkeys(map(str, range(33)), 1), {"1": 1})], "has 33 counters"),
        (
            [one("a", "card", {"x": 2}, {"x": 1}, "whole"), one("b", "card", {"x": 2}, {"x": 2}, "whole")],
            "differ in what the whole consumes: 'a' has 1 of x of 'card', and 'b' has 2 of x of 'card'",
        ),
        (
            [
                one("a", "card", {"x": 2}, {"x": 1}, "whole"),
                Device(DeviceId("b"), part=Part(DeviceId("whole"), {"memory": GI})),
            ],
            "differ in what the whole consumes: 'a' has 1 of x of 'card', and 'b' has none",
        ),
    ],
)
def test_a_list_that_cannot_be_true_of_a_counter_set_is_refused(listed: list[Device], words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        pool(listed)


def test_sets_and_counters_that_would_have_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which digests prevent, and nobody else would notice."""
    monkeypatch.setattr("nodeplug.dra.counters.counter_name", lambda _: "same")
    with pytest.raises(InvalidRequest, match="lists counter sets 'a' and 'b', which are both 'same'"):
        pool([one("a", "a", {"x": 2}, {"x": 1}), one("b", "b", {"x": 2}, {"x": 1})])
    with pytest.raises(InvalidRequest, match="has counters 'x' and 'y', which are both 'same'"):
        pool([one("a", "a", {"x": 2, "y": 2}, {"x": 1})])


def test_a_cluster_that_does_not_count_is_told_of_no_device_that_overlaps() -> None:
    made = pool([whole(), *instances(), Device(DeviceId("other"))])
    assert [device.name for device in without_overlapping(made).devices] == ["other"]


def test_an_ill_device_that_a_claim_has_stays_where_what_it_takes_is_counted() -> None:
    ill = one("ill", "card", ALL, SMALL)
    ill = Device(ill.id, healthy=False, counters=ill.counters)
    assert [device.name for device in without_unusable(pool([ill, whole()], held=["ill"])).devices] == ["ill", "card"]
    assert [device.name for device in without_unusable(pool([ill, whole()])).devices] == ["card"]


# --- slices


def test_a_device_says_what_it_consumes_and_its_set_is_in_a_slice_without_devices() -> None:
    devices, sets = (found["spec"] for found in written(pool([whole(), *instances(count=1)])))
    assert devices["devices"][0]["consumesCounters"] == [
        {"counterSet": "card", "counters": {"memory": {"value": "8Gi"}, "slices": {"value": "7"}}}
    ]
    assert devices["devices"][1]["consumesCounters"] == [
        {"counterSet": "card", "counters": {"memory": {"value": "1Gi"}, "slices": {"value": "1"}}}
    ]
    assert sets["sharedCounters"] == [
        {"name": "card", "counters": {"memory": {"value": "8Gi"}, "slices": {"value": "7"}}}
    ]
    assert "devices" not in sets  # the server refuses even an empty list there
    assert "sharedCounters" not in devices
    assert [found["pool"]["resourceSliceCount"] for found in (devices, sets)] == [2, 2]


def test_the_parts_of_a_card_are_one_device_that_consumes_once() -> None:
    made = written(pool([*parts(), *instances()]))[0]["spec"]["devices"]
    assert [device.get("allowMultipleAllocations") for device in made] == [True, *[None] * 7]
    assert made[0]["consumesCounters"][0]["counters"]["memory"] == {"value": "8Gi"}


def test_nine_sets_are_in_two_slices_behind_those_of_devices() -> None:
    made = written(pool([one for card in range(9) for one in [whole(f"c{card}"), *instances(f"c{card}")]]))
    assert [(len(s["spec"].get("devices", ())), len(s["spec"].get("sharedCounters", ()))) for s in made] == [
        (64, 0),
        (8, 0),
        (0, 8),
        (0, 1),
    ]
    assert sorted(made, key=lambda found: str(found["metadata"]["name"])) == made


def test_names_that_are_no_labels_get_such_and_devices_and_sets_have_the_same() -> None:
    available = {"multiprocessor_count": 132, "Memory": 80 * GI}
    devices, sets = (found["spec"] for found in written(pool([one("a", "GPU-3f2a", available, available)])))
    (known,), (consumed,) = sets["sharedCounters"], devices["devices"][0]["consumesCounters"]
    assert (consumed["counterSet"], consumed["counters"]) == (known["name"], known["counters"])
    assert all(
        re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in [known["name"], *known["counters"]]
    )


def test_what_containers_of_device_plugins_hold_is_in_no_counter() -> None:
    _, sets = written(pool([whole(), *instances()], taken=["card-mig-0", "card-mig-1"], held=["card-mig-2"]))
    (known,) = sets["spec"]["sharedCounters"]
    assert known["counters"] == {"memory": {"value": "6Gi"}, "slices": {"value": "5"}}


# --- what is stored


def stored(slices: Slices) -> Slices:
    found = copy.deepcopy(slices)
    for number, made in enumerate(found):
        made["metadata"]["resourceVersion"] = str(number)
    return found


def test_a_shared_card_of_which_a_container_has_a_part_consumes_its_set_once() -> None:
    made = written(pool([*parts("shared"), *instances()], taken=["shared-0"]))
    device = made[0]["spec"]["devices"][0]
    (counted,) = [of for one in made for of in one["spec"].get("sharedCounters", ())]
    assert (device["name"], "consumesCounters" in device) == ("shared", False)
    assert counted["counters"]["slices"]["value"] == "0"


def test_a_set_lacks_what_containers_have_of_devices_that_are_left_out() -> None:
    listed = pool([whole(), *instances()], taken=["card-mig-0"])
    fitting = without_unusable(listed)
    out = [one for one in listed.devices if one not in fitting.devices]
    made = slices_of("gpu.nodeplug.io", "node-1", "uid", fitting, 1, "NoSchedule", out)
    (counted,) = [of for one in made for of in one["spec"].get("sharedCounters", ())]
    assert (len(out), counted["counters"]["slices"]["value"]) == (1, "6")


def test_counters_that_are_stored_as_they_were_sent_are_no_difference() -> None:
    sent = written(pool([whole(), *instances()]))
    assert not difference(sent, stored(sent))
    assert not changes(sent, stored(sent))


def test_an_amount_of_a_counter_may_be_written_in_another_way() -> None:
    there = stored(sent := written(pool([whole()])))
    there[0]["spec"]["devices"][0]["consumesCounters"][0]["counters"]["memory"]["value"] = str(8 * GI)
    there[1]["spec"]["sharedCounters"][0]["counters"]["memory"]["value"] = "8192Mi"
    assert not difference(sent, there)


@pytest.mark.parametrize("where", ["device", "set", "more"])
def test_another_amount_of_a_counter_is_a_difference(where: str) -> None:
    there = stored(sent := written(pool([whole()])))
    if where == "device":
        there[0]["spec"]["devices"][0]["consumesCounters"][0]["counters"]["slices"]["value"] = "6"
    elif where == "set":
        there[1]["spec"]["sharedCounters"][0]["counters"]["slices"]["value"] = "6"
    else:
        there[1]["spec"]["sharedCounters"].append({"name": "more", "counters": {"x": {"value": "1"}}})
    found = difference(sent, there)
    assert (bool(found.others), found.dropped) == (True, ())
    assert changes(sent, there).replace


def test_a_server_without_the_gate_is_known_by_what_it_dropped() -> None:
    there = stored(sent := written(pool([*parts(), *instances()])))
    for device in there[0]["spec"]["devices"]:
        del device["consumesCounters"]
    del there[1]["spec"]["sharedCounters"]
    found = difference(sent, there)
    assert (found.uncounted, found.unshared, found.others) == (True, False, ())
    assert "DRAPartitionableDevices" in found.sentence
    assert "devices that overlap would be allocated at once, and are not offered" in found.sentence


def test_a_slice_of_counters_is_replaced_by_one_that_has_no_devices_either() -> None:
    there = stored(written(pool([whole()])))
    there[1]["spec"]["sharedCounters"][0]["counters"]["slices"]["value"] = "6"
    _, sets = changes(written(pool([whole()])), there).replace
    assert json.loads(json.dumps(sets["spec"]))["sharedCounters"][0]["counters"]["slices"] == {"value": "7"}
    assert "devices" not in sets["spec"]
