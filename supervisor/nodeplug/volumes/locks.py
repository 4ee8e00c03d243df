"""One request at a time for each key.

Owns: which targets and volumes are locked, and how long others wait.
Refuses: order among those that wait, and reentry by the same thread.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nodeplug.contract.errors import InProgress


@dataclass(frozen=True, slots=True)
class Locks:
    """Locks that exist only while held. Take target before volume."""

    _held: set[tuple[str, ...]] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def held(self, *key: str, patience: float) -> Iterator[None]:
        """Hold the lock of a key; wait for it for at most `patience` seconds.

        Raises:
            InProgress: it was not free in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: key not in self._held, patience):
                raise InProgress(
                    f"an earlier call for {' '.join(key)} is still running after {patience:g} s; "
                    "see `nodeplug status` for it"
                )
            self._held.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(key)
                self._changed.notify_all()
