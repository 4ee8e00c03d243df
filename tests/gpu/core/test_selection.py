"""Which entry advertises which card, and that none is allocated in two ways: by choice, by change, by accident."""

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
def test_cards_are_chosen_by_every_key(choice: dict[str, Any], make_node: Make, card: Make) -> None:
    node = make_node([EXCLUSIVE | {"cards": choice}], [card(0), card(1)])
    assert node.listed(WHOLE) == {"GPU-1": ""}


def test_a_card_that_two_entries_choose_is_advertised_by_neither_and_both_are_named(
    make_node: Make, card: Make
) -> None:
    entries = [EXCLUSIVE | {"cards": {"model": ["*A10*"]}}, only(MEMORY, 0)]
    node = make_node(entries, [card(0), card(1)])
    wanted = "nvidia.com/gpu and aliyun.com/gpu-mem would both advertise GPU-0 (index 0, NVIDIA A10, 0000:01:00.0)"
    assert node.tracker.inventory.conflict.startswith(wanted)
    assert node.listed(WHOLE) == {"GPU-1": ""}
    assert node.listed() == {}
    assert wanted in node.why_nothing(MEM)


def test_a_card_that_comes_later_and_is_chosen_twice_costs_no_other_card(make_node: Make, card: Make) -> None:
    node = make_node([EXCLUSIVE | {"cards": {"model": ["*A10*"]}}, only(MEMORY, 1)], [card(0)])
    node.cards.append(card(1))
    node.update()
    assert node.listed(WHOLE) == {"GPU-0": ""}
    assert "GPU-1" in node.tracker.inventory.conflict


def test_entries_that_choose_no_card_say_so(make_node: Make, card: Make) -> None:
    node = make_node([EXCLUSIVE | {"cards": {"model": ["*H100*"]}}], [card(0)])
    assert node.why_nothing(WHOLE) == "there is no device to advertise as nvidia.com/gpu: no card is assigned to it"


def test_two_cards_of_one_digest_are_not_both_advertised(
    make_node: Make, card: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeplug_gpu.pool.card_key", lambda _: "00000000")
    node = make_node([EXCLUSIVE], [card(0), card(1)])
    assert node.listed(WHOLE) == {"GPU-0": ""}
    assert "GPU-1 and GPU-0 have the same digest" in node.tracker.inventory.conflict


def test_a_card_that_the_driver_shows_twice_is_advertised_once(make_node: Make, card: Make) -> None:
    assert make_node([EXCLUSIVE], [card(0), card(0)]).listed(WHOLE) == {"GPU-0": ""}


def test_cards_keep_their_entry_when_indexes_move(make_node: Make, card: Make) -> None:
    node = make_node([only(MEMORY, 0, 1), only(EXCLUSIVE, 2, 3)], [card(n) for n in range(4)])
    node.held = {WHOLE: {"pod": ["GPU-2"]}}
    del node.cards[1]
    node.update()
    assert {name: reason for name, reason in node.listed(WHOLE).items() if not reason} == {"GPU-2": "", "GPU-3": ""}
    assert not any(name.startswith(card_key(card(2).uuid)) for name in node.listed())


@pytest.mark.parametrize("told", [True, False], ids=["kubelet tells", "kubelet does not tell"])
def test_a_card_is_not_advertised_anew_while_it_is_held_as_something_else(
    told: bool, make_node: Make, card: Make
) -> None:
    node = make_node([MEMORY], [card(0)])
    node.held = {MEM: {"pod": [unit(card(0))]}} if told else None
    node.configure([EXCLUSIVE])
    node.wait()
    who = "default/pod" if told else "an unknown container"
    assert node.listed(WHOLE) == {"GPU-0": f"it was advertised as {MEM} (memory), and it is allocated to {who}"}


def test_a_card_is_advertised_anew_once_it_had_no_holder_for_a_minute(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0)])
    node.configure([EXCLUSIVE])
    assert "kubelet may still report a holder" in node.listed(WHOLE)["GPU-0"]
    node.wait()
    assert node.listed(WHOLE) == {"GPU-0": ""}


def test_the_former_entry_lists_held_units_until_they_are_released(make_node: Make, card: Make) -> None:
    node = make_node([only(MEMORY, 0), only(EXCLUSIVE, 1)], [card(0), card(1)])
    node.held = {MEM: {"pod": [unit(card(0))]}}
    node.configure([only(MEMORY, 1), only(EXCLUSIVE, 0)])
    node.wait()
    assert node.listed()[unit(card(0))] == "it is advertised as nvidia.com/gpu now"
    assert node.listed(WHOLE)["GPU-0"]
    node.held = {}
    node.wait()
    assert unit(card(0)) not in node.listed()
    assert node.listed(WHOLE) == {"GPU-0": ""}


def test_a_name_that_changes_its_kind_does_not_advertise_held_cards_twice(make_node: Make, card: Make) -> None:
    node = make_node([EXCLUSIVE], [card(0)])
    node.held = {WHOLE: {"pod": ["GPU-0"]}}
    node.configure([{"sharing": "replicas", "resource": WHOLE, "replicas": 4}])
    node.wait()
    listed = node.listed(WHOLE)
    assert listed["GPU-0"] == "it is no longer present"
    assert all(listed.values())
    node.held = {}
    node.wait()
    assert node.listed(WHOLE) == dict.fromkeys([unit(card(0), n) for n in range(4)], "")


def test_ids_of_kubelet_that_mean_nothing_change_nothing(make_node: Make, card: Make) -> None:
    node = make_node([only(MEMORY, 0), only(EXCLUSIVE, 1)], [card(0), card(1)])
    before = (node.listed(), node.listed(WHOLE))
    node.held = {
        MEM: {"a": ["", "-", "ffffffff-1", "\udc80"]},
        WHOLE: {"b": ["GPU-77", "x" * 9000]},
        "example.com/other": {"c": [unit(card(0))]},
    }
    node.update()
    assert (node.listed(), node.listed(WHOLE)) == before
    assert node.tracker.inventory.allocations == ()
