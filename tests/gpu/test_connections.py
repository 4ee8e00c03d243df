"""How cards are connected, as the driver tells it."""

from collections.abc import Callable
from typing import Any

import pytest

from nodeplug_gpu.cards import Snapshot

SWITCHES = (b"00000000:05:00.0", b"00000000:06:00.0")
Watch = Callable[..., Any]


def links(snapshot: Snapshot) -> dict[tuple[int, int], int]:
    numbers = {card.uuid: card.index for card in snapshot.cards}
    return {(numbers[one.one], numbers[one.other]): one.links for one in snapshot.pairs}


@pytest.fixture
def three(nvml: Any) -> Any:
    """A driver with three cards, the last one on another NUMA node."""
    nvml.add_card()
    nvml.state.card[2].node = 1
    return nvml


def test_bridges_are_counted_by_their_active_links(three: Any, watch: Watch) -> None:
    first, second = three.state.card[0], three.state.card[1]
    for active in (1, 0, 1):
        three.link(first, bytes(second.bus), active=active)
        three.link(second, bytes(first.bus), active=active)
    snapshot = watch(three).running()
    assert links(snapshot) == {(0, 1): 2, (0, 2): 0, (1, 2): 0}
    assert [pair.distance for pair in snapshot.pairs] == [10, 50, 50]


def test_a_number_without_a_link_does_not_end_the_count(three: Any, watch: Watch) -> None:
    first, second = three.state.card[0], three.state.card[1]
    for _ in range(3):
        three.link(first, bytes(second.bus))
    first.link[1].there = 0
    assert links(watch(three).running())[0, 1] == 2


def test_cards_on_the_same_switches_are_connected_by_the_fewer_links(three: Any, watch: Watch) -> None:
    for card, count in zip(three.state.card, (3, 2, 0), strict=False):
        for switch in SWITCHES:
            for _ in range(count):
                three.link(card, switch)
    assert links(watch(three).running()) == {(0, 1): 4, (0, 2): 0, (1, 2): 0}


def test_a_driver_without_nvlink_has_cards_without_links(three: Any, watch: Watch) -> None:
    three.install(hidden=["nvmlDeviceGetNvLinkState", "nvmlDeviceGetTopologyCommonAncestor"])
    snapshot = watch(three).running()
    assert links(snapshot) == {(0, 1): 0, (0, 2): 0, (1, 2): 0}
    assert {pair.distance for pair in snapshot.pairs} == {50}


def test_one_card_is_asked_for_its_links_with_each_poll_and_all_are_when_there_are_others(
    three: Any, watch: Watch
) -> None:
    watched = watch(three)
    first = watched.running()
    polls, asked = (three.calls(symbol) for symbol in ("nvmlDeviceGetCount_v2", "nvmlDeviceGetNvLinkState"))
    watched.until(lambda snapshot: snapshot.taken > first.taken + 0.2)
    asked = three.calls("nvmlDeviceGetNvLinkState") - asked
    assert 0 < asked <= 36 * (three.calls("nvmlDeviceGetCount_v2") - polls + 1)
    three.state.count = 2
    watched.until(lambda snapshot: len(snapshot.pairs) == 1)


def test_links_that_come_up_after_the_first_poll_are_seen_and_those_that_go_down_too(three: Any, watch: Watch) -> None:
    cards = three.state.card[1], three.state.card[2]
    for card, other in (cards, cards[::-1]):
        three.link(card, bytes(other.bus), active=0)
    watched = watch(three)
    assert links(watched.running())[1, 2] == 0
    for active in (1, 0):
        for card in cards:
            card.link[0].active = active
        watched.until(lambda snapshot, active=active: links(snapshot) == {(0, 1): 0, (0, 2): 0, (1, 2): active})


def test_a_card_that_is_lost_while_it_is_asked_for_its_links_has_none(three: Any, watch: Watch) -> None:
    three.fail("nvmlDeviceGetNvLinkState", 15, three.state.card[0])
    snapshot = watch(three).running()
    assert len(snapshot.cards) == 3
    assert set(links(snapshot).values()) == {0}
