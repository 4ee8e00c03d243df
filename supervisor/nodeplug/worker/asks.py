"""Answers what threads of a plugin's own ask of the daemon: some at once, the others one after the other.

Each may bring a large message and takes a thread of the daemon, and a plugin may ask without end.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from nodeplug.worker.wire import Channel

AT_ONCE: Final = 8
"""Requests of one process that are answered at once."""
WAITING: Final = 256
"""Requests that wait for that; each has a descriptor. Of more, the plugin is told to ask again."""


class Asks:
    """The requests of one process. Any thread may use it.

    Args:
        name: of the plugin, for the threads.
        answer: answers one request, and closes its channel.
    """

    def __init__(self, name: str, answer: Callable[[Channel], None]) -> None:
        self._name, self._answer = name, answer
        self._changing = threading.Lock()
        self._waiting: deque[Channel] = deque()
        self._answering: set[Channel] = set()
        self._places = AT_ONCE

    def take(self, channel: Channel) -> None:
        """Have a request answered; raise RuntimeError if no thread can be started."""
        with self._changing:
            if self._places > 0:
                self._begin(channel)
            elif len(self._waiting) < WAITING:
                self._waiting.append(channel)
            else:
                channel.abandon()

    def close(self) -> None:
        """End all of them, because the process has ended."""
        with self._changing:
            while self._waiting:
                self._waiting.popleft().abandon()
            for channel in self._answering:
                channel.shut()

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Give up the place of a request for a `with` block: a delegate may ask, too, and wait for a place."""
        with self._changing:
            self._free()
        try:
            yield
        finally:
            with self._changing:
                self._places -= 1

    def _begin(self, channel: Channel) -> None:
        """Start a thread for a request. Needs the lock."""
        thread = threading.Thread(target=self._run, args=(channel,), name=f"asked by {self._name}", daemon=True)
        thread.start()  # it needs the lock before it ends
        self._places -= 1
        self._answering.add(channel)

    def _free(self) -> None:
        """Free a place for the next request. Needs the lock."""
        self._places += 1
        if self._waiting and self._places > 0:
            channel = self._waiting.popleft()
            try:
                self._begin(channel)
            except RuntimeError:  # no thread can be started: the plugin is told to ask again
                channel.abandon()

    def _run(self, channel: Channel) -> None:
        try:
            self._answer(channel)
        finally:
            with self._changing:
                self._answering.discard(channel)
                self._free()
