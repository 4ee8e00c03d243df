"""ResourceSlices of a pool: every field, every limit, and never more than can be had."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from nodeplug import AttributeValue, Device, DeviceId, Part, ResourceName
from nodeplug.dra.names import device_name
from nodeplug.dra.pools import pool_of
from nodeplug.dra.slices import Effect, left_out, quantity, slice_name, slices_of
from nodeplug.dra.values import Pool
from nodeplug.fields import parse_quantity

DRIVER, NODE = "gpu.nodeplug.io", "node-1"
MEMORY = ResourceName("example.com/gpu-mem")
GI = 1 << 30
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def pool(devices: Sequence[Device], *, taken: Sequence[str] = (), held: Sequence[str] = ()) -> Pool:
    return pool_of(NODE, MEMORY, devices, {*map(DeviceId, taken)}, {*map(DeviceId, held)})


def written(made: Pool, taint: Effect = "NoSchedule") -> list[dict[str, Any]]:
    return slices_of(DRIVER, NODE, "uid-of-node", made, 7, taint)


def devices_of(slices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [device for one in slices for device in one["spec"]["devices"]]


def device_of(made: Pool, taint: Effect = "NoSchedule") -> dict[str, Any]:
    (only,) = devices_of(written(made, taint))
    return only


def units(card: str, count: int, ill: Sequence[int] = (), amount: int = GI) -> list[Device]:
    part = Part(DeviceId(card), {"memory": amount})
    return [
        Device(DeviceId(f"{card}-{n}"), healthy=n not in ill, reason="XID 79: gone" if n in ill else "", part=part)
        for n in range(count)
    ]


def whole(name: str = "card", **more: Any) -> Device:
    return Device(DeviceId(name), **more)


def test_a_slice_says_whose_it_is() -> None:
    (only,) = written(pool([whole()]))
    assert (only["apiVersion"], only["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
    assert only["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "uid-of-node", "controller": True}
    ]
    assert only["spec"] == {
        "driver": DRIVER,
        "nodeName": NODE,
        "pool": {"name": "node-1/example.com/gpu-mem", "generation": 7, "resourceSliceCount": 1},
        "devices": [{"name": "card", "attributes": {"resource": {"string": MEMORY}}}],
    }


def test_an_empty_pool_is_a_slice_without_devices() -> None:
    (only,) = written(pool([]))
    assert only["spec"]["devices"] == []
    assert only["spec"]["pool"]["resourceSliceCount"] == 1


def test_devices_beyond_64_are_in_further_slices_in_their_order() -> None:
    slices = written(pool([whole(f"d{number}") for number in range(130)]))
    assert [len(one["spec"]["devices"]) for one in slices] == [64, 64, 2]
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in slices} == {3}
    assert sorted(slices, key=lambda one: str(one["metadata"]["name"])) == slices
    assert [one["name"] for one in devices_of(slices)] == [f"d{number}" for number in range(130)]


def test_a_taint_that_comes_moves_no_device_to_another_slice() -> None:
    def places(ill: int) -> list[list[str]]:
        made = pool([whole(f"d{number}", healthy=number != ill) for number in range(200)])
        return [[device["name"] for device in one["spec"]["devices"]] for one in written(made)]

    assert places(-1) == places(100)


def test_parts_are_a_capacity_of_which_claims_get_whole_ones_and_by_default_all() -> None:
    made = device_of(pool(units("card", 16)))
    assert made["allowMultipleAllocations"] is True
    assert made["capacity"] == {
        "memory": {
            "value": "16Gi",
            "requestPolicy": {"default": "16Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
        }
    }


def test_an_unhealthy_part_makes_a_device_smaller_and_taints_nothing() -> None:
    made = device_of(pool(units("card", 16, ill=[3])))
    assert made["capacity"]["memory"]["value"] == made["capacity"]["memory"]["requestPolicy"]["default"] == "15Gi"
    assert "taints" not in made


def test_a_single_part_has_no_step_as_the_server_refuses_one_beyond_the_value() -> None:
    assert device_of(pool(units("card", 1)))["capacity"]["memory"] == {
        "value": "1Gi",
        "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi"}},
    }


def test_a_device_without_a_usable_part_has_nothing_even_for_a_claim_that_names_no_amount() -> None:
    made = device_of(pool(units("card", 2, ill=[0, 1])))
    assert made["capacity"]["memory"] == {"value": "0", "requestPolicy": {"default": "1Gi"}}
    assert made["taints"] == [{"key": "nodeplug.io/unhealthy", "value": "XID-79-gone", "effect": "NoSchedule"}]


def test_what_a_claim_holds_counts_although_it_is_unhealthy() -> None:
    made = device_of(pool(units("card", 2, ill=[0, 1]), held=["card-0"]))
    assert made["capacity"]["memory"]["value"] == "1Gi"
    assert "taints" in made


def test_what_a_container_of_a_device_plugin_holds_is_not_promised() -> None:
    assert device_of(pool(units("card", 4), taken=["card-0"]))["capacity"]["memory"]["value"] == "3Gi"


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", "None"])
def test_an_unhealthy_device_has_a_taint_with_the_effect_that_is_asked_for(effect: Effect) -> None:
    made = device_of(pool([whole(healthy=False, reason="lost: off the bus")]), effect)
    assert made["taints"] == [{"key": "nodeplug.io/unhealthy", "value": "lost-off-the-bus", "effect": effect}]


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", "None"])
def test_a_device_that_others_hold_is_kept_from_claims_whatever_is_asked_for(effect: Effect) -> None:
    """`None` is about devices that may still serve; this one would be given away twice."""
    made = device_of(pool([whole()], taken=["card"]), effect)
    value = "held-by-a-container-of-a-device-plugin"
    assert made["taints"] == [{"key": "nodeplug.io/taken", "value": value, "effect": "NoSchedule"}]


def test_a_whole_device_has_its_capacity_without_a_policy() -> None:
    made = device_of(pool([whole(capacity={"memory": 80 * GI, "cores": 7000})]))
    assert made["capacity"] == {"memory": {"value": "80Gi"}, "cores": {"value": "7k"}}
    assert "allowMultipleAllocations" not in made


def test_a_shared_device_has_no_capacity_but_that_of_its_parts() -> None:
    """A claim that asks for none of another would get all of it, and the next one nothing."""
    part = Part(DeviceId("card"), {"memory": GI})
    made = device_of(pool([whole(f"c{n}", part=part, capacity={"cores": 8}) for n in range(2)]))
    assert set(made["capacity"]) == {"memory"}


def test_attributes_have_the_type_of_their_values() -> None:
    made = device_of(pool([whole(attributes={"model": "H100", "cores": 132, "mig": True, "zero": 0})]))["attributes"]
    assert made == {
        "resource": {"string": MEMORY},
        "model": {"string": "H100"},
        "cores": {"int": 132},
        "mig": {"bool": True},
        "zero": {"int": 0},
    }


def test_a_text_is_cut_at_64_bytes_between_two_characters() -> None:
    made = device_of(pool([whole(attributes={"model": "x" * 63 + "ü", "odd": "\ud800"})]))["attributes"]
    assert made["model"] == {"string": "x" * 63}
    assert made["odd"] == {"string": "?"}


def test_a_name_that_is_no_identifier_becomes_one() -> None:
    made = device_of(pool([whole(attributes={"cuda-version": "13.0"}, capacity={"1st": 1})]))
    assert [re.fullmatch(r"[A-Za-z_]\w{0,31}", one) is not None for one in (*made["attributes"], *made["capacity"])]
    assert "cuda-version" not in made["attributes"]


def test_nobody_but_the_host_says_of_which_resource_a_device_is() -> None:
    assert device_of(pool([whole(attributes={"resource": "other"})]))["attributes"] == {"resource": {"string": MEMORY}}


@pytest.mark.parametrize(("nodes", "found"), [((1,), {"int": 1}), ((), None), ((0, 1), None)])
def test_a_numa_node_is_told_where_there_is_one(nodes: tuple[int, ...], found: object) -> None:
    made = device_of(pool([whole(numa_nodes=nodes)]))["attributes"]
    assert made.get("resource.kubernetes.io/numaNode") == found


def test_a_shared_device_has_the_attributes_that_all_its_parts_share() -> None:
    part = Part(DeviceId("card"), {"memory": GI})
    attributes: list[dict[str, AttributeValue]] = [
        {"model": "H100", "unit": 0, "on": True},
        {"model": "H100", "unit": 1, "on": 1},
    ]
    parts = [whole(f"c{n}", part=part, attributes=one, numa_nodes=(n,)) for n, one in enumerate(attributes)]
    assert device_of(pool(parts))["attributes"] == {"resource": {"string": MEMORY}, "model": {"string": "H100"}}


def test_what_is_beyond_32_attributes_and_capacities_is_left_out_and_said() -> None:
    attributes: dict[str, AttributeValue] = {f"a{number}": number for number in range(40)}
    made = pool([whole(name, attributes=attributes, capacity={"memory": GI}, numa_nodes=(0,)) for name in ("x", "y")])
    for one in devices_of(written(made)):
        assert len(one["attributes"]) + len(one["capacity"]) == 32
        assert "a28" in one["attributes"]
        assert "a29" not in one["attributes"]
    (said,) = left_out(made)
    assert said.startswith("a29, a30, a31")
    assert "a39 of x and 1 more (example.com/gpu-mem) cannot be published" in said


def test_a_number_that_the_api_does_not_have_is_left_out_and_said() -> None:
    made = pool([whole(attributes={"huge": 1 << 63}, capacity={"negative": -1, "fits": (1 << 63) - 1})])
    assert device_of(made)["capacity"] == {"fits": {"value": str((1 << 63) - 1)}}
    assert left_out(made)[0].startswith("negative, huge of card ")


def test_where_everything_is_published_nothing_is_said() -> None:
    assert left_out(pool([*units("card", 2), whole("other")])) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1, "1"), (999, "999"), (1000, "1k"), (1500, "1500"), (1024, "1Ki"), (512_000, "500Ki"),
     (3 << 30, "3Gi"), (10**6, "1M"), (1 << 60, "1Ei"), ((1 << 63) - 1, "9223372036854775807")],
)  # fmt: skip
def test_a_quantity_is_written_as_the_server_writes_it(value: int, text: str) -> None:
    assert quantity(value) == text
    assert parse_quantity(text) == value


@pytest.mark.parametrize("node", ["node-1", "ip-10-0-0-1.ec2.internal", "n" * 253, "a.b"])
def test_the_name_of_a_slice_is_one_for_an_object(node: str) -> None:
    name = slice_name(DRIVER, f"{node}/example.com/gpu-mem", 12)
    assert len(name) <= 253
    assert re.fullmatch(r"0012-[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)


def test_no_two_pools_have_slices_of_one_name() -> None:
    pools = [(DRIVER, "a-b/example.com/x"), (DRIVER, "a/b.example.com/x"), ("x.nodeplug.io", "a-b/example.com/x")]
    assert len({slice_name(driver, name, 0) for driver, name in pools}) == 3


def test_of_any_list_what_is_published_is_what_can_be_had() -> None:
    rng = random.Random(5)
    for _ in range(100):
        cards = [
            units(f"GPU-{card}", rng.randint(1, 9), ill=rng.sample(range(9), 4)) for card in range(rng.randint(0, 90))
        ]
        wholes = [whole(f"w_{n}", healthy=rng.random() < 0.8) for n in range(rng.randint(0, 90))]
        listed = [one for found in cards for one in found] + wholes
        taken = {one.id for one in listed if rng.random() < 0.1}
        made = pool(listed, taken=[*taken])
        slices = written(made)
        assert all(len(one["spec"]["devices"]) <= 64 for one in slices)
        published = {one["name"]: one for one in devices_of(slices)}
        assert len(published) == len(cards) + len(wholes)
        assert all(LABEL.fullmatch(name) for name in published)
        for number, parts in enumerate(cards):
            usable = sum(one.healthy and one.id not in taken for one in parts)
            device = published[device_name(DeviceId(f"GPU-{number}"))]
            assert parse_quantity(device["capacity"]["memory"]["value"]) == usable * GI
            assert ("taints" in device) == (usable == 0)
        for one in wholes:
            assert ("taints" in published[device_name(one.id)]) == (not one.healthy or one.id in taken)
