"""Whole cards, and time-sliced cards."""

from collections.abc import Callable
from typing import Any

import pytest

from nodeplug import DeviceId, DevicePrefer, InvalidRequest, NotFound, NotReady, ResourceName
from nodeplug_gpu import report
from nodeplug_gpu.cards import CardPair, Uuid
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.overuse import OveruseWatch

WHOLE, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
Make = Callable[..., Any]
EXCLUSIVE = {"sharing": "exclusive", "resource": WHOLE}
REPLICAS = {"sharing": "replicas", "resource": SHARED, "replicas": 4}


def share(number: int, place: int = 0) -> str:
    return f"{card_key(f'GPU-{number}')}-{place}"


def test_a_card_gives_its_uuid(make_node: Make, card: Make) -> None:
    node = make_node([EXCLUSIVE], [card(0), card(1)])
    assert node.allocate(WHOLE, "GPU-1").env == {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}


def test_cards_are_named_in_the_order_of_their_indexes(make_node: Make, card: Make) -> None:
    node = make_node([EXCLUSIVE], [card(0), card(1)])
    assert node.allocate(WHOLE, "GPU-1", "GPU-0").env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"


def test_a_container_never_gets_fewer_cards_than_it_asked_for(make_node: Make, card: Make) -> None:
    node = make_node([EXCLUSIVE], [card(0), card(1)])
    with pytest.raises(NotFound, match="GPU-7 is not among the 2 cards"):
        node.allocate(WHOLE, "GPU-0", "GPU-7")


def test_a_card_that_is_gone_is_not_allocated(make_node: Make, card: Make) -> None:
    node = make_node([EXCLUSIVE], [card(0), card(1)])
    del node.cards[1]
    node.update()
    with pytest.raises(NotReady, match="it is no longer present"):
        node.allocate(WHOLE, "GPU-0", "GPU-1")


def test_a_card_has_its_numa_node(make_node: Make, card: Make) -> None:
    node = make_node([EXCLUSIVE], [card(0, numa_node=1), card(1, numa_node=-1), card(2)])
    devices = node.tracker.inventory.devices(node.tracker.entry_of(WHOLE), WHOLE)
    assert [one.numa_nodes for one in devices] == [(1,), (), ()]


def test_each_card_has_its_replicas(make_node: Make, card: Make) -> None:
    node = make_node([REPLICAS], [card(0), card(1)])
    assert list(node.listed(SHARED)) == [share(number, place) for number in range(2) for place in range(4)]


def test_a_second_replica_is_refused_with_the_way_out(make_node: Make, card: Make) -> None:
    node = make_node([REPLICAS], [card(0), card(1)])
    with pytest.raises(InvalidRequest, match="refuse_more_than_one = false allows it"):
        node.allocate(SHARED, share(0), share(1))


def test_replicas_of_one_card_name_it_once(make_node: Make, card: Make) -> None:
    node = make_node([REPLICAS | {"refuse_more_than_one": False}], [card(0), card(1)])
    assert node.allocate(SHARED, share(0), share(0, 1)).env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"


@pytest.mark.parametrize("ids", [[share(9)], [share(0), share(9)], [share(0, 4)], ["GPU-0"], [""], []])
def test_shares_that_are_not_there_are_refused(ids: list[str], make_node: Make, card: Make) -> None:
    node = make_node([REPLICAS | {"refuse_more_than_one": False}], [card(0)])
    with pytest.raises(NotFound):
        node.allocate(SHARED, *ids)


def test_held_shares_stay_listed_when_there_are_fewer(make_node: Make, card: Make) -> None:
    node = make_node([REPLICAS], [card(0)])
    node.held = {SHARED: {"pod": [share(0, 3)], "other": [share(0, 1)]}}
    node.configure([REPLICAS | {"replicas": 2}])
    why = "1 of its allocated replicas exceed the 2 configured now"
    assert node.listed(SHARED) == {
        share(0): why,
        share(0, 1): "",
        share(0, 3): "its card has fewer units now",
    }


def test_cards_with_links_between_them_are_preferred_and_the_document_tells_the_links(
    make_node: Make, card: Make
) -> None:
    node = make_node([EXCLUSIVE], [card(number, numa_node=number // 2) for number in range(4)])
    node.pairs = (CardPair(Uuid("GPU-1"), Uuid("GPU-2"), 4, 50), CardPair(Uuid("GPU-0"), Uuid("GPU-1"), 0, 10))
    node.update()
    sharing, pool = node.tracker.inventory.advertised(node.tracker.entry_of(WHOLE), WHOLE)
    available = tuple(DeviceId(f"GPU-{number}") for number in range(4))
    asked = DevicePrefer(resource=ResourceName(WHOLE), available=available, must_include=(), size=2)
    assert sorted(sharing.prefer(asked, pool)) == ["GPU-1", "GPU-2"]
    told = report.document(node.config, node.tracker, OveruseWatch({}, node.host))["cards"]
    assert [one["nvlinks"] for one in told] == [{}, {"GPU-2": 4}, {"GPU-1": 4}, {}]


def test_what_a_node_does_not_have_beside_its_cards_is_a_note_of_the_resource(make_node: Make, card: Make) -> None:
    node = make_node([EXCLUSIVE | {"access": {"imex_channels": [2047]}}], [card(0)])
    (told,) = report.document(node.config, node.tracker, OveruseWatch({}, node.host))["resources"]
    assert told["notes"] == [
        "containers get no IMEX channel 2047: the node has no /dev/nvidia-caps-imex-channels/channel2047"
    ]
