"""sbr that is killed before any step of an ADD or DEL: another ADD completes it, and DEL leaves no rule."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.node import killed, killing
from tests.node.sbr.lab import FOUR, SIX, Pod, conf, result
from tests.node.sbr.test_verbs import FIRST, OTHERS, SECOND

from nodeplug.cni import results


def every_step(pod: Pod) -> Iterator[int]:
    words = [str(pod.scratch.folder), f"/proc/{os.getpid()}/fd/{pod.netns.fd}"]
    return killing.every_step("tests.node.sbr.killed", words, least=7)


@pytest.mark.whole
def test_after_a_kill_within_an_add_another_add_completes_it(pod: Pod) -> None:
    main = pod.run("route", "show", "table", "main")
    for _ in every_step(pod):
        pod.add()
        assert pod.rules() == {"10.9.0.2": "100", "fd09::2": "101"}
        assert (pod.routes("100"), pod.routes("101"), pod.routes()) == (FIRST, SECOND, OTHERS)
        pod.delete()
        begin_again(pod)
        assert pod.run("route", "show", "table", "main") == main


@pytest.mark.whole
def test_after_a_kill_within_an_add_del_leaves_no_rule(pod: Pod) -> None:
    for _ in every_step(pod):
        pod.delete()
        assert pod.rules() == {}
        begin_again(pod)


def begin_again(pod: Pod) -> None:
    """Make the interface anew, as another container's would be: routes end with it."""
    pod.run("link", "del", "net1")
    pod.make_interface()


def test_after_a_kill_within_a_del_another_del_leaves_no_rule(pod: Pod) -> None:
    def prepare() -> None:
        pod.add()
        assert len(pod.rules()) == 2

    call = {"config": conf(), "ifname": "net1", "previous": results.encode(result(FOUR, SIX), killed.VERSION)}
    for _ in killed.every_step(pod.scratch, lambda: pod.netns, "sbr", "del", least=2, prepare=prepare, **call):
        pod.delete()
        assert pod.rules() == {}
        begin_again(pod)


def test_gc_has_no_step_but_its_end(pod: Pod) -> None:
    """Rules end with their container's namespace, which no GC names."""
    pod.add()
    rules = pod.rules()
    call: dict[str, Any] = {"config": conf(), "valid": []}
    assert list(killed.every_step(pod.scratch, lambda: pod.netns, "sbr", "gc", least=1, **call)) == [1]
    assert pod.rules() == rules != {}
