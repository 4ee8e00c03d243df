"""How many bytes of one process's messages wait for the rest of their message.

Owns: the count, for all channels of the process together: each may announce a large message, and never send its end.
Refuses: the bytes.
"""

import threading
from typing import Final

MOST: Final = 128 << 20
"""Bytes that the incomplete messages of one process may have together."""


class Incomplete:
    """The count of one process. Any thread may use it."""

    def __init__(self) -> None:
        self._bytes = 0
        self._changing = threading.Lock()

    def add(self, count: int) -> bool:
        """Add received bytes; return whether the sum is within the bound."""
        with self._changing:
            self._bytes += count
            return self._bytes <= MOST

    def remove(self, count: int) -> None:
        """Subtract bytes of a message that is complete or given up."""
        with self._changing:
            self._bytes -= count
