"""Units of memory: their size, their number, and what a container gets or is told."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from nodeplug import DeviceId, DevicePrefer, Exhausted, InvalidRequest, NotFound, NotReady, ResourceName
from nodeplug.device.codec import LIST_LIMIT, encode_list, worst_case_size
from nodeplug_gpu.cards import Card, GpuEvent
from nodeplug_gpu.config import Memory
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.sharing.memory import MAX_UNITS, unit_for

MEM = ResourceName("aliyun.com/gpu-mem")
COUNT = "aliyun.com/gpu-count"
MIB, GIB = 1 << 20, 1 << 30
Make = Callable[..., Any]


def entry(**more: Any) -> dict[str, Any]:
    return {"sharing": "memory"} | more


def units(card: Card, count: int) -> list[str]:
    return [f"{card_key(card.uuid)}-{number}" for number in range(count)]


def size(node: Any) -> int:
    return int(node.tracker.sharings[MEM].unit)


@pytest.mark.parametrize(
    ("unit", "reserve", "gib", "count"),
    [("1Gi", "0", 16, 16), ("1Gi", "512Mi", 16, 15), ("512Mi", "0", 15, 30), ("3Gi", "0", 16, 5), ("16Gi", "0", 16, 1)],
)
def test_a_card_has_as_many_units_as_fit(
    unit: str, reserve: str, gib: int, count: int, make_node: Make, card: Make
) -> None:
    node = make_node([entry(unit=unit, reserve=reserve)], [card(0, gib)])
    assert list(node.listed()) == units(card(0), count)


def test_cards_of_different_sizes_have_units_of_their_own(make_node: Make, card: Make) -> None:
    node = make_node([entry()], [card(0, 8), card(1, 24)])
    assert list(node.listed()) == [*units(card(0), 8), *units(card(1), 24)]


@pytest.mark.parametrize("more", [{"unit": "32Gi"}, {"reserve": "16Gi"}, {"reserve": "1000Gi"}])
def test_a_unit_for_which_no_card_has_room_is_explained(more: dict[str, str], make_node: Make, card: Make) -> None:
    why = make_node([entry(**more)], [card(0)]).why_nothing(MEM)
    assert "the largest card has 16384 MiB" in why
    assert "choose a smaller unit or reserve" in why


@pytest.mark.parametrize("memory", [0, -1, 1 << 62])
def test_nonsense_from_the_driver_makes_no_list_that_cannot_be_sent(memory: int, make_node: Make, card: Make) -> None:
    node = make_node([entry()], [card(0), card(1, memory=memory)])
    devices = node.tracker.inventory.devices(node.tracker.entry_of(MEM), MEM)
    assert worst_case_size(devices) <= LIST_LIMIT


def test_one_mebibyte_on_eight_large_cards_is_made_coarser_with_a_plain_message(
    make_node: Make, card: Make, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node([entry(unit="1Mi", max_units_per_card=16000)], [card(n, 80) for n in range(8)])
    assert 20 * MIB < size(node) < 22 * MIB
    encode_list(MEM, node.tracker.inventory.devices(node.tracker.entry_of(MEM), MEM))
    assert f"aliyun.com/gpu-mem: a unit is {size(node) >> 20} MiB, not 1 MiB: there would be more than" in caplog.text


@pytest.mark.parametrize("most", [1, 7, 2000, 16000])
@pytest.mark.parametrize("gib", [1, 16, 80, 141])
@pytest.mark.parametrize("cards", [1, 8, 64])
def test_the_unit_is_the_smallest_multiple_that_keeps_the_list_short(most: int, gib: int, cards: int) -> None:
    config = Memory.model_validate(entry(unit="1Mi", max_units_per_card=most))
    unit = unit_for(config, [gib * GIB] * cards)

    def fits(candidate: int) -> bool:
        count = gib * GIB // candidate
        return count <= most and count * cards <= MAX_UNITS

    assert unit % MIB == 0
    assert fits(unit)
    assert unit == MIB or not fits(unit - MIB)


def test_a_unit_keeps_its_size_while_units_are_held(make_node: Make, card: Make) -> None:
    node = make_node([entry()], [card(0)])
    node.held = {MEM: {"pod": units(card(0), 3)}}
    for _ in range(2):
        node.configure([entry(unit="512Mi")])
        node.wait()
        assert size(node) == GIB
        assert list(node.listed()) == units(card(0), 16)


def test_a_unit_keeps_its_size_while_kubelet_does_not_tell(make_node: Make, card: Make) -> None:
    node = make_node([entry()], [card(0)])
    node.held = None
    node.configure([entry(unit="512Mi")])
    node.wait()
    assert size(node) == GIB


def test_a_unit_changes_its_size_when_nothing_was_held_for_a_minute(make_node: Make, card: Make) -> None:
    node = make_node([entry()], [card(0)])
    node.held = {MEM: {"pod": units(card(0), 3)}}
    node.configure([entry(unit="512Mi")])
    node.held = {}
    node.update(after=50.0)
    assert size(node) == GIB
    node.wait()
    assert size(node) == 512 * MIB
    assert list(node.listed()) == units(card(0), 32)


def test_an_allocation_that_kubelet_has_not_reported_yet_keeps_the_size(make_node: Make, card: Make) -> None:
    node = make_node([entry()], [card(0)])
    node.configure([entry(unit="512Mi")])
    node.update(after=50.0)
    node.tracker.allocated(MEM)
    node.update(after=20.0)
    assert size(node) == GIB


def test_units_grow_for_a_larger_card_that_comes_when_nothing_is_held(make_node: Make, card: Make) -> None:
    node = make_node([entry(unit="1Mi", max_units_per_card=1000)], [card(0, 1)])
    assert size(node) == 2 * MIB
    node.cards.append(card(1, 80))
    node.held = {MEM: {"pod": units(card(0), 1)}}
    node.wait()
    assert size(node) == 2 * MIB
    node.held = {}
    node.wait()
    assert size(node) == 82 * MIB


# --- what a container gets ------------------------------------------------------------------------------------------


def test_units_of_two_cards_are_refused_with_the_numbers(make_node: Make, card: Make) -> None:
    node = make_node([entry()], [card(0, 4), card(1, 7)])
    free = tuple(map(DeviceId, [*units(card(0), 4), *units(card(1), 7)]))
    sharing = node.tracker.sharings[MEM]
    sharing.prefer(
        DevicePrefer(resource=MEM, available=free, must_include=(), size=10), node.tracker.inventory.pools[MEM]
    )
    with pytest.raises(Exhausted) as caught:
        node.allocate(MEM, *units(card(0), 4), *units(card(1), 6))
    wanted = f"10 units of {MEM} wanted on one card, the largest free card has 7: GPU-1"
    assert caught.value.message == wanted


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["ffffffff-0"], "ffffffff-0 names no card"),
        (["GPU-0_-_1"], "names no card"),
        ([], "no id names no card"),
        (["{key}-16"], "is not among the 16 units"),
        (["{key}-x"], "is not among the 16 units"),
        (["{key}-\u0663"], "is not among the 16 units"),
    ],
)
def test_ids_that_are_not_there_are_named(ids: list[str], words: str, make_node: Make, card: Make) -> None:
    with pytest.raises(NotFound, match=words):
        make_node([entry()], [card(0)]).allocate(MEM, *(one.format(key=card_key(card(0).uuid)) for one in ids))


def test_twenty_thousand_ids_of_one_card_are_allocated(make_node: Make, card: Make) -> None:
    node = make_node([entry(unit="1Mi", max_units_per_card=16000)], [card(0, 15)])
    ids = list(node.listed())
    assert len(ids) == 15360
    grant = node.allocate(MEM, *ids)
    assert grant.env["NODEPLUG_GPU_MEMORY_BYTES"] == str(15 * GIB)


def test_twenty_thousand_foreign_ids_are_refused(make_node: Make, card: Make) -> None:
    with pytest.raises(NotFound):
        make_node([entry()], [card(0)]).allocate(MEM, *(f"ffffffff-{number}" for number in range(20_000)))


def test_a_card_that_became_unhealthy_after_the_list_is_not_allocated(make_node: Make, card: Make) -> None:
    node = make_node([entry()], [card(0)])
    del node.cards[0]
    node.update()
    with pytest.raises(NotReady, match="GPU-0 cannot be allocated: it is no longer present"):
        node.allocate(MEM, *units(card(0), 1))


def test_a_card_that_is_not_healthy_is_counted_as_gpushare_does(make_node: Make, card: Make) -> None:
    """Its programs divide the node's units by this number, and show as many cards."""
    node = make_node([entry()], [card(0), card(1)])
    node.update(GpuEvent("xid", card(1).uuid, 79, time=node.now))
    assert set(node.listed(COUNT).values()) == {""}
    assert "" not in {reason for unit, reason in node.listed().items() if unit in units(card(1), 16)}


def test_the_counting_resource_lists_cards_and_refuses_to_be_allocated(make_node: Make, card: Make) -> None:
    node = make_node([entry()], [card(0), card(1)])
    names: Mapping[str, str] = node.listed(COUNT)
    assert list(names) == [f"count-{card_key(card(n).uuid)}" for n in range(2)]
    with pytest.raises(InvalidRequest, match=f"request {MEM} instead"):
        node.allocate(COUNT, *names)
