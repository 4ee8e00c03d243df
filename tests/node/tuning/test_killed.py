"""tuning that is killed before any step of an ADD, DEL or GC: what the interface was is not lost, and nothing leaks."""

import json
from collections.abc import Callable, Iterator

import pytest
from tests.node import killing
from tests.node.tuning.lab import KEYS, NEW, Pod, backups, conf, make_pod, settings


def every_step(call: Pod, verb: str, least: int = 7, prepare: Callable[[], object] = lambda: None) -> Iterator[int]:
    words = [str(call.scratch.folder), call.netns.path, verb, json.dumps(conf(**KEYS))]
    return killing.every_step("tests.node.tuning.killed", words, least=least, prepare=prepare)


def test_after_a_kill_within_an_add_del_restores_the_interface(call: Pod) -> None:
    was = settings(call.netns)
    for _ in every_step(call, "add"):
        call.delete(**KEYS)
        assert (settings(call.netns), backups(call.scratch)) == (was, [])


@pytest.mark.whole
def test_after_a_kill_within_an_add_another_add_keeps_what_was_before(call: Pod) -> None:
    was = settings(call.netns)
    for _ in every_step(call, "add"):
        call.add(**KEYS)
        assert settings(call.netns) == NEW
        call.delete(**KEYS)
        assert (settings(call.netns), backups(call.scratch)) == (was, [])


def test_after_a_kill_within_a_del_another_del_restores_the_interface(call: Pod) -> None:
    was = settings(call.netns)
    call.add(**KEYS)
    for _ in every_step(call, "del"):
        call.delete(**KEYS)
        assert (settings(call.netns), backups(call.scratch)) == (was, [])
        call.add(**KEYS)


def test_after_a_kill_within_a_gc_another_gc_forgets_what_is_not_valid_and_nothing_else(call: Pod) -> None:
    other = Pod(call.scratch, call.tuning, make_pod(call.scratch))
    other.add(container="c9", **KEYS)
    kept = backups(call.scratch)
    for _ in every_step(call, "gc", 1, prepare=lambda: call.add(**KEYS)):
        call.scratch.gc(call.tuning, conf(), [("c9", "eth0")])
        assert backups(call.scratch) == kept
    assert backups(call.scratch) == kept
