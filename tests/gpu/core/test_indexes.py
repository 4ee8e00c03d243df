"""What an index of the configuration means after cards have gone, come back, or been replaced."""

from collections.abc import Callable
from typing import Any

import pytest

from nodeplug_gpu.ids import card_key
from nodeplug_gpu.pool import assign_cards

MEM, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu"
Make = Callable[..., Any]


def only(kind: str, *indexes: int) -> dict[str, Any]:
    entry = {"sharing": kind, "cards": {"index": list(indexes)}}
    return entry if kind == "memory" else entry | {"resource": WHOLE}


ENTRIES = [only("memory", 0), only("exclusive", 1, 2)]


def shared(node: Any) -> dict[str, list[str]]:
    """Return the cards that can be allocated, by the way they are shared."""
    memory = {name.partition("-")[0] for name, why in node.listed(MEM).items() if not why}
    names = {card_key(card.uuid): card.uuid for card in node.cards}
    whole = sorted(name for name, why in node.listed(WHOLE).items() if not why)
    return {"memory": sorted(names[key] for key in memory), "whole": whole}


@pytest.fixture
def node(make_node: Make, card: Make) -> Any:
    made = make_node(ENTRIES, [card(0), card(1), card(2)])
    assert shared(made) == {"memory": ["GPU-0"], "whole": ["GPU-1", "GPU-2"]}
    return made


def test_cards_keep_their_entry_when_one_is_gone_and_the_daemon_restarts(node: Any) -> None:
    del node.cards[0]
    for _ in range(2):
        node.configure(ENTRIES)
        node.wait()
        assert shared(node) == {"memory": [], "whole": ["GPU-1", "GPU-2"]}


def test_a_card_that_comes_back_has_its_index_again(node: Any, card: Make) -> None:
    del node.cards[0]
    node.configure(ENTRIES)
    node.wait()
    node.cards.insert(0, card(0))
    node.configure(ENTRIES)
    assert shared(node) == {"memory": ["GPU-0"], "whole": ["GPU-1", "GPU-2"]}


def test_a_new_card_in_the_place_of_one_that_is_gone_takes_over_its_index(
    node: Any, card: Make, caplog: pytest.LogCaptureFixture
) -> None:
    node.cards[0] = card(7)
    node.configure(ENTRIES)
    node.wait()
    assert shared(node) == {"memory": ["GPU-7"], "whole": ["GPU-1", "GPU-2"]}
    assert "GPU-7: `index = [0]` means it from now on, in place of GPU-0, which is gone" in caplog.text
    node.cards[0] = card(0)  # the former one, in another slot by now
    node.cards.append(card(7))
    node.configure(ENTRIES)
    node.wait()
    assert shared(node) == {"memory": ["GPU-7"], "whole": ["GPU-1", "GPU-2"]}


def test_a_new_card_waits_for_the_holder_of_the_one_that_is_gone(node: Any, card: Make) -> None:
    node.held = {MEM: {"pod": [f"{card_key(card(0).uuid)}-0"]}}
    node.cards[0] = card(7)
    node.configure(ENTRIES)
    node.wait()
    assert shared(node) == {"memory": [], "whole": ["GPU-1", "GPU-2"]}
    assert "is gone, and may still have a holder" in node.tracker.inventory.unindexed["GPU-7"]
    node.held = {}
    node.wait()
    assert shared(node)["memory"] == ["GPU-7"]


def test_a_new_card_before_the_others_takes_no_index_of_theirs(
    node: Any, card: Make, caplog: pytest.LogCaptureFixture
) -> None:
    node.cards.insert(0, card(7))
    node.configure(ENTRIES)
    node.wait()
    assert shared(node) == {"memory": ["GPU-0"], "whole": ["GPU-1", "GPU-2"]}
    wanted = "`index = [0]` does not mean it: it means GPU-0, which is present; choose it by `uuid`"
    assert node.tracker.inventory.unindexed == {"GPU-7": wanted}
    assert caplog.text.count(f"GPU-7: {wanted}") == 1
    assert "GPU-1: NVML's index of it is 2 now; `index = [1]` goes on meaning it" in caplog.text


def test_a_card_of_a_new_index_is_chosen_by_it(node: Any, card: Make) -> None:
    node.configure([only("memory", 0, 3), only("exclusive", 1, 2)])
    node.cards.append(card(3))
    node.update()
    assert shared(node)["memory"] == ["GPU-0", "GPU-3"]


def test_meanings_are_forgotten_when_no_entry_has_an_index(node: Any) -> None:
    del node.cards[0]
    node.configure([{"sharing": "memory"}])
    node.configure(ENTRIES)
    node.wait()
    assert shared(node) == {"memory": ["GPU-1"], "whole": ["GPU-2"]}


def test_meanings_stay_when_the_section_is_renamed(node: Any) -> None:
    del node.cards[0]
    node.configure(ENTRIES, section="cards")
    node.wait()
    assert shared(node) == {"memory": [], "whole": ["GPU-1", "GPU-2"]}
    assert not [one for one in node.host.former_sections()[0].journal.entries() if one.phase == "index"]


def test_a_reload_looks_for_conflicts_by_the_meanings_that_are_noted(node: Any) -> None:
    del node.cards[0]
    node.configure([only("memory", 0), {"sharing": "exclusive", "resource": WHOLE, "cards": {"uuid": ["GPU-1"]}}])
    cards = node.tracker.inventory.snapshot.cards
    assert [card.index for card in cards] == [0, 1]
    assert not assign_cards(node.config.resources, cards, node.tracker.indexes.peek(cards)).conflicts


def test_a_note_that_cannot_be_read_is_none(make_node: Make, card: Make) -> None:
    node = make_node(ENTRIES, [card(0)])
    for data in ({"index": "0", "uuid": "GPU-9"}, {"index": 0}, {"uuid": "GPU-9"}, {}):
        node.host.journal.write("index 0", phase="index", data=data)
        node.configure(ENTRIES)
        node.wait()
        assert shared(node)["memory"] == ["GPU-0"]
