"""Which units a container should get: one card, and the right one."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug import DeviceId, DevicePrefer, ResourceName
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.ids import by_card, card_key, unit_id
from nodeplug_gpu.placement import Policy, distributed, packed, single_card

RESOURCE = ResourceName("aliyun.com/gpu-mem")
CARDS = [card_key(Uuid(f"GPU-{number}")) for number in range(4)]
POLICIES: tuple[Policy, ...] = ("binpack", "spread")


def free(*counts: int) -> list[DeviceId]:
    return [unit_id(CARDS[card], number) for card, count in enumerate(counts) for number in range(count)]


def asking(size: int, available: Sequence[DeviceId], must: Sequence[DeviceId] = ()) -> DevicePrefer:
    return DevicePrefer(resource=RESOURCE, available=tuple(available), must_include=tuple(must), size=size)


def cards_of(ids: Sequence[DeviceId]) -> set[str]:
    return {str(card) for card in by_card(ids)}


def test_binpack_takes_the_fullest_card_that_fits() -> None:
    assert cards_of(single_card(asking(3, free(8, 4, 2)), "binpack")) == {CARDS[1]}


def test_spread_takes_the_emptiest_card() -> None:
    assert cards_of(single_card(asking(3, free(4, 8, 2)), "spread")) == {CARDS[1]}


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_cards_are_chosen_the_same_way_each_time(policy: Policy) -> None:
    available = free(4, 4, 4)
    assert single_card(asking(2, available), policy) == single_card(asking(2, available), policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_units_left_from_an_init_container_pin_the_card(policy: Policy) -> None:
    available = free(8, 8)
    chosen = single_card(asking(4, available, available[:2]), policy)
    assert len(chosen) == 4
    assert chosen[:2] == available[:2]
    assert cards_of(chosen) == {CARDS[0]}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pinned_card_without_room_gives_what_it_has(policy: Policy) -> None:
    available = free(3, 8)
    assert cards_of(single_card(asking(6, available, available[:2]), policy)) == {CARDS[0]}


@pytest.mark.parametrize("policy", POLICIES)
def test_no_card_that_fits_answers_the_largest_rest(policy: Policy) -> None:
    assert len(single_card(asking(6, free(3, 5)), policy)) == 5


@pytest.mark.parametrize("policy", POLICIES)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=4), size=st.integers(1, 12), data=st.data())
def test_an_answer_is_of_one_card_whenever_one_card_could_hold_it(
    policy: Policy, counts: list[int], size: int, data: st.DataObject
) -> None:
    available = free(*counts)
    pinned = data.draw(st.sampled_from(range(len(counts))))
    own = [name for name in available if name in set(by_card(available).get(CARDS[pinned], []))]
    must = own[: data.draw(st.integers(0, min(size, len(own))))]
    chosen = single_card(asking(size, available, must), policy)
    assert set(must) <= set(chosen)
    assert len(set(chosen)) == len(chosen) <= size
    assert set(chosen) <= set(available)
    assert len(cards_of(chosen)) <= 1
    room = len(own) if must else max(counts)
    assert (len(chosen) == size) == (room >= size)


def test_replicas_are_of_different_cards_while_there_are_enough() -> None:
    assert len(cards_of(distributed(asking(3, free(4, 4, 4)), "spread"))) == 3


def test_more_replicas_than_cards_are_spread_evenly() -> None:
    chosen = distributed(asking(6, free(4, 4, 4)), "spread")
    assert sorted(len(names) for names in by_card(chosen).values()) == [2, 2, 2]


def test_a_single_replica_goes_by_the_policy() -> None:
    available = free(4, 2, 3)
    assert cards_of(distributed(asking(1, available), "spread")) == {CARDS[0]}
    assert cards_of(distributed(asking(1, available), "binpack")) == {CARDS[1]}


@pytest.mark.parametrize("policy", POLICIES)
@given(counts=st.lists(st.integers(0, 6), min_size=1, max_size=4), size=st.integers(0, 12))
def test_replicas_are_as_many_as_asked_for_or_all_there_are(policy: Policy, counts: list[int], size: int) -> None:
    available = free(*counts)
    chosen = distributed(asking(size, available), policy)
    assert len(set(chosen)) == len(chosen) == min(size, len(available))


def test_whole_cards_are_of_the_smallest_group_that_holds_them() -> None:
    ids = [DeviceId(f"GPU-{number}") for number in range(6)]
    nodes = {name: "node 0" if number < 4 else "node 1" for number, name in enumerate(ids)}
    assert packed(asking(2, ids), nodes) == ids[4:]


def test_whole_cards_follow_those_that_must_be_included() -> None:
    ids = [DeviceId(f"GPU-{number}") for number in range(6)]
    nodes = {name: "node 0" if number < 4 else "node 1" for number, name in enumerate(ids)}
    assert packed(asking(2, ids, ids[:1]), nodes) == ids[:2]


def test_more_cards_than_one_group_has_take_the_largest_group_first() -> None:
    ids = [DeviceId(f"GPU-{number}") for number in range(6)]
    nodes = {name: "node 0" if number < 4 else "node 1" for number, name in enumerate(ids)}
    assert packed(asking(5, ids), nodes)[:4] == ids[:4]


def test_a_key_is_stable_and_has_no_index_in_it() -> None:
    assert card_key(Uuid("GPU-8a56f4bc-e184-a047-2620-be19fdf913d5")) == "9d0355b2"
