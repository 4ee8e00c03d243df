"""Which entry sells which card, and that no card is sold twice: by choice, by change of mind, by accident."""

from collections.abc import Callable
from typing import Any

import pytest

from nodeplug_gpu.cards import Card
from nodeplug_gpu.ids import card_key

MEM = "aliyun.com/gpu-mem"
WHOLE = "nvidia.com/gpu"
EXCLUSIVE = {"sharing": "exclusive", "resource": WHOLE}
MEMORY = {"sharing": "memory"}
Make = Callable[..., Any]


def only(entry: dict[str, Any], *indexes: int) -> dict[str, Any]:
    return entry | {"cards": {"index": indexes}}


def unit(card: Card, number: int = 0) -> str:
    return f"{card_key(card.uuid)}-{number}"


@pytest.mark.parametrize(
    "choice",
    [{"index": [1]}, {"uuid": ["GPU-1"]}, {"model": ["*A10*"], "index": [1]}, {"pci": ["02:00.0"]}],
    ids=["index", "uuid", "model and index", "pci"],
)
def test_cards_are_chosen_by_every_key(choice: dict[str, Any], store: Make, card: Make) -> None:
    shop = store([EXCLUSIVE | {"cards": choice}], [card(0), card(1)])
    assert shop.listed(WHOLE) == {"GPU-1": ""}


def test_a_card_that_two_entries_choose_is_sold_by_none_and_both_are_named(store: Make, card: Make) -> None:
    entries = [EXCLUSIVE | {"cards": {"model": ["*A10*"]}}, only(MEMORY, 0)]
    shop = store(entries, [card(0), card(1)])
    wanted = "nvidia.com/gpu and aliyun.com/gpu-mem would both advertise GPU-0 (index 0, NVIDIA A10, 0000:01:00.0)"
    assert shop.tracker.inventory.conflict.startswith(wanted)
    assert shop.listed(WHOLE) == {"GPU-1": ""}
    assert shop.listed() == {}
    assert wanted in shop.why_nothing(MEM)


def test_a_card_that_comes_later_and_is_chosen_twice_costs_no_other_card(store: Make, card: Make) -> None:
    shop = store([EXCLUSIVE | {"cards": {"model": ["*A10*"]}}, only(MEMORY, 1)], [card(0)])
    shop.cards.append(card(1))
    shop.look()
    assert shop.listed(WHOLE) == {"GPU-0": ""}
    assert "GPU-1" in shop.tracker.inventory.conflict


def test_entries_that_choose_no_card_say_so(store: Make, card: Make) -> None:
    shop = store([EXCLUSIVE | {"cards": {"model": ["*H100*"]}}], [card(0)])
    assert shop.why_nothing(WHOLE) == "there is no device to advertise as nvidia.com/gpu: no card is assigned to it"


def test_two_cards_of_one_digest_are_not_both_sold(store: Make, card: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeplug_gpu.pool.card_key", lambda _: "00000000")
    shop = store([EXCLUSIVE], [card(0), card(1)])
    assert shop.listed(WHOLE) == {"GPU-0": ""}
    assert "GPU-1 and GPU-0 have the same digest" in shop.tracker.inventory.conflict


def test_a_card_that_the_driver_shows_twice_is_sold_once(store: Make, card: Make) -> None:
    assert store([EXCLUSIVE], [card(0), card(0)]).listed(WHOLE) == {"GPU-0": ""}


def test_cards_keep_their_entry_when_indexes_move(store: Make, card: Make) -> None:
    shop = store([only(MEMORY, 0, 1), only(EXCLUSIVE, 2, 3)], [card(n) for n in range(4)])
    shop.held = {WHOLE: {"pod": ["GPU-2"]}}
    del shop.cards[1]
    shop.look()
    assert {name: reason for name, reason in shop.listed(WHOLE).items() if not reason} == {"GPU-2": "", "GPU-3": ""}
    assert not any(name.startswith(card_key(card(2).uuid)) for name in shop.listed())


@pytest.mark.parametrize("told", [True, False], ids=["kubelet tells", "kubelet does not tell"])
def test_a_card_is_not_sold_anew_while_it_is_held_as_something_else(told: bool, store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0)])
    shop.held = {MEM: {"pod": [unit(card(0))]}} if told else None
    shop.configure([EXCLUSIVE])
    shop.wait()
    who = "default/pod" if told else "an unknown container"
    assert shop.listed(WHOLE) == {"GPU-0": f"it was advertised as {MEM} (memory), and it is allocated to {who}"}


def test_a_card_is_sold_anew_once_nobody_was_seen_with_it_for_a_minute(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0)])
    shop.configure([EXCLUSIVE])
    assert "kubelet may still report a holder" in shop.listed(WHOLE)["GPU-0"]
    shop.wait()
    assert shop.listed(WHOLE) == {"GPU-0": ""}


def test_the_former_entry_lists_held_units_until_they_are_released(store: Make, card: Make) -> None:
    shop = store([only(MEMORY, 0), only(EXCLUSIVE, 1)], [card(0), card(1)])
    shop.held = {MEM: {"pod": [unit(card(0))]}}
    shop.configure([only(MEMORY, 1), only(EXCLUSIVE, 0)])
    shop.wait()
    assert shop.listed()[unit(card(0))] == "it is advertised as nvidia.com/gpu now"
    assert shop.listed(WHOLE)["GPU-0"]
    shop.held = {}
    shop.wait()
    assert unit(card(0)) not in shop.listed()
    assert shop.listed(WHOLE) == {"GPU-0": ""}


def test_a_name_that_changes_its_kind_does_not_sell_held_cards_twice(store: Make, card: Make) -> None:
    shop = store([EXCLUSIVE], [card(0)])
    shop.held = {WHOLE: {"pod": ["GPU-0"]}}
    shop.configure([{"sharing": "replicas", "resource": WHOLE, "replicas": 4}])
    shop.wait()
    listed = shop.listed(WHOLE)
    assert listed["GPU-0"] == "it is no longer present"
    assert all(listed.values())
    shop.held = {}
    shop.wait()
    assert shop.listed(WHOLE) == dict.fromkeys([unit(card(0), n) for n in range(4)], "")


def test_foreign_and_unknown_ids_of_kubelet_change_nothing(store: Make, card: Make) -> None:
    shop = store([only(MEMORY, 0), only(EXCLUSIVE, 1)], [card(0), card(1)])
    before = (shop.listed(), shop.listed(WHOLE))
    shop.held = {
        MEM: {"a": ["GPU-9_-_3", "", "-", "ffffffff-1", "\udc80"]},
        WHOLE: {"b": ["GPU-77", "x" * 9000]},
        "example.com/other": {"c": [unit(card(0))]},
    }
    shop.look()
    assert (shop.listed(), shop.listed(WHOLE)) == before
    assert shop.tracker.inventory.allocations == ()
