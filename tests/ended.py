"""The end of a process that is not a child.

It has ended when all of its threads have. Until then its sockets are open, although /proc shows a zombie without a
program as soon as its first thread has ended.
"""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nodeplug.testing.waiting import PATIENCE


def has_ended(pid: int) -> bool:
    """Tell whether a process has ended with all of its threads; one that is not there has."""
    try:
        with _opened(pid) as process:
            return _has_ended(process, 0)
    except ProcessLookupError:
        return True


def wait_until_ended(pid: int, seconds: float = PATIENCE) -> None:
    """Wait for the end of a process with all of its threads; one that is not there has ended.

    Raises:
        AssertionError: it did not end within so many seconds.
    """
    with suppress(ProcessLookupError), _opened(pid) as process:
        _wait(process, pid, seconds)


def kill(pid: int) -> None:
    """Kill a process, and wait for its end.

    Raises:
        ProcessLookupError: it is not there.
        AssertionError: it did not end.
    """
    with _opened(pid) as process:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        _wait(process, pid, PATIENCE)


@contextmanager
def _opened(pid: int) -> Iterator[int]:
    process = os.pidfd_open(pid)
    try:
        yield process
    finally:
        os.close(process)


def _wait(process: int, pid: int, seconds: float) -> None:
    assert _has_ended(process, seconds), f"process {pid} has not ended in {seconds:g} s"


def _has_ended(process: int, seconds: float) -> bool:
    ended = select.poll()
    ended.register(process, select.POLLIN)
    return bool(ended.poll(seconds * 1000))
