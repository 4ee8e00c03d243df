"""Limits by the kernel from the first day to the last: restarts, reboots, other sections, and no holder any more."""

import threading

import pytest
from tests.gpu.kernel.limited_node import FIRST, GIB, Node, limit_keys

from nodeplug import Journal
from nodeplug.testing import host
from nodeplug.testing.waiting import until
from nodeplug_gpu import allocations
from nodeplug_gpu.kernel import limits, spec


def test_a_container_starts_under_the_limit_of_its_units_and_the_document_says_so(node: Node) -> None:
    node.plugin()
    granted, container = node.allocate(3), node.container()
    assert granted.cdi == (f"nodeplug.io/gpu-limit={FIRST}.{3 * GIB}",)
    done = node.start(granted, container)
    assert (done.returncode, done.stderr) == (0, "")
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 3 * GIB)}
    until(lambda: node.told() == [("kernel", 3 * GIB)])


def test_a_container_that_starts_again_is_limited_again_in_its_new_cgroup(node: Node) -> None:
    node.plugin()
    granted = node.allocate(2)
    first, second = node.container(), node.container()
    for container in (first, second):
        assert node.start(granted, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(one): (0, 0, 2 * GIB) for one in (first, second)}


def test_what_holds_is_known_to_the_next_daemon(node: Node) -> None:
    node.plugin()
    granted, container = node.allocate(3), node.container()
    assert node.start(granted, container).returncode == 0
    node.plugin()
    until(lambda: node.told() == [("kernel", 3 * GIB)])
    assert node.start(granted, node.container()).returncode == 0


def test_a_limit_is_known_again_after_a_reboot_before_its_container_starts(node: Node) -> None:
    node.plugin()
    granted = node.allocate(3)
    (node.folder / "cdi" / spec.FILE).unlink()  # /var/run is empty after a boot
    node.plugin()
    assert [f"{spec.KIND}={one['name']}" for one in node.spec["devices"]] == list(granted.cdi)


def test_a_limit_outlives_a_section_of_another_name_and_a_reboot_after_it(node: Node) -> None:
    node.plugin()
    granted, former = node.allocate(3), host(node.folder / "host", plugin="host")
    node.plugin(section="renamed", former=[former])
    (node.folder / "cdi" / spec.FILE).unlink()
    node.plugin(section="renamed")
    assert [f"{spec.KIND}={one['name']}" for one in node.spec["devices"]] == list(granted.cdi)
    assert limit_keys(former.journal) == []


def test_a_limit_outlives_a_reboot_with_a_section_of_another_name(node: Node) -> None:
    node.plugin()
    granted, former = node.allocate(3), host(node.folder / "host", plugin="host")
    (node.folder / "cdi" / spec.FILE).unlink()
    node.plugin(section="renamed", former=[former])
    assert [f"{spec.KIND}={one['name']}" for one in node.spec["devices"]] == list(granted.cdi)


def test_a_container_of_a_section_of_another_name_is_limited_after_a_reboot_although_limits_are_off_now(
    node: Node,
) -> None:
    node.plugin()
    granted, former = node.allocate(3), host(node.folder / "host", plugin="host")
    (node.folder / "cdi" / spec.FILE).unlink()
    node.plugin(None, section="renamed", former=[former])
    container = node.container()
    assert node.start(granted, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 3 * GIB)}


def test_limits_that_were_given_hold_for_restarts_after_the_configuration_wants_none(node: Node) -> None:
    node.plugin()
    granted = node.allocate(3)
    node.plugin(None)
    container = node.container()
    assert node.start(granted, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 3 * GIB)}


def test_a_limit_that_the_disk_refused_is_written_when_it_takes_it(node: Node) -> None:
    plugin = node.plugin()
    until(lambda: any(one.healthy for one in node.listed()))
    journal = plugin._host.journal
    if journal.folder.exists():
        journal.folder.rename(node.folder / "aside")
    journal.folder.touch()  # a file, where the folder should be made
    node.allocate(3)
    assert limit_keys(journal) == []
    journal.folder.unlink()
    until(lambda: limit_keys(journal) == [f"limit {FIRST} {3 * GIB}"])


def test_a_limit_that_ends_and_is_given_again_meanwhile_stays_in_the_journal(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, removed = node.plugin(), threading.Event()
    remove, timeout = Journal.remove, allocations.CONFIRM_TIMEOUT
    again = threading.Thread(target=node.allocate, args=(3,), daemon=True)

    def racing(journal: Journal, key: str) -> None:
        if key.startswith("limit ") and not removed.is_set():
            monkeypatch.setattr(limits, "GRACE_PERIOD", 1e9)
            monkeypatch.setattr(allocations, "CONFIRM_TIMEOUT", timeout)
            again.start()
            again.join(1)  # it waits for this removal
            remove(journal, key)
            removed.set()
        else:
            remove(journal, key)

    node.allocate(3)
    monkeypatch.setattr(Journal, "remove", racing)
    monkeypatch.setattr(limits, "GRACE_PERIOD", 0.0)
    monkeypatch.setattr(allocations, "CONFIRM_TIMEOUT", 0.0)
    node.held.clear()
    assert removed.wait(60)
    again.join()
    assert limit_keys(plugin._host.journal) == [f"limit {FIRST} {3 * GIB}"]


def test_a_card_that_nobody_holds_any_more_leaves_no_limit_behind(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE_PERIOD", 0.0)
    node.plugin()
    node.allocate(3)
    assert len(node.spec["devices"]) == 1
    node.held.clear()
    monkeypatch.setattr(allocations, "CONFIRM_TIMEOUT", 0.0)
    until(lambda: not (node.folder / "cdi" / spec.FILE).exists())
