"""A call of the firewall that is cut off before any of its steps: by the daemon's end, or by a failure.

Whatever was cut off, a container that runs has all of its rules and one that has ended has none; the chains and the
isolation of bridges are shared and stay, as the reference leaves them.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.node import killing
from tests.node.failing import every_failure
from tests.node.firewall.killed import result
from tests.node.firewall.lab import records

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.firewall.plugin import Firewall, FirewallConfig
from nodeplug_net.firewall.table import FilterTable
from nodeplug_net.netlink.connection import Netlink

CONFIG = {"cniVersion": "1.1.0", "name": "net", "ingressPolicy": "isolated"}
LABEL = "nodeplug net c1 eth0"
NETFILTER = 12
Rules = list[tuple[int, Any]]


def every_step(scratch: ScratchCni, verb: str, prepare: Callable[[], object] = lambda: None) -> Iterator[int]:
    words = [str(scratch.folder), scratch.host_netns.path, verb, json.dumps(CONFIG)]
    return killing.every_step(
        "tests.node.firewall.killed", words, least={"add": 8, "del": 4, "gc": 4}[verb], prepare=prepare
    )


@contextmanager
def next_daemon(scratch: ScratchCni) -> Iterator[Firewall]:
    plugin = Firewall(FirewallConfig(), scratch.host)
    scratch.on_host(plugin.start)
    yield plugin
    scratch.on_host(plugin.health)
    plugin.stop()


def accepted(scratch: ScratchCni, label: str = LABEL) -> Rules:
    """What an attachment has."""

    def read() -> Rules:
        with Netlink(NETFILTER) as netlink:
            return [(rule.version, rule.parts) for rule in FilterTable(netlink).owned(label)]

    return scratch.on_host(read)


def add(scratch: ScratchCni, daemon: Firewall, container: str = "c1", number: int = 2) -> None:
    before = result(f"10.88.0.{number}/24", f"fd00:88::{number}/64")
    scratch.add(daemon, CONFIG, container, scratch.host_netns, prev_result=before)


@pytest.fixture
def whole(scratch: ScratchCni) -> Rules:
    """The rules of a container, as an ADD writes them; another container has some all the time."""
    with next_daemon(scratch) as daemon:
        add(scratch, daemon, "c9", 9)
        add(scratch, daemon)
        found = accepted(scratch)
        scratch.delete(daemon, CONFIG, "c1")
    assert len(found) == 4
    return found


def gone(scratch: ScratchCni) -> bool:
    """Whether c1 has left nothing; the other container has lost nothing."""
    assert len(accepted(scratch, "nodeplug net c9 eth0")) == 4
    return accepted(scratch) == [] and [one["data"]["label"] for one in records(scratch)] == ["nodeplug net c9 eth0"]


@pytest.mark.whole
def test_what_an_add_left_is_whole_or_gone_for_the_next_daemon_and_ended_by_del(
    scratch: ScratchCni, whole: Rules
) -> None:
    seen = set()
    for _ in every_step(scratch, "add"):
        with next_daemon(scratch) as daemon:
            there = accepted(scratch) == whole
            seen.add(there)
            assert there or gone(scratch)
            scratch.delete(daemon, CONFIG, "c1")
            assert gone(scratch)
    assert seen == {False, True}


@pytest.mark.parametrize("verb", ["del", "gc"])
def test_a_del_that_was_cut_off_is_ended_by_the_next_del_or_gc(scratch: ScratchCni, whole: Rules, verb: str) -> None:
    def prepare() -> None:
        with next_daemon(scratch) as daemon:
            add(scratch, daemon)
            assert accepted(scratch) == whole

    for _ in every_step(scratch, "del", prepare):
        with next_daemon(scratch) as daemon:
            if verb == "del":
                scratch.delete(daemon, CONFIG, "c1")
            else:
                scratch.gc(daemon, CONFIG, [("c9", "eth0")])
            assert gone(scratch)


def test_a_gc_that_was_cut_off_is_ended_by_the_next_one_and_takes_nothing_of_others(
    scratch: ScratchCni, whole: Rules
) -> None:
    def prepare() -> None:
        with next_daemon(scratch) as daemon:
            add(scratch, daemon)
            assert accepted(scratch) == whole

    for _ in every_step(scratch, "gc", prepare):
        with next_daemon(scratch) as daemon:
            scratch.gc(daemon, CONFIG, [("c9", "eth0")])
            assert gone(scratch)
    assert gone(scratch)


def test_the_rules_of_the_former_add_come_back_if_any_step_of_another_add_fails(scratch: ScratchCni) -> None:
    with next_daemon(scratch) as daemon:

        def repeat() -> None:
            add(scratch, daemon, number=3)

        def state() -> tuple[Any, ...]:
            scratch.on_host(daemon.health)
            return sorted(accepted(scratch)), [(one["phase"], one["data"]) for one in records(scratch)]

        repeat()
        later = state()
        add(scratch, daemon)
        former = state()
        for failed in every_failure(repeat, least=8):
            assert state() == (former if failed else later)
            add(scratch, daemon)


def test_an_add_of_which_any_step_fails_leaves_nothing(scratch: ScratchCni, whole: Rules) -> None:
    with next_daemon(scratch) as daemon:
        for failed in every_failure(lambda: add(scratch, daemon), least=8):
            if not failed:
                assert accepted(scratch) == whole
                scratch.delete(daemon, CONFIG, "c1")
            assert gone(scratch)
