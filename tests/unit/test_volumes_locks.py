"""One at a time for each key."""

import threading

import pytest

from nodeplug import InProgress
from nodeplug.volumes.locks import Locks


def test_a_key_is_held_by_one_at_a_time() -> None:
    locks, inside, most = Locks(), [0], [0]

    def work() -> None:
        for _ in range(50):
            with locks.held("volume", "data", patience=10.0):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1]


def test_who_waits_too_long_is_told_to_come_again_and_for_what() -> None:
    locks = Locks()
    with locks.held("volume", "data", patience=0.02):
        with locks.held("volume", "other", patience=0.02):
            pass
        with (
            pytest.raises(InProgress, match=r"an earlier call for volume data is still running after 0\.02 s"),
            locks.held("volume", "data", patience=0.02),
        ):
            pass


def test_a_key_is_free_again_after_an_error() -> None:
    locks = Locks()
    with pytest.raises(KeyError), locks.held("k", patience=0.02):
        raise KeyError
    with locks.held("k", patience=0.02):
        pass
