"""What the document says is held: grants that kubelet has not told of yet, and holders by a name of the past."""

from collections.abc import Callable, Mapping
from typing import Any

from nodeplug import DeviceId
from nodeplug_gpu import report
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.overuse import OveruseWatch

MEM, RENAMED, WHOLE = "aliyun.com/gpu-mem", "example.com/gpu-mem", "nvidia.com/gpu"
MEMORY = {"sharing": "memory"}
Make = Callable[..., Any]


def document(store: Any) -> Mapping[str, Any]:
    return report.document(store.config, store.tracker, OveruseWatch({}, store.tracker.host))


def units(card: Any, count: int, first: int = 0) -> list[str]:
    return [f"{card_key(card.uuid)}-{first + number}" for number in range(count)]


def grant(store: Any, ids: list[str], resource: str = MEM) -> None:
    store.allocate(resource, *ids)
    store.tracker.allocated(resource, tuple(map(DeviceId, ids)))


def test_what_was_granted_is_shown_before_kubelet_has_told(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0, 8)])
    grant(shop, units(card(0), 5))
    (shown,) = document(shop)["cards"]
    assert (shown["allocated_units"], shown["unconfirmed_units"], shown["containers"]) == (5, 5, [])
    assert document(shop)["resources"][0]["allocated"] == 5


def test_a_grant_that_kubelet_has_told_is_counted_once(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0, 8)])
    grant(shop, units(card(0), 5))
    shop.held = {MEM: {"pod": units(card(0), 5)}}
    shop.look(after=1.0)
    (shown,) = document(shop)["cards"]
    assert (shown["allocated_units"], shown["unconfirmed_units"]) == (5, 0)


def test_a_grant_that_kubelet_does_not_confirm_is_forgotten_after_a_while(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0, 8)])
    grant(shop, units(card(0), 5))
    shop.wait(50.0)
    assert document(shop)["cards"][0]["allocated_units"] == 5
    shop.wait(20.0)
    assert document(shop)["cards"][0]["allocated_units"] == 0


def test_a_grant_is_not_forgotten_while_kubelet_tells_nothing(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0, 8)])
    shop.held = None
    grant(shop, units(card(0), 5))
    shop.wait(200.0)
    (shown,) = document(shop)["cards"]
    assert (shown["allocated_units"], shown["unconfirmed_units"]) == (None, 5)


def test_a_card_that_was_just_granted_counts_as_held(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0, 8), card(1, 8)])
    grant(shop, units(card(1), 5))
    assert shop.look(after=1.0).allocated == {"GPU-1"}


def test_what_a_pod_holds_by_a_former_name_is_shown_on_its_card(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0, 8)])
    shop.held = {MEM: {"pod": units(card(0), 5)}}
    shop.look(after=1.0)
    shop.configure([MEMORY | {"resource": RENAMED}])
    (shown,) = document(shop)["cards"]
    assert (shown["resource"], shown["allocated_units"]) == (RENAMED, 5)
    assert [(one["pod"], one["resource"], one["units"], one["allocated_bytes"]) for one in shown["containers"]] == [
        ("pod", MEM, 5, 5 << 30)
    ]


def test_a_resource_that_is_offered_no_more_stays_listed_while_somebody_holds_it(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0, 8)])
    shop.held = {MEM: {"pod": units(card(0), 5)}}
    shop.look(after=1.0)
    shop.configure([MEMORY | {"resource": RENAMED}])
    former = {one["resource"]: (one["allocated"], one["devices"]) for one in document(shop)["resources"]}
    assert former[MEM] == (5, 0)
    shop.held = {}
    shop.wait()
    assert MEM not in {one["resource"] for one in document(shop)["resources"]}


def test_a_holder_in_units_of_another_size_is_counted_in_those_of_now(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0, 8)])
    shop.held = {MEM: {"pod": units(card(0), 5)}}
    shop.look(after=1.0)
    shop.configure([MEMORY | {"resource": RENAMED, "unit": "2Gi"}])
    (shown,) = document(shop)["cards"]
    assert (shown["units"], shown["allocated_units"]) == (4, 3)


def test_a_card_that_is_held_in_another_way_counts_as_used_as_a_whole(store: Make, card: Make) -> None:
    shop = store([{"sharing": "exclusive", "resource": WHOLE}], [card(0, 8)])
    shop.held = {WHOLE: {"pod": ["GPU-0"]}}
    shop.look(after=1.0)
    shop.configure([MEMORY])
    (shown,) = document(shop)["cards"]
    assert (shown["units"], shown["allocated_units"]) == (8, 8)
