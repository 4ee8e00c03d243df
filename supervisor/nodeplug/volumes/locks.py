"""One at a time for each key.

Owns: who works on which target and which volume now, and how long others wait for them.
Refuses: order among those who wait, and to be entered twice by one thread.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nodeplug.contract.errors import TryAgain


@dataclass(frozen=True, slots=True)
class Locks:
    """Locks that are there while somebody holds them. Taken target first, volume second.

    Attributes:
        patience: seconds that anybody waits for one.
    """

    patience: float
    _held: set[tuple[str, ...]] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def held(self, *key: str) -> Iterator[None]:
        """Wait until nobody holds the key, and hold it.

        Raises:
            TryAgain: somebody does not let go of it.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: key not in self._held, self.patience):
                raise TryAgain(
                    f"an earlier call for {' '.join(key)} is still running after {self.patience:g} s; "
                    "see `nodeplug status` for it"
                )
            self._held.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(key)
                self._changed.notify_all()
