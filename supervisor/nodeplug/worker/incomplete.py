"""How many bytes of one process's messages wait for the rest of their message.

Owns: the count, for all channels of the process together: each may announce a large message, and never send its end.
Refuses: the bytes.
"""

import threading
from typing import Final

MOST: Final = 128 << 20
"""Bytes of incomplete messages of one process."""


class Incomplete:
    """That count. Any thread may use it."""

    def __init__(self) -> None:
        self._bytes = 0
        self._changing = threading.Lock()

    def add(self, count: int) -> bool:
        """Count bytes that have come, and return whether there may be so many."""
        with self._changing:
            self._bytes += count
            return self._bytes <= MOST

    def remove(self, count: int) -> None:
        """Count bytes that are a message by now, or of no more use."""
        with self._changing:
            self._bytes -= count
