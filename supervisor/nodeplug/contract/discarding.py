"""Closing descriptors that came from a stranger.

Owns: the threads that do it. To close may take as long as the stranger likes: SO_LINGER of socket(7) waits for the
other end, and a filesystem of fuse(4) is asked to flush, which not even SIGKILL ends.
Refuses: to know what they are.
"""

import os
import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

__all__ = ["discard"]

DISCARDING: Final = "close descriptors"
"""The name of the threads."""
_CLOSING: Final = 8
"""Limit of threads that close. When each waits for a descriptor that does not close, further descriptors stay open."""
_UNWANTED: Final[SimpleQueue[int]] = SimpleQueue()
_THREADS: Final = threading.Semaphore(_CLOSING)


def discard(descriptors: Iterable[int]) -> None:
    """Close descriptors in a thread, and return at once."""
    for descriptor in descriptors:
        _UNWANTED.put(descriptor)
    if not _UNWANTED.empty() and _THREADS.acquire(blocking=False):
        try:
            threading.Thread(target=_close_unwanted, name=DISCARDING, daemon=True).start()
        except RuntimeError:  # no thread is to be had: they are closed with the next ones
            _THREADS.release()


def _close_unwanted() -> None:
    try:
        with suppress(Empty):
            while True:
                descriptor = _UNWANTED.get_nowait()
                with suppress(OSError):
                    _wait_for_nobody(descriptor)
                with suppress(OSError):
                    os.close(descriptor)
    finally:
        _THREADS.release()
    discard(())  # one may have been put before the release


def _wait_for_nobody(descriptor: int) -> None:
    """Have a socket closed without waiting for its other end; raise OSError if it is no socket."""
    one = socket.socket(fileno=descriptor)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    finally:
        one.detach()
