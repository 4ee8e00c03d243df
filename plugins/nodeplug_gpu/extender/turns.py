"""Bindings to one node, one after the other.

Owns: whose turn it is, by node; those of different nodes do not wait for each other.
Refuses: to wait for long: kube-scheduler asks again.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nodeplug import TryAgain

_PATIENCE: Final = 1.0
"""Seconds: a Binding takes some milliseconds, and with this and the longest one kube-scheduler still waits."""


class Turns:
    """Whose turn it is. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def of(self, node: str) -> Iterator[None]:
        """Have the turn of a node for the length of a block.

        Raises:
            TryAgain: another one has it, for too long.
        """
        turn = self._begin(node)
        try:
            if not turn.acquire(timeout=_PATIENCE):
                raise TryAgain(f"node {node}: another pod is being bound to it for more than {_PATIENCE:g} s")
            try:
                yield
            finally:
                turn.release()
        finally:
            self._end(node)

    def _begin(self, node: str) -> threading.Lock:
        with self._lock:
            turn, waiting = self._nodes.get(node, (threading.Lock(), 0))
            self._nodes[node] = (turn, waiting + 1)
            return turn

    def _end(self, node: str) -> None:
        with self._lock:
            turn, waiting = self._nodes[node]
            if waiting > 1:
                self._nodes[node] = (turn, waiting - 1)
            else:
                del self._nodes[node]
