"""A test that counts file descriptors, or is short of them, whatever other threads open and close meanwhile.

The mark `own_descriptors` runs a test in a thread with a private table of descriptors. With `closes_all` the test fails
if others are open at its end than at its beginning.

Whoever opens a descriptor there has to close it there: in the table of the process its number is that of another one.
So what a fixture closes is not for such a test; it waits with `until` for the end of what others hold for a moment.
"""

import ctypes
import gc
import os
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import pytest

from nodeplug.contract.discarding import DISCARDING
from nodeplug.testing.waiting import until

T = TypeVar("T")
_CLONE_FILES: Final = 0x400  # sched.h; Python 3.11 has no os.unshare
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def with_own_descriptors(work: Callable[[], T]) -> T:
    """Do a piece of work in a thread with a private table of file descriptors (unshare(2), CLONE_FILES).

    The threads that it starts share that table. Every other thread has another one, so that none frees or takes a
    descriptor here. /proc/self/fd shows the table of the process, and /proc/thread-self/fd this one.

    Raises:
        OSError: the kernel refuses, and whatever the work raises.
    """

    def run() -> T:
        if _LIBC.unshare(_CLONE_FILES) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        gc.disable()  # what is left to collect is to be closed in the table of the process
        try:
            return work()
        finally:
            gc.collect()  # what the work has left is to be closed here
            gc.enable()

    gc.collect()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test with the mark."""
    mark = pyfuncitem.get_closest_marker("own_descriptors")
    if mark is None:
        return None

    def run() -> None:
        before = open_descriptors()
        pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
        until(lambda: not any(one.name == DISCARDING for one in threading.enumerate()))
        after = open_descriptors()
        assert after == before or not mark.kwargs.get("closes_all"), f"left open: {sorted(after ^ before)}"

    with_own_descriptors(run)
    return True


def open_descriptors() -> set[str]:
    """Return the descriptors of this thread, with what they are."""
    found = set()
    for entry in Path("/proc/thread-self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one by which the folder is read
            found.add(f"{entry.name}: {entry.readlink()}")
    return found


@contextmanager
def room_for_descriptors(count: int) -> Iterator[None]:
    """Let the process open so many further descriptors (setrlimit(2), RLIMIT_NOFILE)."""
    free = [os.dup(0) for _ in range(count + 1)]  # each is the lowest that is free
    for descriptor in free:
        os.close(descriptor)
    with _numbers_below(free[-1]):
        yield


@contextmanager
def no_room_for_descriptors() -> Iterator[None]:
    """Let the process open nothing, even if another thread closes a descriptor meanwhile."""
    with _numbers_below(3):  # input, output and errors are open
        yield


@contextmanager
def _numbers_below(most: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def may_open_no_more(pid: int) -> bool:
    """Return whether a process uses every number below its limit. It may also have higher ones, opened before that."""
    most, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    return set(range(most)) <= {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def open_namespaces() -> list[str]:
    """Return the network namespaces of which this thread has descriptors, as `net:[INODE]`."""
    found = [one.partition(": ")[2] for one in open_descriptors()]
    return sorted(link for link in found if link.startswith("net:["))
