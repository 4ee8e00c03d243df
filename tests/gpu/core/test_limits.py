"""A card that is held under former limits is not allocated under new ones: MPS switched on, its replicas changed."""

from collections.abc import Callable
from typing import Any

import pytest

from nodeplug import NotReady
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.mps.cards import MpsReconciler

SHARED, MEM = "nvidia.com/gpu.shared", "aliyun.com/gpu-mem"
MEMORY = {"sharing": "memory"}
Make = Callable[..., Any]


def replicas(count: int, *, mps: bool = True) -> dict[str, Any]:
    more: dict[str, Any] = {"mps": {}} if mps else {}
    return {"sharing": "replicas", "resource": SHARED, "replicas": count, **more}


def ids(card: Any, *numbers: int) -> list[str]:
    return [f"{card_key(card.uuid)}-{number}" for number in numbers]


def of_card(node: Any, resource: str, card: Any) -> set[str]:
    """Return why what is free of a card is not allocatable."""
    held = {one for mine in node.held[resource].values() for one in mine}
    listed = node.listed(resource).items()
    return {why for name, why in listed if name not in held and name.startswith(card_key(card.uuid))}


def healthy(node: Any, resource: str) -> int:
    return sum(not reason for reason in node.listed(resource).values())


@pytest.mark.parametrize(
    ("before", "after", "resource"),
    [
        (MEMORY, MEMORY | {"mps": {}}, MEM),
        (replicas(4, mps=False), replicas(4), SHARED),
        (replicas(4), replicas(8), SHARED),
        (replicas(8), replicas(4), SHARED),
    ],
    ids=["mps on for memory", "mps on for replicas", "more replicas of mps", "fewer replicas of mps"],
)
def test_new_limits_wait_for_the_holders_of_the_old_ones(
    before: Any, after: Any, resource: str, make_node: Make, card: Make
) -> None:
    node = make_node([before], [card(0, 8), card(1, 8)])
    node.held = {resource: {"pod": ids(card(0), 3)}}
    node.update(after=1.0)
    node.configure([after])
    (why,) = of_card(node, resource, card(0))
    assert "default/pod" in why
    assert "under its former limits" in why
    node.wait()
    assert all(of_card(node, resource, card(0)))
    assert not any(of_card(node, resource, card(1)))
    node.held = {}
    node.wait()
    assert all(not reason for reason in node.listed(resource).values())


def test_a_container_that_holds_a_card_under_former_limits_may_start_again(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 8)])
    node.held = {MEM: {"pod": ids(card(0), 3, 4)}}
    node.configure([MEMORY | {"mps": {}}])
    assert {name for name, why in node.listed(MEM).items() if not why} == set(ids(card(0), 3, 4))
    with pytest.raises(NotReady, match="under its former limits"):
        node.allocate(MEM, *ids(card(0), 3))


def test_a_card_that_had_no_holder_for_a_minute_is_advertised_under_the_new_limits(make_node: Make, card: Make) -> None:
    node = make_node([replicas(4)], [card(0, 8)])
    node.configure([replicas(8)])
    assert healthy(node, SHARED) == 0
    node.wait()
    assert healthy(node, SHARED) == 8


def test_a_return_to_the_former_limits_needs_no_wait(make_node: Make, card: Make) -> None:
    node = make_node([replicas(4)], [card(0, 8)])
    node.held = {SHARED: {"pod": ids(card(0), 3)}}
    node.configure([replicas(8)])
    assert healthy(node, SHARED) == 1
    node.configure([replicas(4)])
    assert healthy(node, SHARED) == 4


def test_limits_outlive_the_daemon(make_node: Make, card: Make) -> None:
    node = make_node([replicas(4)], [card(0, 8)])
    node.held = {SHARED: {"pod": ids(card(0), 3)}}
    for _ in range(2):
        node.configure([replicas(8)])
        assert healthy(node, SHARED) == 1


def test_more_replicas_without_limits_are_allocatable_at_once(make_node: Make, card: Make) -> None:
    node = make_node([replicas(4, mps=False)], [card(0, 8)])
    node.held = {SHARED: {"pod": ids(card(0), 3)}}
    node.configure([replicas(8, mps=False)])
    assert healthy(node, SHARED) == 8


def test_fewer_replicas_without_limits_wait_for_those_that_are_too_many(make_node: Make, card: Make) -> None:
    node = make_node([replicas(8, mps=False)], [card(0, 8)])
    node.held = {SHARED: {"pod": ids(card(0), 7)}}
    node.configure([replicas(4, mps=False)])
    assert healthy(node, SHARED) == 0
    node.held = {SHARED: {"other": ids(card(0), 2)}}
    node.update(after=1.0)
    assert healthy(node, SHARED) == 4


def test_a_card_that_is_held_under_former_limits_is_draining_in_the_inventory(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 8), card(1, 8)])
    node.held = {MEM: {"pod": ids(card(0), 3)}}
    node.configure([MEMORY | {"mps": {}}])
    assert node.update(after=1.0).draining.keys() >= {"GPU-0"}


def test_no_mps_daemon_is_started_for_a_card_that_is_held_without_mps(make_node: Make, card: Make) -> None:
    asked: list[set[str]] = []

    class Daemons:
        def reconcile(self, wanted: Any, held: Any, cards: Any, caps: Any) -> None:
            asked.append(set(wanted))

        def has(self, uuid: str) -> bool:
            return False

    node = make_node([MEMORY], [card(0, 8), card(1, 8)])
    node.held = {MEM: {"pod": ids(card(0), 3)}}
    node.configure([MEMORY | {"mps": {}}])
    reconciler = MpsReconciler(Daemons(), node.config)  # type: ignore[arg-type] # has what is used
    for _ in range(13):
        reconciler.reconcile(node.update(after=10.0))
    assert asked[-1] == {"GPU-1"}
    node.held = {}
    node.wait()
    reconciler.reconcile(node.update())
    assert asked[-1] == {"GPU-0", "GPU-1"}
