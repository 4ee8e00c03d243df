"""bandwidth that is killed before any step of an ADD, DEL or GC: no link is left, and no limit is lost."""

import json
import os
from collections.abc import Callable, Iterator

import pytest
from tests.node import killing
from tests.node.bandwidth.lab import BOTH, Pod, conf


def every_step(pod: Pod, verb: str, least: int, prepare: Callable[[], object] = lambda: None) -> Iterator[int]:
    paths = [f"/proc/{os.getpid()}/fd/{netns.fd}" for netns in (pod.scratch.host_netns, pod.netns)]
    words = [str(pod.scratch.folder), *paths, verb, json.dumps(conf(**BOTH))]
    return killing.every_step("tests.node.bandwidth.killed", words, least=least, prepare=prepare)


@pytest.mark.whole
def test_after_a_kill_within_an_add_del_leaves_nothing(pod: Pod) -> None:
    for _ in every_step(pod, "add", 7):
        pod.delete(**BOTH)
        assert pod.ifbs() == []


def test_after_a_kill_within_an_add_another_add_limits_everything(pod: Pod) -> None:
    for _ in every_step(pod, "add", 7):
        pod.add(**BOTH)
        pod.check(**BOTH)
        pod.delete(**BOTH)


def test_after_a_kill_within_a_del_another_del_leaves_nothing(pod: Pod) -> None:
    pod.add(**BOTH)
    for _ in every_step(pod, "del", 1):
        pod.delete(**BOTH)
        assert pod.ifbs() == []
        pod.add(**BOTH)


def test_after_a_kill_within_a_gc_another_gc_ends_what_is_not_valid_and_nothing_else(pod: Pod) -> None:
    other = Pod(pod.scratch, pod.bandwidth, pod.scratch.container())
    other.pair("host9", "eth0")
    other.add(container="c9", host="host9", **BOTH)
    kept = pod.ifbs()
    for _ in every_step(pod, "gc", 2, prepare=lambda: pod.add(**BOTH)):
        pod.scratch.gc(pod.bandwidth, conf(), [("c9", "eth0")])
        assert pod.ifbs() == kept
    assert pod.ifbs() == kept
