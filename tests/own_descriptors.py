"""A test that is short of file descriptors, whatever other threads open and close meanwhile."""

import ctypes
import gc
import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

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
        gc.disable()  # what it would collect is to be closed in the table of the process
        try:
            return work()
        finally:
            gc.enable()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


@contextmanager
def room_for_descriptors(count: int) -> Iterator[None]:
    """Let the process open so many further descriptors (setrlimit(2), RLIMIT_NOFILE)."""
    free = [os.dup(0) for _ in range(count + 1)]  # each is the lowest that is free
    for descriptor in free:
        os.close(descriptor)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def open_namespaces() -> list[str]:
    """Return the network namespaces of which this thread has descriptors, as `net:[INODE]`."""
    found = []
    for entry in Path("/proc/thread-self/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except OSError:
            continue
    return sorted(link for link in found if link.startswith("net:["))
