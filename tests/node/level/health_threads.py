"""Asks a plugin for its health when it requests that, in a thread of its own, as the daemon does."""

import threading
from collections.abc import Callable


class HealthThreads:
    """What a plugin calls as `Host.refresh_health`, from any thread.

    Args:
        ask: asks for its health. It runs in no thread after `end`: what it needs may be gone by then.
    """

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._started: list[threading.Thread] = []
        self._changing = threading.Lock()
        self._ended = False

    def __call__(self) -> None:
        """Ask, unless this is over. A plugin's last request may come after its `stop`."""
        with self._changing:
            if not self._ended:
                self._started.append(threading.Thread(target=self._ask))
                self._started[-1].start()

    def end(self) -> None:
        """Ask no more, and wait for those who still do."""
        with self._changing:
            self._ended = True
        for thread in self._started:
            thread.join()
