"""Cards, nodes and containers without a limit by the kernel: whether they are given out, and what is said of them."""

import pytest
from tests.gpu.kernel.limited_node import FIRST, GIB, MEM, SET, Node

from nodeplug import DeviceAllocate, NotReady
from nodeplug.testing.waiting import until


def test_a_container_does_not_start_where_its_limit_is_required_and_cannot_be_set(node: Node) -> None:
    node.plugin()
    granted = node.allocate(3)
    node.nvml.fail(SET, 999)
    done = node.start(granted, node.container())
    why = f"{SET}: unknown error (NVML error 999)"
    assert done.returncode == 1
    assert done.stderr == f"nodeplug: the container's memory on {FIRST} cannot be limited: {why}\n"
    until(lambda: node.told() == [(f"none: {why}", None)])


def test_with_auto_the_same_container_starts_and_is_said_to_have_no_limit(node: Node) -> None:
    node.plugin("auto")
    granted = node.allocate(3)
    node.nvml.fail(SET, 999)
    done = node.start(granted, node.container())
    assert (done.returncode, "unknown error" in done.stderr) == (0, True)
    until(lambda: node.told() == [(f"none: {SET}: unknown error (NVML error 999)", None)])


def test_a_container_whose_hook_never_ran_is_not_said_to_be_limited(node: Node) -> None:
    node.plugin()
    node.allocate(3)
    until(lambda: [words[:35] for words, _ in node.told()] == ["none: nodeplug's hook has not run: "])


def test_where_limits_are_required_a_card_of_an_old_driver_is_not_allocatable_and_says_why(node: Node) -> None:
    node.nvml.install(hidden=[SET])
    plugin = node.plugin()
    why = f"limits = 'kernel', and containers can have no limit of its memory: the driver does not have {SET}; R615 and"
    until(lambda: [one.reason.startswith(why) for one in node.listed()] == [True] * 80)
    unit = node.listed()[0]
    with pytest.raises(NotReady, match="cannot be allocated: limits = 'kernel'"):
        plugin.device_allocate(DeviceAllocate(resource=MEM, ids=(unit.id,), devices=(unit,)))


def test_with_auto_a_card_of_an_old_driver_is_allocated_without_a_limit_and_says_why(node: Node) -> None:
    node.nvml.install(hidden=[SET])
    plugin = node.plugin("auto")
    assert node.allocate(3).cdi == ()
    assert plugin.inspect()["cards"][0]["limits"].startswith(f"none: the driver does not have {SET}; R615")


def test_in_a_pod_without_node_root_none_are_given_and_what_was_given_before_holds(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.plugin("auto")
    granted, container = node.allocate(3), node.container()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    plugin = node.plugin("auto")
    assert node.allocate(2).cdi == ()
    why = plugin.inspect()["cards"][0]["limits"]
    assert why.startswith("none: its hook needs /usr/bin/python3 on the node")
    assert why.endswith("set node_root to where it is mounted")
    assert node.start(granted, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 3 * GIB)}


def test_nothing_of_limits_is_there_where_nobody_asks_for_them(node: Node) -> None:
    node.plugin(None)
    assert node.allocate(3).cdi == ()
    assert not (node.folder / "cdi").exists()
    assert not (node.folder / "host/run/limits.sock").exists()
    assert node.nvml.calls(SET) == 0
