"""How much a container is limited to: what it was allocated, and never more."""

import json
import subprocess
import threading
from pathlib import Path

import pytest
from tests.gpu.kernel.limited_node import FIRST, GIB, MEMORY, REPLICAS, SET, SHARED, Node

from nodeplug.testing.waiting import until
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.kernel.held import Held, HeldLimits


def test_an_amount_that_was_never_allocated_is_not_set(node: Node) -> None:
    node.plugin()
    (name,), container = node.allocate(3).cdi, node.container()
    (hook,) = node.spec["devices"][0]["containerEdits"]["hooks"]
    words = [str(70 * GIB) if word == str(3 * GIB) else word for word in hook["args"]]
    state = json.dumps({"id": container[0], "pid": container[1]})
    done = subprocess.run(words, executable=hook["path"], input=state, capture_output=True, text=True, check=False)
    assert name.endswith(str(3 * GIB))
    assert done.returncode == 1
    assert f"{70 * GIB} bytes of {FIRST} were allocated to no container of this node" in done.stderr
    assert node.nvml.limits() == {}


def test_a_limit_is_not_raised_by_the_name_of_a_neighbours(node: Node) -> None:
    node.plugin()
    own, neighbours, container = node.allocate(2), node.allocate(12), node.container()
    assert node.start(own, container).returncode == 0
    done = node.start(neighbours, container)
    assert done.returncode == 1
    assert f"it has a limit of {2 * GIB} bytes, which is not raised to {12 * GIB}" in done.stderr
    node.nvml.fail(SET, 999)
    assert node.start(own, container).returncode == 1
    node.nvml.fail(SET, 0)
    assert node.start(neighbours, container).returncode == 1  # what failed has not been forgotten
    assert node.start(own, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 2 * GIB)}


def test_a_limit_becomes_the_lower_one_of_two_names(node: Node) -> None:
    node.plugin()
    neighbours, own, container = node.allocate(12), node.allocate(2), node.container()
    assert [node.start(one, container).returncode for one in (neighbours, own)] == [0, 0]
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 2 * GIB)}


def test_of_two_requests_for_one_container_the_second_waits_for_the_first(tmp_path: Path) -> None:
    held, came = HeldLimits(tmp_path / "held"), threading.Event()
    seen: list[Held | None] = []

    def second() -> None:
        came.set()
        with held.alone("a", Uuid(FIRST)) as before:
            seen.append(before)

    asking = threading.Thread(target=second, daemon=True)
    with held.alone("a", Uuid(FIRST)):
        asking.start()
        came.wait()
        with held.alone("b", Uuid(FIRST)) as other:
            assert other is None
        held.put(first := Held("a", Uuid(FIRST), "/", GIB, GIB))
    asking.join()
    assert seen == [first]


def test_a_replica_is_limited_to_its_share_of_the_card(node: Node) -> None:
    node.plugin(resources=[REPLICAS])
    granted, container = node.allocate(1, SHARED), node.container()
    assert node.start(granted, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 20 * GIB)}


@pytest.mark.parametrize(("wanted", "healthy"), [("kernel", False), ("auto", True)])
def test_a_replica_of_a_card_of_unknown_memory_is_not_said_to_be_limited(
    node: Node, wanted: str, healthy: bool
) -> None:
    node.nvml.state.card[0].total = 0
    plugin = node.plugin(wanted, [REPLICAS])
    why = "the driver does not tell how much memory it has, so a share of it is no amount"
    reason = f"limits = 'kernel', and containers can have no limit of its memory: {why}"
    until(
        lambda: [(one.healthy, one.reason) for one in node.listed(SHARED)] == [(healthy, "" if healthy else reason)] * 4
    )
    assert plugin.inspect()["cards"][0]["limits"] == f"none: {why}"


def test_a_limit_is_never_more_than_the_card_has(node: Node) -> None:
    node.plugin(resources=[MEMORY | {"oversubscribe": 2}])
    assert node.allocate(100).cdi == (f"nodeplug.io/gpu-limit={FIRST}.{80 * GIB}",)
