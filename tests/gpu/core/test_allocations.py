"""What the document reports as allocated: also what kubelet has not confirmed, and what a former resource still has."""

from collections.abc import Callable, Mapping
from typing import Any

from nodeplug import DeviceId
from nodeplug_gpu import report
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.overuse import OveruseWatch

MEM, RENAMED, WHOLE = "aliyun.com/gpu-mem", "example.com/gpu-mem", "nvidia.com/gpu"
MEMORY = {"sharing": "memory"}
Make = Callable[..., Any]


def document(node: Any) -> Mapping[str, Any]:
    return report.document(node.config, node.tracker, OveruseWatch({}, node.tracker.host))


def units(card: Any, count: int, first: int = 0) -> list[str]:
    return [f"{card_key(card.uuid)}-{first + number}" for number in range(count)]


def grant(node: Any, ids: list[str], resource: str = MEM) -> None:
    node.allocate(resource, *ids)
    node.tracker.allocated(resource, tuple(map(DeviceId, ids)))


def test_what_was_allocated_is_shown_before_kubelet_reports_it(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 8)])
    grant(node, units(card(0), 5))
    (shown,) = document(node)["cards"]
    assert (shown["allocated_units"], shown["unconfirmed_units"], shown["containers"]) == (5, 5, [])
    assert document(node)["resources"][0]["allocated"] == 5


def test_an_allocation_that_kubelet_reports_is_counted_once(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 8)])
    grant(node, units(card(0), 5))
    node.held = {MEM: {"pod": units(card(0), 5)}}
    node.update(after=1.0)
    (shown,) = document(node)["cards"]
    assert (shown["allocated_units"], shown["unconfirmed_units"]) == (5, 0)


def test_an_allocation_that_kubelet_does_not_confirm_is_forgotten_after_a_while(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 8)])
    grant(node, units(card(0), 5))
    node.wait(50.0)
    assert document(node)["cards"][0]["allocated_units"] == 5
    node.wait(20.0)
    assert document(node)["cards"][0]["allocated_units"] == 0


def test_an_allocation_is_not_forgotten_while_kubelet_reports_nothing(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 8)])
    node.held = None
    grant(node, units(card(0), 5))
    node.wait(200.0)
    (shown,) = document(node)["cards"]
    assert (shown["allocated_units"], shown["unconfirmed_units"]) == (None, 5)


def test_a_card_that_was_just_allocated_counts_as_held(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 8), card(1, 8)])
    grant(node, units(card(1), 5))
    assert node.update(after=1.0).allocated == {"GPU-1"}


def test_what_a_pod_holds_by_a_former_name_is_shown_on_its_card(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 8)])
    node.held = {MEM: {"pod": units(card(0), 5)}}
    node.update(after=1.0)
    node.configure([MEMORY | {"resource": RENAMED}])
    (shown,) = document(node)["cards"]
    assert (shown["resource"], shown["allocated_units"]) == (RENAMED, 5)
    assert [(one["pod"], one["resource"], one["units"], one["allocated_bytes"]) for one in shown["containers"]] == [
        ("pod", MEM, 5, 5 << 30)
    ]


def test_a_resource_that_is_no_longer_advertised_stays_listed_while_somebody_holds_it(
    make_node: Make, card: Make
) -> None:
    node = make_node([MEMORY], [card(0, 8)])
    node.held = {MEM: {"pod": units(card(0), 5)}}
    node.update(after=1.0)
    node.configure([MEMORY | {"resource": RENAMED}])
    former = {one["resource"]: (one["allocated"], one["devices"]) for one in document(node)["resources"]}
    assert former[MEM] == (5, 0)
    node.held = {}
    node.wait()
    assert MEM not in {one["resource"] for one in document(node)["resources"]}


def test_a_holder_in_units_of_another_size_is_counted_in_those_of_now(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 8)])
    node.held = {MEM: {"pod": units(card(0), 5)}}
    node.update(after=1.0)
    node.configure([MEMORY | {"resource": RENAMED, "unit": "2Gi"}])
    (shown,) = document(node)["cards"]
    assert (shown["units"], shown["allocated_units"]) == (4, 3)


def test_a_card_that_is_held_in_another_way_counts_as_used_as_a_whole(make_node: Make, card: Make) -> None:
    node = make_node([{"sharing": "exclusive", "resource": WHOLE}], [card(0, 8)])
    node.held = {WHOLE: {"pod": ["GPU-0"]}}
    node.update(after=1.0)
    node.configure([MEMORY])
    (shown,) = document(node)["cards"]
    assert (shown["units"], shown["allocated_units"]) == (8, 8)
