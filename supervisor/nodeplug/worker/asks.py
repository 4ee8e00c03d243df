"""Answers what threads of a plugin's own ask of the daemon: some at once, the others one after the other.

Each may bring a large message and takes a thread of the daemon, and a plugin may ask without end.
"""

import threading
from collections import deque
from collections.abc import Callable
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
        self._answering = 0

    def take(self, channel: Channel) -> None:
        """Have a request answered; raise RuntimeError if no thread can be started."""
        with self._changing:
            if self._answering < AT_ONCE:
                self._answering += 1
            elif len(self._waiting) < WAITING:
                return self._waiting.append(channel)
            else:
                return channel.close()
        thread = threading.Thread(target=self._run, args=(channel,), name=f"asked by {self._name}", daemon=True)
        return thread.start()

    def close(self) -> None:
        """Close what waits, because the process has ended."""
        with self._changing:
            while self._waiting:
                self._waiting.popleft().close()

    def _run(self, channel: Channel | None) -> None:
        while channel is not None:
            self._answer(channel)
            with self._changing:
                channel = self._waiting.popleft() if self._waiting else None
                self._answering -= channel is None
