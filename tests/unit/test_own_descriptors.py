"""A test that is short of file descriptors meets no other thread's."""

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.own_descriptors import room_for_descriptors, with_own_descriptors

ROOT = Path(__file__).parents[2]


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


LEAKING = """
import os, pytest
@pytest.mark.own_descriptors
def test_that_may(): os.dup(0)
@pytest.mark.own_descriptors(closes_all=True)
def test_that_must_not(): os.dup(0)
@pytest.mark.own_descriptors(closes_all=True)
def test_that_closes(tmp_path): os.close(os.open(tmp_path, os.O_RDONLY))
"""


def test_what_a_marked_test_leaves_open_fails_it_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = own_descriptors\n")
    (tmp_path / "test_it.py").write_text(LEAKING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.own_descriptors", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FAILED test_it.py::test_that_must_not - AssertionError: left open:" in done.stdout
    assert "1 failed, 2 passed" in done.stdout
