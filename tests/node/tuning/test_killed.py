"""tuning that is killed before any step of an ADD or DEL: what the interface was is not lost, and nothing leaks."""

import json
from collections.abc import Iterator

from tests.node import killing
from tests.node.tuning.lab import KEYS, NEW, Pod, backups, conf, settings


def every_step(call: Pod, verb: str) -> Iterator[int]:
    words = [str(call.scratch.folder), call.netns.path, verb, json.dumps(conf(**KEYS))]
    return killing.every_step("tests.node.tuning.killed", words, least=7)


def test_after_a_kill_within_an_add_del_restores_the_interface(call: Pod) -> None:
    was = settings(call.netns)
    for _ in every_step(call, "add"):
        call.delete(**KEYS)
        assert (settings(call.netns), backups(call.scratch)) == (was, [])


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
