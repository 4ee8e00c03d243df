"""The stand-in's topology manager settles on NUMA nodes as kubelet's does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug.testing import AdmissionError
from nodeplug.testing.kubelet.allocation import DeviceTable
from nodeplug.testing.kubelet.topology import LOCALITY, Hint, Policy, hints, settle

MACHINE = frozenset({0, 1})
BOTH, NEAR, FAR = MACHINE, frozenset({0}), frozenset({1})
TABLE = DeviceTable({"a": NEAR, "b": NEAR, "c": FAR, "d": FAR, "bare": frozenset()})
NONE: frozenset[str] = frozenset()


def test_hints_prefer_the_fewest_nodes_that_could_ever_serve() -> None:
    assert hints(TABLE, MACHINE, TABLE.healthy.keys(), NONE, 2) == [
        Hint(NEAR, True),
        Hint(FAR, True),
        Hint(BOTH, False),
    ]
    assert hints(TABLE, MACHINE, {"a", "c"}, NONE, 2) == [Hint(BOTH, False)], "one node could, were its devices free"


def test_reused_devices_must_be_reached() -> None:
    assert hints(TABLE, MACHINE, {"a", "b", "d"}, frozenset({"c"}), 2) == [Hint(FAR, True), Hint(BOTH, False)]


def test_devices_without_a_node_fit_nowhere() -> None:
    assert hints(DeviceTable({"bare": frozenset()}), MACHINE, {"bare"}, NONE, 1) == []


@pytest.mark.parametrize(
    ("policy", "offers", "nodes"),
    [
        ("none", [[]], None),
        ("best-effort", [[]], BOTH),
        ("best-effort", [[Hint(NEAR, True), Hint(BOTH, False)]], NEAR),
        ("restricted", [[Hint(BOTH, True)]], BOTH),
        ("single-numa-node", [[Hint(FAR, True)], None], FAR),
        ("single-numa-node", [None], None),
        ("restricted", [[Hint(NEAR, True), Hint(FAR, True)], [Hint(FAR, True)]], FAR),
    ],
)
def test_policy_settles_on_nodes(policy: Policy, offers: list[list[Hint] | None], nodes: frozenset[int] | None) -> None:
    assert settle(policy, MACHINE, offers) == nodes


@pytest.mark.parametrize(
    ("policy", "offers"),
    [
        ("restricted", [[]]),
        ("restricted", [[Hint(NEAR, True)], [Hint(FAR, True)]]),
        ("restricted", [[Hint(BOTH, False)]]),
        ("single-numa-node", [[Hint(BOTH, True)]]),
        ("single-numa-node", [[]]),
    ],
)
def test_strict_policy_rejects_the_pod(policy: Policy, offers: list[list[Hint] | None]) -> None:
    with pytest.raises(AdmissionError, match=LOCALITY):
        settle(policy, MACHINE, offers)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([NEAR, FAR, BOTH, frozenset()]), max_size=6),
    st.integers(1, 6),
)
def test_every_hint_has_enough_devices(healthy: dict[str, frozenset[int]], size: int) -> None:
    for hint in hints(DeviceTable(healthy), MACHINE, healthy.keys(), NONE, size):
        assert hint.nodes
        assert sum(1 for nodes in healthy.values() if nodes & hint.nodes) >= size
