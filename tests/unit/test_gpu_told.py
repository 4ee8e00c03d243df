"""By which figures a node chooses cards: those that it told last come into force when they have been seen."""

from collections.abc import Sequence

import pytest

from nodeplug import DeviceId
from nodeplug_gpu.free_memory import SETTLES
from nodeplug_gpu.sharing.told import ToldUnits

UNITS = tuple(map(DeviceId, "abcd"))


class Node:
    """Units of which the cluster is told, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.units = ToldUnits(lambda: self.now)

    def tell(self, held: str, grants: int | None = None) -> None:
        self.units.tell(frozenset(map(DeviceId, held)), self.units.grants() if grants is None else grants)

    def grant(self, granted: str) -> None:
        self.units.grant(map(DeviceId, granted))

    @property
    def free(self) -> Sequence[str]:
        return ["".join(one) for one in self.units.free(UNITS)]


@pytest.fixture
def node() -> Node:
    return Node()


def test_until_something_is_told_all_that_kubelet_has_free_is(node: Node) -> None:
    node.grant("a")
    assert node.free == ["abcd"]


def test_the_former_figures_are_in_force_until_the_new_ones_have_been_seen(node: Node) -> None:
    node.tell("ab")
    node.now += 1
    node.tell("a")
    assert node.free == ["cd", "bcd", "abcd"]
    node.now += SETTLES
    assert node.free == ["bcd", "abcd"]


def test_what_is_granted_is_free_by_no_figures_that_do_not_have_it(node: Node) -> None:
    node.tell("a")
    node.grant("b")
    before = node.units.grants()
    node.grant("c")
    node.tell("ab", before)
    assert node.free == ["d", "d", "abcd"]
    node.now += 1
    node.tell("a")  # the pods with b and c have ended
    assert node.free == ["d", "d", "bcd", "abcd"]


def test_a_grant_that_came_between_the_first_report_and_its_telling_is_not_free(node: Node) -> None:
    node.grant("a")
    before = node.units.grants()
    node.grant("b")
    node.tell("a", before)
    assert node.free == ["cd", "abcd"]
