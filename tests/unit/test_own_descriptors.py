"""A test that is short of file descriptors meets no other thread's."""

import os
import threading
from contextlib import ExitStack

import pytest
from tests.own_descriptors import room_for_descriptors, with_own_descriptors


def open_while_there_is_room() -> int:
    """Return how many descriptors could be opened, up to ten; they are closed again."""
    with ExitStack() as opened:
        for count in range(10):
            try:
                opened.callback(os.close, os.dup(0))
            except OSError:
                return count
    return 10


@pytest.mark.parametrize("room", [0, 1, 3])
def test_a_descriptor_that_another_thread_closes_makes_no_room(room: int) -> None:
    others = os.dup(0)
    close, closed = threading.Event(), threading.Event()

    def close_when_told() -> None:
        close.wait()
        os.close(others)
        closed.set()

    other = threading.Thread(target=close_when_told)
    other.start()

    def count() -> int:
        with room_for_descriptors(room):
            close.set()
            closed.wait()
            return open_while_there_is_room()

    assert with_own_descriptors(count) == room
    other.join()


def test_the_limit_is_the_old_one_afterwards() -> None:
    with room_for_descriptors(0):
        pass
    assert open_while_there_is_room() == 10
