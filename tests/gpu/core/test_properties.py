"""What devices say of themselves: properties to choose by, and of what they are a part."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from nodeplug import Device, DeviceId, Part, ResourceName
from nodeplug.device.codec import encode_list
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.ids import card_key

Make = Callable[..., Any]
MEM, SHARED, GPU, MIG = "aliyun.com/gpu-mem", "nvidia.com/gpu.shared", "nvidia.com/gpu", "nvidia.com/mig"
GI = 1 << 30
WHOLE = {"sharing": "exclusive", "resource": GPU}
REPLICAS = {"sharing": "replicas", "resource": SHARED, "replicas": 4}
KNOWN = {"pcie_root": "pci0000:00", "compute_capability": (9, 0), "numa_node": 1}


def devices(node: Any, resource: str) -> Sequence[Device]:
    name = ResourceName(resource)
    found: Sequence[Device] = node.tracker.inventory.devices(node.tracker.entry_of(name), name)
    return found


def key(number: int) -> DeviceId:
    return DeviceId(card_key(Uuid(f"GPU-{number}")))


def know_driver(node: Any, version: str, **more: Any) -> None:
    node.tracker.update(replace(node.tracker.inventory.snapshot, driver_version=version, **more), ())


def test_a_whole_card_says_what_it_is(make_node: Make, card: Make) -> None:
    node = make_node([WHOLE], [card(0, **KNOWN)])
    know_driver(node, "580.65.06")
    (only,) = devices(node, GPU)
    assert only.attributes == {
        "type": "gpu",
        "uuid": "GPU-0",
        "productName": "NVIDIA A10",
        "cudaComputeCapability": "9.0",
        "driverVersion": "580.65.06",
        "resource.kubernetes.io/pciBusID": "0000:01:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/numaNode": 1,
    }
    assert (only.capacity, only.part) == ({"memory": 16 * GI}, None)


def test_what_is_not_known_is_left_out(make_node: Make, card: Make) -> None:
    (only,) = devices(make_node([WHOLE], [card(0, memory=0, pci="", numa_node=-1)]), GPU)
    assert set(only.attributes) == {"type", "uuid", "productName"}
    assert only.capacity == {}


def test_the_version_of_a_driver_that_does_not_answer_stays_known(make_node: Make, card: Make) -> None:
    node = make_node([WHOLE], [card(0)])
    know_driver(node, "580.65.06")
    know_driver(node, "", state="failed", reason="it hangs")
    assert devices(node, GPU)[0].attributes["driverVersion"] == "580.65.06"


def test_units_are_parts_of_their_card_by_bytes(make_node: Make, card: Make) -> None:
    found = devices(make_node([{"sharing": "memory", "unit": "2Gi"}], [card(0), card(1)]), MEM)
    assert [one.part for one in found[::8]] == [Part(key(n), {"memory": 2 * GI}) for n in range(2)]
    assert [one.attributes["uuid"] for one in found] == ["GPU-0"] * 8 + ["GPU-1"] * 8


def test_all_units_of_a_card_have_one_mapping_in_common(make_node: Make, card: Make) -> None:
    """There may be thousands, and each list is made anew."""
    for entry, resource in [({"sharing": "memory"}, MEM), (REPLICAS, SHARED)]:
        found = devices(make_node([entry], [card(0)]), resource)
        assert len(found) >= 4
        assert len({id(one.attributes) for one in found}) == len({id(one.part) for one in found}) == 1


def test_a_card_says_its_numa_node_by_its_units_although_kubelet_is_not_to_know_it(make_node: Make, card: Make) -> None:
    unit = devices(make_node([{"sharing": "memory"}], [card(0, **KNOWN)]), MEM)[0]
    assert unit.numa_nodes == ()
    assert unit.attributes["resource.kubernetes.io/numaNode"] == 1


def test_replicas_are_parts_of_their_card_by_number(make_node: Make, card: Make) -> None:
    found = devices(make_node([REPLICAS], [card(0)]), SHARED)
    assert {one.part.of for one in found if one.part} == {key(0)}
    assert [one.part.amount for one in found if one.part] == [{"replicas": 1}] * 4


def test_an_instance_says_its_profile_and_its_card(make_node: Make, divided: Make) -> None:
    first, second = devices(make_node([{"sharing": "mig", "resource": MIG}], [divided(0, "1g.10gb", "1g.10gb")]), MIG)
    assert {name: first.attributes[name] for name in ("type", "uuid", "parentUUID", "profile")} == {
        "type": "mig",
        "uuid": "MIG-0-a0",
        "parentUUID": "GPU-0",
        "profile": "1g.10gb",
    }
    assert (first.capacity, first.part) == ({"memory": 10 * GI}, None)
    assert second.attributes["uuid"] == "MIG-0-a1"


def test_replicas_of_an_instance_are_parts_of_it(make_node: Make, divided: Make) -> None:
    entry = {"sharing": "mig", "resource": MIG, "replicas": {"1g.10gb": 2}}
    found = devices(make_node([entry], [divided(0, "1g.10gb")]), MIG)
    assert [one.part for one in found] == [Part(DeviceId("MIG-0-a0"), {"replicas": 1})] * 2
    assert {one.attributes["uuid"] for one in found} == {"MIG-0-a0"}


def test_a_unit_that_is_held_and_no_longer_advertised_is_a_part_all_the_same(make_node: Make, card: Make) -> None:
    """As a device of its own it would be offered as a whole one."""
    node = make_node([REPLICAS], [card(0)])
    last = devices(node, SHARED)[-1]
    node.held = {SHARED: {"pod": [last.id]}}
    node.update()
    node.configure([{**REPLICAS, "replicas": 2}])
    found = devices(node, SHARED)
    assert (found[-1].id, found[-1].healthy) == (last.id, False)
    assert (found[-1].part, found[-1].attributes) == (last.part, last.attributes)


def test_a_unit_of_a_card_that_is_gone_is_a_part_all_the_same(make_node: Make, card: Make) -> None:
    node = make_node([{"sharing": "memory"}], [card(0), card(1)])
    last = devices(node, MEM)[-1]
    node.held = {MEM: {"pod": [last.id]}}
    node.update()
    del node.cards[1]
    node.update()
    assert {one.part.of for one in devices(node, MEM) if one.part} == {key(0), key(1)}


@pytest.mark.parametrize(("entry", "resource"), [(WHOLE, GPU), ({"sharing": "memory"}, MEM), (REPLICAS, SHARED)])
def test_kubelet_gets_the_same_bytes_with_and_without_them(
    entry: dict[str, Any], resource: str, make_node: Make, card: Make
) -> None:
    found = devices(make_node([entry], [card(0, **KNOWN), card(1)]), resource)
    bare = [Device(one.id, healthy=one.healthy, reason=one.reason, numa_nodes=one.numa_nodes) for one in found]
    name = ResourceName(resource)
    assert encode_list(name, found).SerializeToString() == encode_list(name, bare).SerializeToString()
