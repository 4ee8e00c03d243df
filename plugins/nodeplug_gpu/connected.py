"""Which whole cards a container should get: those that are connected best.

Owns: the choice, as a pure function: most NVLinks among them, then fewest NUMA nodes, then nearest on PCIe; and of
equal choices the one that leaves the other cards connected best.
Refuses: to read connections (the driver does), and to fail, as all of `placement`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

from nodeplug import DeviceId, DevicePrefer
from nodeplug_gpu.cards import CardPair
from nodeplug_gpu.placement import packed

_MAX_CHOICES: Final = 5000
"""Up to so many sets all are compared: any number of 14 cards, up to 4 of 20. Else cards are added one by one."""
_Score = tuple[int, int, int, int, int]


def best_connected(
    request: DevicePrefer, nodes: Mapping[DeviceId, str], pairs: Sequence[CardPair]
) -> Sequence[DeviceId]:
    """Choose cards.

    Args:
        request: what kubelet asks for.
        nodes: the NUMA node of each card, in the order in which equal cards are taken.
        pairs: how cards are connected; where nothing is known, NUMA nodes alone count.
    """
    must = list(dict.fromkeys(request.must_include))
    free = [name for name in nodes if name in set(request.available) - set(must)]
    known = {frozenset((DeviceId(pair.one), DeviceId(pair.other))): pair for pair in pairs}
    if not any(frozenset(two) in known for two in combinations([*must, *free], 2)):
        return packed(request, nodes)
    wanted = min(max(request.size - len(must), 0), len(free))
    search = _Search(nodes, known)
    if comb(len(free), wanted) <= _MAX_CHOICES:
        return search.exact(must, free, wanted)
    return search.grown(must, free, wanted)


class _Search:
    def __init__(self, nodes: Mapping[DeviceId, str], pairs: Mapping[frozenset[DeviceId], CardPair]) -> None:
        self._nodes = nodes
        self._pairs = pairs

    def exact(self, must: Sequence[DeviceId], free: Sequence[DeviceId], wanted: int) -> list[DeviceId]:
        """Return the best of all sets; of equal ones the first."""
        best = max(combinations(free, wanted), key=lambda chosen: self._score([*must, *chosen], free))
        return [*must, *best]

    def grown(self, must: Sequence[DeviceId], free: Sequence[DeviceId], wanted: int) -> list[DeviceId]:
        """Return a good set of very many: from each card on, the nearest one is added until there are enough."""
        starts = [list(must)] if must else [[name] for name in free]
        size = len(must) + wanted
        return max((self._grow(start, free, size) for start in starts), key=lambda chosen: self._score(chosen, free))

    def _grow(self, chosen: list[DeviceId], free: Sequence[DeviceId], size: int) -> list[DeviceId]:
        while len(chosen) < size:
            left = [name for name in free if name not in chosen]
            chosen.append(max(left, key=lambda name: self._nearness(name, chosen)))
        return chosen

    def _nearness(self, name: DeviceId, chosen: Sequence[DeviceId]) -> tuple[int, int, int]:
        between = [pair for one in chosen if (pair := self._pairs.get(frozenset((name, one)))) is not None]
        node = self._nodes.get(name, name)
        same = sum(self._nodes.get(one, one) == node for one in chosen)
        return sum(pair.links for pair in between), same, -sum(pair.distance for pair in between)

    def _score(self, chosen: Sequence[DeviceId], free: Sequence[DeviceId]) -> _Score:
        used = {self._nodes.get(name, name) for name in chosen}
        rest = [name for name in free if name not in chosen]
        # A small NUMA node is used up before a large one is broken up.
        left = sum(self._nodes.get(name, name) in used for name in rest)
        inside = self._among(chosen)
        return (
            sum(pair.links for pair in inside),
            -len(used),
            -left,
            -sum(pair.distance for pair in inside),
            sum(pair.links for pair in self._among(rest)),
        )

    def _among(self, cards: Iterable[DeviceId]) -> list[CardPair]:
        return [pair for two in combinations(cards, 2) if (pair := self._pairs.get(frozenset(two))) is not None]
