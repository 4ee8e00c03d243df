"""Limits by the kernel of what claims hold: by names of CDI alone, and harmless when a runtime applies them twice."""

from typing import Any

import pytest
from tests.gpu.kernel.limited_node import FIRST, GIB, MEM, MEMORY, Node

from nodeplug.testing.waiting import until
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.kernel import limits, spec


def test_a_claims_limit_is_a_cdi_name_also_where_the_section_asks_for_annotations(node: Node) -> None:
    access: dict[str, Any] = {"cdi": "annotation", "visible_devices": "none", "cdi_folder": str(node.folder / "cdi")}
    access |= {"cdi_write": False}
    node.plugin(resources=[MEMORY | {"access": access}], claims=True)
    (node.folder / "cdi").mkdir(exist_ok=True)
    plugin = node.made[-1]
    (entry,) = plugin._config.resources
    assert entry.access.cdi == "field"
    sharing, pool = plugin._tracker.inventory.advertised(entry, MEM)
    until(lambda: plugin._limits.limits(entry, Uuid(FIRST)))
    ids = [one.id for one in sharing.devices(MEM, pool)][:3]
    granted = plugin._limits.grant(entry, ids, sharing, pool)
    assert (granted.cdi, granted.annotations) == ((f"nodeplug.io/gpu-limit={FIRST}.{3 * GIB}",), {})


def test_a_hook_that_runs_twice_for_a_container_leaves_one_limit(node: Node) -> None:
    node.plugin(claims=True)
    granted, container = node.claim("three", 3, "main"), node.container()
    for _ in range(2):  # kubernetes#140471: a repeated preparation has each name twice
        done = node.start(granted, container)
        assert (done.returncode, done.stderr) == (0, "")
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 3 * GIB)}
    until(lambda: node.told() == [("kernel", 3 * GIB)])


def test_a_claim_that_is_prepared_again_or_only_observes_is_counted_once(node: Node) -> None:
    plugin = node.plugin(claims=True)
    asked = node.claim("three", 3, "main")

    def allocated() -> tuple[int, int]:
        (card,) = [one for one in plugin.inspect()["cards"] if one["uuid"] == FIRST]
        return card["allocated_units"], card["unconfirmed_units"]

    until(lambda: allocated() == (3, 0))
    assert node.claim("three", 3, again=True) == asked
    assert allocated() == (3, 0)
    node.claim("watcher", 8, observes=True)
    assert allocated() == (3, 0)


def test_each_container_of_a_shared_claim_has_the_limit_of_all_of_it(node: Node) -> None:
    node.plugin(claims=True)
    granted = node.claim("three", 3, "main", "side")
    containers = [node.container(name) for name in ("main", "side")]
    for one in containers:
        assert node.start(granted, one).returncode == 0
    assert node.nvml.limits() == {node.cgroup(one): (0, 0, 3 * GIB) for one in containers}
    until(lambda: node.told() == [("kernel", 3 * GIB)] * 2)
    (card,) = [one for one in node.made[-1].inspect()["cards"] if one["uuid"] == FIRST]
    assert card["allocated_units"] == 3


def test_the_limit_of_a_claim_that_has_ended_is_taken_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE_PERIOD", 0.0)
    node.plugin(claims=True)
    node.claim("three", 3, "")
    assert len(node.spec["devices"]) == 1
    node.end_claims()
    until(lambda: not (node.folder / "cdi" / spec.FILE).exists())
