"""Which cards a container gets: those that are connected best."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random

import pytest

from nodeplug import DeviceId, DevicePrefer, ResourceName
from nodeplug_gpu.cards import CardPair, Uuid
from nodeplug_gpu.connected import best_connected

CUBE_MESH = {
    two: 1 + (two in {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)})
    for two in [(a, b) for a, b in combinations(range(8), 2) if a // 4 == b // 4 or b == a + 4]
}
"""NVLinks of a DGX-1 with V100 (NVIDIA, "DGX-1 System Architecture", hybrid cube mesh)."""


def ids(count: int) -> list[DeviceId]:
    return [DeviceId(f"GPU-{n}") for n in range(count)]


def pairs(
    count: int, links: Mapping[tuple[int, int], int], near: Sequence[tuple[int, int]] = ()
) -> tuple[CardPair, ...]:
    return tuple(
        CardPair(Uuid(f"GPU-{a}"), Uuid(f"GPU-{b}"), links.get((a, b), 0), 10 if (a, b) in near else 40)
        for a, b in combinations(range(count), 2)
    )


def asking(size: int, available: Sequence[DeviceId], must: Sequence[DeviceId] = ()) -> DevicePrefer:
    return DevicePrefer(
        resource=ResourceName("nvidia.com/gpu"), available=tuple(available), must_include=tuple(must), size=size
    )


def chosen(request: DevicePrefer, nodes: Mapping[DeviceId, str], links: Sequence[CardPair]) -> list[int]:
    return sorted(int(name.removeprefix("GPU-")) for name in best_connected(request, nodes, links))


def one_node(count: int) -> dict[DeviceId, str]:
    return dict.fromkeys(ids(count), "node 0")


def two_nodes(count: int) -> dict[DeviceId, str]:
    return {name: f"node {number * 2 // count}" for number, name in enumerate(ids(count))}


@pytest.mark.parametrize(("size", "cards"), [(2, [0, 3]), (4, [0, 1, 2, 3]), (8, [*range(8)])])
def test_most_links_in_a_mesh(size: int, cards: Sequence[int]) -> None:
    assert chosen(asking(size, ids(8)), two_nodes(8), pairs(8, CUBE_MESH)) == cards


def test_a_bridge_counts_more_than_a_numa_node() -> None:
    nodes = {name: f"node {number % 2}" for number, name in enumerate(ids(4))}
    assert chosen(asking(2, ids(4)), nodes, pairs(4, {(0, 1): 4, (2, 3): 4})) == [0, 1]


def test_cards_with_equal_links_are_of_one_numa_node_then_near_on_pcie() -> None:
    links = dict.fromkeys(combinations(range(8), 2), 12)
    assert chosen(asking(4, ids(8)[2:]), two_nodes(8), pairs(8, links)) == [4, 5, 6, 7]
    near = [(1, 2)]
    assert chosen(asking(2, ids(4)), one_node(4), pairs(4, {}, near)) == [1, 2]


def test_a_single_card_is_the_one_that_the_others_miss_least() -> None:
    assert chosen(asking(1, ids(3)), one_node(3), pairs(3, {(0, 1): 4})) == [2]


def test_what_must_be_included_decides_who_comes_with_it() -> None:
    assert chosen(asking(2, ids(8), ids(8)[5:6]), two_nodes(8), pairs(8, CUBE_MESH)) == [5, 6]


def test_without_knowledge_numa_nodes_decide() -> None:
    assert chosen(asking(2, ids(4)[1:]), two_nodes(4), ()) == [2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_set_has_more_links_and_the_order_of_kubelets_list_does_not_matter(seed: int) -> None:
    random = Random(seed)
    count = random.randint(2, 8)
    links = {two: random.randint(0, 3) for two in combinations(range(count), 2)}
    available = random.sample(ids(count), random.randint(1, count))
    must = available[: random.randint(0, 1)]
    size = random.randint(1, len(available))
    known = {one: two_nodes(count)[one] for one in ids(count)}

    def total(cards: Sequence[int]) -> int:
        return sum(links[two] for two in combinations(sorted(cards), 2))

    found = chosen(asking(size, available, must), known, pairs(count, links))
    numbers = [int(name.removeprefix("GPU-")) for name in available]
    pinned = {int(name.removeprefix("GPU-")) for name in must}
    others = [one for one in combinations(numbers, size) if pinned <= {*one}]
    assert len(found) == size
    assert total(found) == max(map(total, others))
    assert found == chosen(asking(size, available[::-1], must), known, pairs(count, links))


def test_of_many_cards_as_many_as_wanted_are_found() -> None:
    islands = {(a, b): 2 for a, b in combinations(range(24), 2) if a // 8 == b // 8}
    request = asking(8, ids(24)[4:])
    assert chosen(request, one_node(24), pairs(24, islands)) == [*range(8, 16)]
