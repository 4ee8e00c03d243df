"""Pools from device lists: what is one device for the scheduler, and how much of it may be promised."""

import random
import re
from collections.abc import Sequence

import pytest

from nodeplug import Device, DeviceId, InvalidRequest, Part, ResourceName
from nodeplug.dra.pools import pool_of, without_unusable
from nodeplug.dra.values import TAKEN, PoolDevice, ids_of

MEMORY = ResourceName("example.com/gpu-mem")
GI = 1 << 30


def unit(card: str, number: int, *, healthy: bool = True, size: int = GI, withheld: bool = False) -> Device:
    part = Part(DeviceId(card), {"memory": size})
    reason = "" if healthy else "XID 79"
    return Device(DeviceId(f"{card}-{number}"), healthy=healthy, reason=reason, part=part, withheld=withheld)


def units(card: str, count: int, ill: Sequence[int] = ()) -> list[Device]:
    return [unit(card, number, healthy=number not in ill) for number in range(count)]


def whole(name: str, *, healthy: bool = True, reason: str = "") -> Device:
    return Device(DeviceId(name), healthy=healthy, reason=reason)


def only(devices: Sequence[Device], *, taken: Sequence[str] = (), held: Sequence[str] = ()) -> PoolDevice:
    found = pool_of("node-1", MEMORY, devices, {*map(DeviceId, taken)}, {*map(DeviceId, held)})
    (one,) = found.devices
    return one


def test_parts_of_one_thing_are_one_device() -> None:
    one = only(units("card", 3))
    assert (one.name, one.shared, one.amount) == ("card", True, {"memory": GI})
    assert ids_of(one.devices) == ("card-0", "card-1", "card-2")


def test_a_device_that_is_no_part_is_a_device() -> None:
    one = only([whole("card")])
    assert (one.name, one.shared, one.devices) == ("card", False, (whole("card"),))


def test_the_pool_names_node_and_resource() -> None:
    assert pool_of("node-1", MEMORY, []).name == "node-1/example.com/gpu-mem"


def test_devices_come_in_the_order_in_which_they_are_listed() -> None:
    listed = [unit("b", 0), whole("c"), unit("a", 0), unit("b", 1)]
    assert [one.name for one in pool_of("n", MEMORY, listed).devices] == ["b", "c", "a"]


def test_the_device_with_most_free_parts_comes_first_if_that_is_asked_for() -> None:
    listed = [*units("a", 4), *units("b", 4, ill=[0]), *units("c", 4), *units("d", 4)]
    found = pool_of("n", MEMORY, listed, {DeviceId("a-0"), DeviceId("a-1")}, {DeviceId("c-3")}, order="most-free-first")
    assert [one.name for one in found.devices] == ["d", "b", "c", "a"]


def test_an_unhealthy_part_is_not_usable() -> None:
    assert ids_of(only(units("card", 3, ill=[1])).usable) == ("card-0", "card-2")


def test_a_part_that_is_withheld_from_kubelet_is_usable_by_a_claim() -> None:
    assert ids_of(only([unit("card", 0, healthy=False, withheld=True)]).usable) == ("card-0",)


def test_a_part_that_a_container_of_a_device_plugin_holds_is_not_usable() -> None:
    one = only(units("card", 3), taken=["card-1"])
    assert ids_of(one.usable) == ids_of(one.counted) == ("card-0", "card-2")


def test_an_unhealthy_part_that_a_claim_holds_still_counts_as_the_scheduler_subtracts_it() -> None:
    one = only(units("card", 4, ill=[0, 1]), held=["card-0"])
    assert ids_of(one.counted) == ("card-0", "card-2", "card-3")
    assert ids_of(one.free) == ("card-2", "card-3")


def test_a_device_without_a_usable_part_says_why() -> None:
    assert only(units("card", 2, ill=[0, 1])).reason == "XID 79"
    assert only([whole("card", healthy=False)]).reason == "no reason is given"
    assert only([whole("card")], taken=["card"]).reason == TAKEN
    assert only(units("card", 2, ill=[0]), taken=["card-1"]).reason == "XID 79"


def test_a_device_with_a_usable_part_has_no_reason() -> None:
    assert only(units("card", 2, ill=[0])).reason == ""


def test_a_cluster_without_taints_is_not_told_of_what_is_not_usable() -> None:
    listed = [whole("a", healthy=False), whole("b"), *units("c", 2, ill=[0, 1]), *units("d", 2, ill=[0])]
    assert [one.name for one in without_unusable(pool_of("n", MEMORY, listed)).devices] == ["b", "d"]


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ([whole("a"), whole("a")], "lists 'a' twice"),
        ([unit("card", 0), unit("card", 0)], "lists 'card-0' twice"),
        ([whole("card"), unit("card", 0)], "lists device 'card' and parts of 'card', which are both 'card'"),
        ([unit("card", 0), unit("card", 1, size=2 * GI)], "differ in size: 'card-0' has 1073741824 of memory, and"),
        ([unit("card", 0, size=0)], "have 0 of memory each: it must be at least 1"),
        ([unit("card", 0, size=1 << 62), unit("card", 1, size=1 << 62)], "their sum below 2^63"),
        ([Device(DeviceId("a"), part=Part(DeviceId("card"), {}))], "have 0 amounts (none), and one is needed"),
        ([Device(DeviceId("a"), part=Part(DeviceId("card"), {"x": 1, "y": 1}))], "have 2 amounts (x, y), and one"),
        (
            [
                Device(DeviceId("a"), part=Part(DeviceId("card"), {"x": 1}), capacity={"cores": 8}),
                Device(DeviceId("b"), part=Part(DeviceId("card"), {"x": 1})),
            ],
            "differ in the capacity of the whole: 'a' has 8 of cores, and 'b' has none",
        ),
    ],
)
def test_a_list_of_which_no_true_promise_can_be_made_is_refused(listed: list[Device], words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        pool_of("node-1", MEMORY, listed)


def test_two_names_that_would_be_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which digests prevent, and nobody else would notice."""
    monkeypatch.setattr("nodeplug.dra.pools.device_name", lambda _: "same")
    with pytest.raises(InvalidRequest, match="lists device 'a' and device 'b', which are both 'same'"):
        pool_of("node-1", MEMORY, [whole("a"), whole("b")])


def test_of_any_list_each_part_that_may_be_promised_is_counted_once() -> None:
    rng = random.Random(15)
    for _ in range(200):
        listed = [
            unit(f"card{card}", number, healthy=rng.random() < 0.7, withheld=rng.random() < 0.2)
            for card in range(rng.randint(0, 5))
            for number in range(rng.randint(1, 12))
        ]
        rng.shuffle(listed)
        ids = [one.id for one in listed]
        taken = {one for one in ids if rng.random() < 0.2}
        held = {one for one in ids if rng.random() < 0.2} - taken
        found = pool_of("n", MEMORY, listed, taken, held, order=rng.choice(["listed", "most-free-first"])).devices
        assert sorted(one for device in found for one in ids_of(device.devices)) == sorted(ids)
        may = {one.id for one in listed if (one.healthy or one.withheld) and one.id not in taken}
        assert {one for device in found for one in ids_of(device.free)} == may - held
        assert sorted(one for device in found for one in ids_of(device.counted)) == sorted(may | held)
