"""Cards and drivers that go away, and everything around them that answers wrongly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug import NotReady
from nodeplug_gpu.cards import GpuEvent, Uuid
from nodeplug_gpu.ids import card_key

MEM = "aliyun.com/gpu-mem"
Make = Callable[..., Any]
MEMORY = {"sharing": "memory"}
GONE = "it is no longer present"


def units(number: int, count: int) -> list[str]:
    return [f"{card_key(Uuid(f'GPU-{number}'))}-{place}" for place in range(count)]


def ill(store: Any) -> list[str]:
    return [name for name, reason in store.listed().items() if reason]


def test_all_units_of_a_card_change_at_once(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0), card(1)])
    shop.look(GpuEvent("xid", Uuid("GPU-1"), 79, time=shop.now))
    assert ill(shop) == units(1, 16)
    assert set(shop.listed().values()) == {"", "XID 79 (GPU has fallen off the bus)"}


def test_a_card_that_vanishes_while_held_stays_listed(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0), card(1)])
    shop.held = {MEM: {"pod": units(1, 2)}}
    del shop.cards[1]
    shop.wait(600)
    assert ill(shop) == units(1, 16)


def test_a_lost_card_is_dropped_a_minute_after_its_release(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0), card(1)])
    shop.held = {MEM: {"pod": units(1, 2)}}
    del shop.cards[1]
    shop.wait(600)
    shop.held = {}
    shop.look(after=10.0)
    assert ill(shop) == units(1, 16)
    shop.wait()
    assert list(shop.listed()) == units(0, 16)


def test_holders_that_kubelet_forgets_for_a_moment_drop_nothing(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0), card(1)])
    shop.held = {MEM: {"pod": units(1, 2)}}
    del shop.cards[1]
    shop.wait(600)
    shop.held, known = {}, shop.held
    shop.look(after=30.0)
    shop.held = known
    shop.wait(600)
    assert ill(shop) == units(1, 16)


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_a_lost_card_is_listed_by_the_next_daemon(told: bool, store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0), card(1)])
    del shop.cards[1]
    shop.held = {MEM: {"pod": units(1, 2)}} if told else None
    shop.configure([MEMORY])
    shop.wait(600)
    assert ill(shop) == units(1, 16)
    assert shop.listed()[units(1, 1)[0]] == GONE


def test_a_card_that_comes_back_is_offered_with_the_same_units(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0), card(1)])
    before = shop.listed()
    lost = shop.cards.pop()
    shop.look(after=10.0)
    shop.cards.append(lost)
    shop.wait(200)
    assert shop.listed() == before


def test_a_driver_that_is_absent_at_first_offers_nothing_until_it_appears(store: Make, card: Make) -> None:
    shop = store([MEMORY], [])
    shop.state = "absent"
    shop.look()
    assert "as the test wants it" in shop.why_nothing(MEM)
    shop.state, shop.cards = "running", [card(0)]
    shop.look()
    assert list(shop.listed()) == units(0, 16)


@pytest.mark.parametrize("state", ["absent", "failed"])
def test_a_driver_that_goes_away_makes_all_units_unhealthy_with_its_reason(state: str, store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0)])
    shop.held = {MEM: {"pod": units(0, 2)}}
    shop.state = state
    shop.wait(600)
    assert set(shop.listed().values()) == {f"the driver is {state}: as the test wants it"}
    assert list(shop.listed()) == units(0, 16)


def test_a_driver_that_was_removed_for_good_leaves_no_resource(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0)])
    shop.state = "absent"
    shop.wait(600)
    assert [bool(shop.look(after=10.0).pools[MEM].members) for _ in range(20)] == [False] * 20


def test_a_driver_that_comes_back_offers_all_units_again(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0)])
    before = shop.listed()
    shop.state = "failed"
    shop.look(after=10.0)
    shop.state = "running"
    shop.look(after=10.0)
    assert shop.listed() == before


def test_events_of_unknown_cards_hurt_nobody(store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0)])
    shop.look(GpuEvent("xid", Uuid("GPU-99"), 79), GpuEvent("xid", None, 79))
    assert ill(shop) == []


def test_a_journal_that_takes_nothing_costs_no_card(
    store: Make, card: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = store([MEMORY], [card(0)])
    for file in tmp_path.iterdir():
        file.unlink()
    tmp_path.rmdir()
    tmp_path.touch()  # a file where the folder was: neither root nor anybody else can write there
    shop.cards.append(card(1))
    shop.wait()
    assert list(shop.listed()) == [*units(0, 16), *units(1, 16)]
    assert caplog.text.count("after a restart it will not be known which cards were advertised") == 1
    del shop.cards[1]
    shop.wait()
    assert list(shop.listed()) == units(0, 16)


@pytest.mark.parametrize("text", ["{}", "[]", "\0", '{"version": 1}', "x" * 1000])
def test_damaged_records_are_dropped(text: str, store: Make, card: Make, tmp_path: Path) -> None:
    shop = store([MEMORY], [card(0)])
    for file in tmp_path.glob("*.json"):
        file.write_text(text)
    shop.configure([MEMORY])
    assert list(shop.listed()) == units(0, 16)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"card": []},
        {"card": {"instances": [1], "compute_capability": [9, 0]}, "resource": MEM},
        {"card": {"uuid": 7, "instances": [], "compute_capability": [9, 0]}, "resource": MEM, "sharing": "memory"},
        {"card": {"instances": {}, "compute_capability": 9}},
    ],
)
def test_records_of_another_shape_are_dropped(data: Any, store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0)])
    shop.tracker.host.journal.write("card x", phase="card", data=data)
    shop.configure([MEMORY])
    assert shop.tracker.host.journal.read("card x") is None
    assert list(shop.listed()) == units(0, 16)


@pytest.mark.parametrize("sold", [True, False], ids=["sold before", "new"])
def test_a_driver_that_has_not_answered_yet_takes_no_unit_away(sold: bool, store: Make, card: Make) -> None:
    shop = store([MEMORY], [card(0)] if sold else [])
    shop.state, shop.cards = "starting", []
    shop.configure([MEMORY])
    with pytest.raises(NotReady, match="the driver has not answered"):
        shop.listed()
    with pytest.raises(NotReady, match="the driver has not answered"):
        shop.tracker.inventory.advertised(shop.tracker.entry_of(MEM), MEM)
