"""A card that is held under former terms is not sold under new ones: MPS switched on, its replicas changed."""

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


def of_card(store: Any, resource: str, card: Any) -> set[str]:
    """Return why what is free of a card is not offered."""
    held = {one for mine in store.held[resource].values() for one in mine}
    listed = store.listed(resource).items()
    return {why for name, why in listed if name not in held and name.startswith(card_key(card.uuid))}


def healthy(store: Any, resource: str) -> int:
    return sum(not reason for reason in store.listed(resource).values())


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
def test_new_terms_wait_for_the_holders_of_the_old_ones(
    before: Any, after: Any, resource: str, store: Make, card: Make
) -> None:
    shop = store([before], [card(0, 8), card(1, 8)])
    shop.held = {resource: {"pod": ids(card(0), 3)}}
    shop.look(after=1.0)
    shop.configure([after])
    (why,) = of_card(shop, resource, card(0))
    assert "default/pod" in why
    assert "under its former limits" in why
    shop.wait()
    assert all(of_card(shop, resource, card(0)))
    assert not any(of_card(shop, resource, card(1)))
    shop.held = {}
    shop.wait()
    assert all(not reason for reason in shop.listed(resource).values())


def test_a_container_that_holds_a_card_under_former_terms_may_start_again(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0, 8)])
    shop.held = {MEM: {"pod": ids(card(0), 3, 4)}}
    shop.configure([MEMORY | {"mps": {}}])
    assert {name for name, why in shop.listed(MEM).items() if not why} == set(ids(card(0), 3, 4))
    with pytest.raises(NotReady, match="under its former limits"):
        shop.allocate(MEM, *ids(card(0), 3))


def test_a_card_that_nobody_was_seen_to_hold_for_a_minute_is_sold_under_the_new_terms(store: Make, card: Make) -> None:
    shop = store([replicas(4)], [card(0, 8)])
    shop.configure([replicas(8)])
    assert healthy(shop, SHARED) == 0
    shop.wait()
    assert healthy(shop, SHARED) == 8


def test_a_return_to_the_former_terms_needs_no_wait(store: Make, card: Make) -> None:
    shop = store([replicas(4)], [card(0, 8)])
    shop.held = {SHARED: {"pod": ids(card(0), 3)}}
    shop.configure([replicas(8)])
    assert healthy(shop, SHARED) == 1
    shop.configure([replicas(4)])
    assert healthy(shop, SHARED) == 4


def test_terms_outlive_the_daemon(store: Make, card: Make) -> None:
    shop = store([replicas(4)], [card(0, 8)])
    shop.held = {SHARED: {"pod": ids(card(0), 3)}}
    for _ in range(2):
        shop.configure([replicas(8)])
        assert healthy(shop, SHARED) == 1


def test_more_replicas_without_limits_are_offered_at_once(store: Make, card: Make) -> None:
    shop = store([replicas(4, mps=False)], [card(0, 8)])
    shop.held = {SHARED: {"pod": ids(card(0), 3)}}
    shop.configure([replicas(8, mps=False)])
    assert healthy(shop, SHARED) == 8


def test_fewer_replicas_without_limits_wait_for_those_that_are_too_many(store: Make, card: Make) -> None:
    shop = store([replicas(8, mps=False)], [card(0, 8)])
    shop.held = {SHARED: {"pod": ids(card(0), 7)}}
    shop.configure([replicas(4, mps=False)])
    assert healthy(shop, SHARED) == 0
    shop.held = {SHARED: {"other": ids(card(0), 2)}}
    shop.look(after=1.0)
    assert healthy(shop, SHARED) == 4


def test_a_card_that_is_held_under_former_terms_is_told_to_those_who_follow(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0, 8), card(1, 8)])
    shop.held = {MEM: {"pod": ids(card(0), 3)}}
    shop.configure([MEMORY | {"mps": {}}])
    assert shop.look(after=1.0).draining.keys() >= {"GPU-0"}


def test_no_mps_daemon_is_started_for_a_card_that_is_held_without_mps(store: Make, card: Make) -> None:
    asked: list[set[str]] = []

    class Daemons:
        def reconcile(self, wanted: Any, held: Any, cards: Any) -> None:
            asked.append(set(wanted))

        def has(self, uuid: str) -> bool:
            return False

    shop = store([MEMORY], [card(0, 8), card(1, 8)])
    shop.held = {MEM: {"pod": ids(card(0), 3)}}
    shop.configure([MEMORY | {"mps": {}}])
    reconciler = MpsReconciler(Daemons(), shop.config)  # type: ignore[arg-type] # has what is used
    for _ in range(13):
        reconciler.reconcile(shop.look(after=10.0))
    assert asked[-1] == {"GPU-1"}
    shop.held = {}
    shop.wait()
    reconciler.reconcile(shop.look())
    assert asked[-1] == {"GPU-0", "GPU-1"}
