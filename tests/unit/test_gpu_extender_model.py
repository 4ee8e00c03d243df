"""The extender's view of one node: containers in kubelet's order, pods that are under way, and verdicts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from nodeplug import InvalidRequest
from nodeplug_gpu.extender.assumptions import REPLACED, SETTLED, Assumed, Assumptions, Outcome
from nodeplug_gpu.extender.model import NodeModel, Verdict, place
from nodeplug_gpu.extender.wants import Kind, Want, wants_of
from nodeplug_gpu.free_memory import FreeCard, FreeMemory, PodName
from nodeplug_gpu.ids import CardKey

MEM = "aliyun.com/gpu-mem"
A, B = CardKey("aaaaaaaa"), CardKey("bbbbbbbb")


def node(free_a: int, free_b: int, *pods: str, policy: str = "binpack", seq: int = 1) -> FreeMemory:
    """Return what a node says that has a card with 10 units and one with 20."""
    cards = (FreeCard(A, "GPU-a", 0, 10, free_a), FreeCard(B, "GPU-b", 1, 20, free_b))
    return FreeMemory(MEM, seq, 1 << 30, policy, cards, tuple(PodName(*one.split("/")) for one in pods))


def apps(*units: int) -> tuple[Want, ...]:
    return tuple(Want("app", one) for one in units)


def container(units: str | None, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": {MEM: units}} if units else {}, **more}


# --- what a pod wants


def test_init_containers_come_first_and_those_that_want_nothing_are_left_out() -> None:
    init = [container("4"), container("1", restartPolicy="Always"), container(None)]
    pod = {"spec": {"initContainers": init, "containers": [container("2"), container("0"), container("3")]}}
    assert wants_of(pod, MEM) == (Want("init", 4), Want("sidecar", 1), Want("app", 2), Want("app", 3))


@pytest.mark.parametrize(("text", "units"), [("7", 7), ("1k", 1000), ("2Ki", 2048)])
def test_units_are_read_as_the_api_server_writes_them(text: str, units: int) -> None:
    assert wants_of({"spec": {"containers": [container(text)]}}, MEM) == apps(units)


def test_a_pod_without_anything_wants_nothing() -> None:
    assert wants_of({}, MEM) == wants_of({"spec": {"containers": [{"resources": None}]}}, MEM) == ()


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no whole number of units"):
        wants_of({"spec": {"containers": [container("much")]}}, MEM)


# --- containers and cards


@pytest.mark.parametrize(
    ("wants", "cards", "left"),
    [
        ([("app", 5)], [A], (5, 20)),
        ([("app", 11)], [B], (10, 9)),
        ([("app", 6), ("app", 5)], [A, B], (4, 15)),
        ([("init", 8), ("app", 3)], [A, A], (2, 20)),  # the app takes what its init container leaves
        ([("init", 3), ("app", 8)], [A, A], (2, 20)),  # and the rest of the same card
        ([("init", 8), ("app", 3), ("app", 5)], [A, A, A], (2, 20)),
        ([("init", 8), ("init", 9), ("app", 9)], [A, A, A], (1, 20)),
        ([("init", 4), ("sidecar", 4), ("app", 4)], [A, A, A], (2, 20)),
        ([("sidecar", 9), ("init", 4), ("app", 4)], [A, B, B], (1, 16)),
        ([("init", 2), ("app", 1), ("app", 1), ("app", 9)], [A, A, A, B], (8, 11)),
    ],
)
def test_containers_get_the_cards_that_kubelet_gives_them(
    wants: list[tuple[Kind, int]], cards: Sequence[CardKey], left: tuple[int, int]
) -> None:
    placed = place({A: 10, B: 20}, [Want(*one) for one in wants], "binpack")
    assert placed is not None
    assert (placed.cards, placed.free) == (tuple(cards), {A: left[0], B: left[1]})


@pytest.mark.parametrize(
    "wants",
    [
        [("app", 21)],
        [("app", 15), ("app", 15)],
        [("init", 3), ("app", 11)],  # the card of what the init container leaves has no more
    ],
)
def test_a_pod_one_of_whose_containers_finds_no_card_is_rejected(wants: list[tuple[Kind, int]]) -> None:
    assert place({A: 10, B: 20}, [Want(*one) for one in wants], "binpack") is None


def test_the_policy_of_the_node_chooses_the_card() -> None:
    placed = NodeModel.of(node(10, 20, policy="spread")).place(apps(5))
    assert placed is not None
    assert placed.cards == (B,)


# --- a node


def test_nothing_of_a_card_that_is_not_healthy_is_free() -> None:
    whole = node(10, 20)
    ill = replace(whole, cards=(whole.cards[0], replace(whole.cards[1], healthy=False)))
    assert NodeModel.of(ill).free == {A: 10, B: 0}
    assert NodeModel.of(ill).judge(apps(15)) == "full"  # it may recover


def test_pods_under_way_are_subtracted_in_order_and_rejected_ones_take_nothing() -> None:
    assert NodeModel.of(node(10, 20), [apps(8), apps(3), apps(18), apps(17)]).free == {A: 2, B: 0}


def test_what_pods_take_of_known_cards_is_subtracted_there_and_a_card_never_has_less_than_nothing() -> None:
    assert NodeModel.of(node(10, 5), [apps(4)], {A: 3, B: 9, CardKey("gone"): 1}).free == {A: 3, B: 0}
    model = NodeModel.of(node(5, 8))
    placed = model.place(apps(4, 7))
    assert placed is not None
    assert model.takes(placed) == {A: 4, B: 7}


def test_of_a_pod_that_is_rejected_no_container_takes_anything() -> None:
    assert NodeModel.of(node(10, 20), [apps(10, 21)]).free == {A: 10, B: 20}


@pytest.mark.parametrize(("units", "verdict"), [(9, "fits"), (15, "full"), (20, "full"), (21, "never")])
def test_a_verdict_tells_full_cards_from_small_ones(units: int, verdict: Verdict) -> None:
    assert NodeModel.of(node(10, 9)).judge(apps(units)) == verdict


def test_a_node_without_cards_never_has_room() -> None:
    assert NodeModel.of(replace(node(0, 0), cards=())).judge(apps(1)) == "never"


@pytest.mark.parametrize(("policy", "score"), [("binpack", 8), ("spread", 5)])
def test_a_score_is_that_of_the_card_which_the_pod_gets(policy: Any, score: int) -> None:
    assert NodeModel.of(node(5, 20)).score(apps(3), policy) == score


def test_a_pod_that_does_not_fit_has_no_score() -> None:
    assert NodeModel.of(node(5, 5)).score(apps(6), "binpack") == 0


def test_without_pods_their_units_are_free_and_never_more_than_the_card_has() -> None:
    model = NodeModel.of(node(4, 0)).without([{A: 3, B: 5}, {A: 9, CardKey("gone"): 1}])
    assert model.free == {A: 10, B: 5}


# --- pods that are under way


def under_way(known: Assumptions, published: FreeMemory, now: float = 1.0, **more: Any) -> list[int]:
    return [wants[0].units for wants in known.under_way("n", published, now, **more).strangers]


def taken(known: Assumptions, published: FreeMemory, now: float = 1.0, **more: Any) -> list[dict[CardKey, int]]:
    found = known.under_way("n", published, now, **more)
    return [dict(found.takes(one)) for one in found.outcomes]


def outcome(**pods: dict[CardKey, int]) -> Outcome:
    return frozenset((f"uid-{name}", frozenset(units.items())) for name, units in pods.items())


def place_one(known: Assumptions, name: str, published: FreeMemory, *outcomes: Outcome) -> None:
    placed = replace(assumed(name, 3), placed=True, before=published.seq)
    known.assume(placed, published, outcomes)


def assumed(name: str, units: int, since: float = 0.0, where: str = "n") -> Assumed:
    return Assumed(f"uid-{name}", "default", name, where, apps(units), since)


def test_a_pod_is_under_way_until_the_node_names_it() -> None:
    known, before = Assumptions(), node(10, 20)
    for number, name in enumerate(("one", "two", "three")):
        known.assume(assumed(name, number + 1), before)
    known.assume(assumed("other", 9, where="elsewhere"), before)
    assert under_way(known, before) == [1, 2, 3]
    assert under_way(known, node(10, 20, "default/one", "?/uid-three", seq=2)) == [2]
    assert under_way(known, before, but={"uid-two"}) == [1, 3]


def test_a_pod_whose_cards_were_judged_takes_those_until_its_node_names_it() -> None:
    known, before = Assumptions(), node(10, 20)
    place_one(known, "one", before, outcome(one={A: 3}))
    place_one(known, "two", before, outcome(one={A: 3}, two={A: 1, B: 2}))
    known.assume(assumed("strange", 5), before)
    assert taken(known, before) == [{A: 4, B: 2}]
    assert taken(known, before, but={"uid-one"}) == [{A: 1, B: 2}]
    assert under_way(known, before) == [5]
    assert taken(known, node(10, 20, "default/one", seq=2)) == [{A: 1, B: 2}]
    known.forget("uid-two")
    assert taken(known, before) == [{A: 3}]
    assert known.under_way("elsewhere", before, 1.0).outcomes == (frozenset(),)


def test_a_pod_that_its_node_has_named_counts_beside_the_figures_before() -> None:
    known, before, after = Assumptions(), node(10, 20), node(7, 20, "default/one", seq=2)
    place_one(known, "one", before, outcome(one={A: 3}))
    assert taken(known, after) == [{}]
    assert taken(known, before, former=True) == [{A: 3}]


def test_of_what_may_become_of_pods_that_is_left_which_the_node_says() -> None:
    known, before, after = Assumptions(), node(10, 20), node(10, 17, "default/one", seq=2)
    place_one(known, "one", before, outcome(one={A: 3}), outcome(one={B: 3}))
    place_one(known, "two", before, outcome(one={A: 3}, two={B: 4}), outcome(one={B: 3}, two={A: 4}))
    assert taken(known, after) == [{B: 4}, {A: 4}]
    known.settle("n", {"uid-one": {B: 3}}, forget=False)
    assert taken(known, after) == [{A: 4}]
    assert taken(known, before, former=True) == [{A: 4, B: 3}]
    known.settle("n", {"uid-one": {B: 3}}, forget=True)
    assert known.under_way("n", after, 1.0).outcomes == (outcome(two={A: 4}),)


def test_a_pod_that_has_begun_and_that_its_node_does_not_name_may_have_ended() -> None:
    known, before = Assumptions(), node(10, 20)
    place_one(known, "one", before, outcome(one={A: 3}))
    assert taken(known, before, waiting=()) == [{A: 3}]  # it was placed by these figures
    assert taken(known, node(10, 19, seq=2), waiting={"uid-one"}) == [{A: 3}]  # it waits for its node
    assert taken(known, node(10, 19, seq=3), waiting=None) == [{A: 3}]  # nobody knows
    assert taken(known, node(10, 18, seq=4), waiting=()) == [{A: 3}, {}]


def test_a_pod_that_was_named_and_is_gone_is_not_under_way_again() -> None:
    known = Assumptions()
    known.assume(assumed("one", 1), node(10, 20))
    assert under_way(known, node(9, 20, "default/one", seq=2)) == []
    assert under_way(known, node(10, 20, seq=3)) == []
    assert under_way(known, node(10, 20, seq=1)) == [1]  # an older annotation


def test_a_pod_that_is_named_counts_in_no_addition_though_the_numbers_of_its_node_begin_lower_again() -> None:
    known = Assumptions()
    known.assume(assumed("one", 1), node(10, 20))
    assert under_way(known, node(9, 20, "default/one", seq=1_790_000_000_000)) == []
    assert under_way(known, node(9, 20, "default/one", seq=1)) == []  # its clock was set back, its daemon started anew


def test_a_pod_whose_predecessor_of_that_name_is_still_named_counts_until_that_is_gone() -> None:
    known, before = Assumptions(), node(5, 20, "default/one")
    known.assume(assumed("one", 1), before)
    assert under_way(known, before) == [1]
    assert under_way(known, node(6, 20, "default/one", seq=2)) == [1]  # perhaps something else has changed
    assert under_way(known, node(10, 20, seq=3)) == [1]
    assert under_way(known, node(9, 20, "default/one", seq=4)) == []


def test_a_predecessor_that_was_never_seen_to_go_is_taken_for_gone_after_a_while() -> None:
    known = Assumptions()
    known.assume(assumed("one", 1), node(5, 20, "default/one"))
    assert under_way(known, node(9, 20, "default/one", seq=2), now=REPLACED + 1) == []


def test_a_successor_with_the_same_units_counts_once_though_the_node_has_nothing_new_to_say() -> None:
    known, before = Assumptions(), node(5, 20, "default/one")
    known.assume(assumed("one", 5), before)
    assert under_way(known, before, now=REPLACED - 1) == [5]
    assert under_way(known, before, now=REPLACED + 1) == []
    assert known.unnamed == 0


def test_a_pod_that_is_forgotten_counts_no_more() -> None:
    known = Assumptions()
    known.assume(assumed("one", 1), None)
    known.forget("uid-one")
    known.forget("uid-one")
    assert (under_way(known, node(10, 20)), len(known)) == ([], 0)


def test_a_pod_counts_once_and_on_one_node() -> None:
    known = Assumptions()
    known.assume(assumed("one", 1, where="elsewhere"), None)
    known.assume(assumed("one", 1), None)
    known.assume(assumed("one", 1), None)
    assert under_way(known, node(10, 20)) == [1]
    assert known.under_way("elsewhere", node(10, 20), 1.0).strangers == []


def test_pods_that_no_node_names_are_told_after_a_while_and_named_ones_are_forgotten() -> None:
    known = Assumptions()
    known.assume(assumed("named", 1), None)
    known.assume(assumed("lost", 2), None)
    known.assume(assumed("late", 3, since=SETTLED), None)
    under_way(known, node(9, 20, "default/named", seq=2))
    assert [one.name for one in known.waiting(SETTLED + 1, 5.0)] == ["lost"]
    assert (len(known), known.unnamed) == (2, 2)
