"""Cards and drivers that go away, and everything around them that answers wrongly."""

from collections.abc import Callable
from typing import Any

import pytest

from nodeplug import NotReady
from nodeplug_gpu.cards import GpuEvent, Uuid
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.inventory import FEWER

MEM = "aliyun.com/gpu-mem"
Make = Callable[..., Any]
MEMORY = {"sharing": "memory"}
GONE = "it is no longer present"


def units(number: int, count: int) -> list[str]:
    return [f"{card_key(Uuid(f'GPU-{number}'))}-{place}" for place in range(count)]


def ill(node: Any) -> list[str]:
    return [name for name, reason in node.listed().items() if reason]


def test_all_units_of_a_card_change_at_once(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0), card(1)])
    node.update(GpuEvent("xid", Uuid("GPU-1"), 79, time=node.now))
    assert ill(node) == units(1, 16)
    assert set(node.listed().values()) == {"", "XID 79 (GPU has fallen off the bus)"}


def test_a_card_that_vanishes_while_held_stays_listed(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0), card(1)])
    node.held = {MEM: {"pod": units(1, 2)}}
    del node.cards[1]
    node.wait(600)
    assert ill(node) == units(1, 16)


def test_a_lost_card_is_dropped_a_minute_after_its_release(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0), card(1)])
    node.held = {MEM: {"pod": units(1, 2)}}
    del node.cards[1]
    node.wait(600)
    node.held = {}
    node.update(after=10.0)
    assert ill(node) == units(1, 16)
    node.wait()
    assert list(node.listed()) == units(0, 16)


def test_holders_that_kubelet_forgets_for_a_moment_drop_nothing(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0), card(1)])
    node.held = {MEM: {"pod": units(1, 2)}}
    del node.cards[1]
    node.wait(600)
    node.held, known = {}, node.held
    node.update(after=30.0)
    node.held = known
    node.wait(600)
    assert ill(node) == units(1, 16)


@pytest.mark.parametrize("told", [None, {}])
def test_a_unit_that_its_card_no_longer_has_stays_listed_while_kubelet_forgets_it(
    told: Any, make_node: Make, card: Make
) -> None:
    node = make_node([{"sharing": "memory"}], [card(0, 8)])
    (last,) = units(0, 8)[7:]
    node.held = {MEM: {"pod": [last]}}
    node.configure([{"sharing": "memory", "reserve": "4GiB"}])
    assert node.listed()[last] == FEWER
    node.held = told
    node.wait(30)
    assert node.listed()[last] == FEWER
    node.held = {}
    node.wait(130)
    assert last not in node.listed()


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_a_lost_card_is_listed_by_the_next_daemon(told: bool, make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0), card(1)])
    del node.cards[1]
    node.held = {MEM: {"pod": units(1, 2)}} if told else None
    node.configure([MEMORY])
    node.wait(600)
    assert ill(node) == units(1, 16)
    assert node.listed()[units(1, 1)[0]] == GONE


def test_a_card_that_comes_back_is_advertised_with_the_same_units(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0), card(1)])
    before = node.listed()
    lost = node.cards.pop()
    node.update(after=10.0)
    node.cards.append(lost)
    node.wait(200)
    assert node.listed() == before


def test_a_driver_that_is_absent_at_first_advertises_nothing_until_it_appears(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [])
    node.state = "absent"
    node.update()
    assert "as the test wants it" in node.why_nothing(MEM)
    node.state, node.cards = "running", [card(0)]
    node.update()
    assert list(node.listed()) == units(0, 16)


@pytest.mark.parametrize("state", ["absent", "failed"])
def test_a_driver_that_goes_away_makes_all_units_unhealthy_with_its_reason(
    state: str, make_node: Make, card: Make
) -> None:
    node = make_node([MEMORY], [card(0)])
    node.held = {MEM: {"pod": units(0, 2)}}
    node.state = state
    node.wait(600)
    assert set(node.listed().values()) == {f"the driver is {state}: as the test wants it"}
    assert list(node.listed()) == units(0, 16)


def test_a_driver_that_was_removed_for_good_leaves_no_resource(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0)])
    node.state = "absent"
    node.wait(600)
    assert [bool(node.update(after=10.0).pools[MEM].members) for _ in range(20)] == [False] * 20


def test_a_driver_that_comes_back_advertises_all_units_again(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0)])
    before = node.listed()
    node.state = "failed"
    node.update(after=10.0)
    node.state = "running"
    node.update(after=10.0)
    assert node.listed() == before


def test_events_of_unknown_cards_hurt_nobody(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0)])
    node.update(GpuEvent("xid", Uuid("GPU-99"), 79), GpuEvent("xid", None, 79))
    assert ill(node) == []


def test_a_journal_that_takes_nothing_costs_no_card(
    make_node: Make, card: Make, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node([MEMORY], [card(0)])
    folder = node.host.journal.folder
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.touch()  # a file where the folder was: neither root nor anybody else can write there
    node.cards.append(card(1))
    node.wait()
    assert list(node.listed()) == [*units(0, 16), *units(1, 16)]
    assert caplog.text.count("after a restart it will not be known which cards were advertised") == 1
    del node.cards[1]
    node.wait()
    assert list(node.listed()) == units(0, 16)


@pytest.mark.parametrize("text", ["{}", "[]", "\0", '{"version": 1}', "x" * 1000])
def test_damaged_records_are_dropped(text: str, make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0)])
    files = list(node.host.journal.folder.glob("*.json"))
    for file in files:
        file.write_text(text)
    assert len(files) == 2
    node.configure([MEMORY])
    assert list(node.listed()) == units(0, 16)


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
def test_records_of_another_shape_are_dropped(data: Any, make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0)])
    node.tracker.host.journal.write("card x", phase="card", data=data)
    node.configure([MEMORY])
    assert node.tracker.host.journal.read("card x") is None
    assert list(node.listed()) == units(0, 16)


@pytest.mark.parametrize("sold", [True, False], ids=["sold before", "new"])
def test_a_driver_that_has_not_answered_yet_takes_no_unit_away(sold: bool, make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0)] if sold else [])
    node.state, node.cards = "starting", []
    node.configure([MEMORY])
    with pytest.raises(NotReady, match="the driver has not answered"):
        node.listed()
    with pytest.raises(NotReady, match="the driver has not answered"):
        node.tracker.inventory.advertised(node.tracker.entry_of(MEM), MEM)
