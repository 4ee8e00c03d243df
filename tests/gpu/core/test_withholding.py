"""What is free on several cards is not promised together: units that no container could use with the others wait."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug import DeviceId
from nodeplug_gpu.ids import CardKey, card_key
from nodeplug_gpu.withholding import REASON, Withholding

MEM = "aliyun.com/gpu-mem"
A, B = CardKey("aaaaaaaa"), CardKey("bbbbbbbb")
Make = Callable[..., Any]


def free(**units: int) -> Mapping[CardKey, list[DeviceId]]:
    return {CardKey(card): [DeviceId(f"{card}-{number}") for number in range(count)] for card, count in units.items()}


@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 9), max_size=5),
    st.lists(st.integers(1, 12)),
    st.sampled_from(["always", "after-refusal", "never"]),
)
def test_what_is_left_is_of_one_card_and_no_less_than_it_has(cards: Any, sizes: list[int], when: Any) -> None:
    one = Withholding(when)
    for size in sizes:
        one.refused(size)
    found = one.choose(free(**cards))
    left = [unit for units in free(**cards).values() for unit in units if unit not in found]
    most, together = max(cards.values(), default=0), sum(cards.values())
    due = when == "always" or (when == "after-refusal" and any(most < size <= together for size in sizes))
    assert len(left) == (most if due else together)
    assert one.active == bool(found)


def test_nothing_is_withheld_before_a_container_was_refused_nor_once_it_would_fit() -> None:
    one = Withholding("after-refusal")
    assert not one.choose(free(a=1, b=1))
    one.refused(2)
    assert one.choose(free(a=1, b=1))
    assert not one.choose(free(a=2, b=1))
    assert not one.choose(free(a=1, b=1))  # it is forgotten


def test_what_does_not_fit_the_sum_either_needs_nothing_withheld_until_it_would() -> None:
    one = Withholding("after-refusal")
    one.refused(4)
    assert not one.choose(free(a=1, b=1, c=1))
    assert len(one.choose(free(a=2, b=2, c=1))) == 3


@pytest.fixture
def node(make_node: Make, card: Make) -> Any:
    """Two cards of four units."""
    return make_node([{"sharing": "memory"}], [card(0, 4), card(1, 4)])


def held(node: Any, *counts: int) -> None:
    """Have kubelet tell that so many units of each card are held."""
    pods = {f"p{n}": [f"{card_key(f'GPU-{n}')}-{unit}" for unit in range(count)] for n, count in enumerate(counts)}
    node.held = {MEM: pods}
    node.update()


def withheld(node: Any) -> list[str]:
    return sorted(name for name, reason in node.listed().items() if reason == REASON)


def test_after_a_refusal_kubelet_is_told_of_no_more_free_units_than_one_card_has(node: Any) -> None:
    held(node, 3, 3)
    assert not withheld(node)
    node.tracker.refused(MEM, 2)
    node.update()
    assert len(withheld(node)) == 1
    assert sum(not reason for reason in node.listed().values()) == 7
    assert node.tracker.withholds(MEM)


def test_what_is_withheld_comes_back_as_cards_fill_or_empty(node: Any) -> None:
    held(node, 3, 3)
    node.tracker.refused(MEM, 2)
    node.update()
    (first,) = withheld(node)
    (other,) = {f"{card_key('GPU-0')}-3", f"{card_key('GPU-1')}-3"} - {first}
    node.allocate(MEM, other)
    node.tracker.allocated(MEM, [DeviceId(other)])
    node.update()
    assert not withheld(node)  # it is all that is free
    held(node, 2, 3)
    assert not withheld(node)  # a container of two fits


def test_a_container_gets_units_that_were_withheld_after_kubelet_had_chosen_them(node: Any) -> None:
    held(node, 3, 3)
    node.tracker.refused(MEM, 2)
    node.update()
    (unit,) = withheld(node)
    assert node.allocate(MEM, unit).env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "1"


def test_what_is_held_is_never_withheld_and_nothing_changes_while_kubelet_does_not_answer(node: Any) -> None:
    held(node, 3, 3)
    node.tracker.refused(MEM, 2)
    node.update()
    before = withheld(node)
    node.held = None
    node.update()
    assert withheld(node) == before
    held(node, 4, 3)
    assert not withheld(node)


def test_of_a_card_that_is_ill_nothing_is_withheld_and_nothing_counts(node: Any) -> None:
    held(node, 2, 3)
    node.tracker.refused(MEM, 3)
    node.update()
    assert len(withheld(node)) == 1
    node.cards.pop()
    node.update()
    assert not withheld(node)


@pytest.mark.parametrize(("when", "count"), [("always", 1), ("never", 0)])
def test_the_configuration_says_when(make_node: Make, card: Make, when: str, count: int) -> None:
    node = make_node([{"sharing": "memory", "withhold": when}], [card(0, 4), card(1, 4)])
    held(node, 3, 3)
    node.tracker.refused(MEM, 2)
    node.update()
    assert len(withheld(node)) == count
