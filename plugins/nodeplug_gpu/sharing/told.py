"""Which units are free by what the cluster was told last.

Owns: the units that were held then, and those that were granted since. Any thread may ask.
Refuses: to say what is free: kubelet does. Whoever places pods knows no more than what was told, so a card that is
chosen by that is the one that they expect.
"""

import threading
from collections.abc import Collection, Iterable, Sequence

from nodeplug import DeviceId


class ToldUnits:
    """The units of one resource. Until something is told, all that kubelet has free is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: Collection[DeviceId] | None = None
        self._granted: dict[DeviceId, int] = {}
        self._grants = 0

    def grants(self) -> int:
        """Return how many grants there were, to be given to `tell` with what is known now."""
        return self._grants

    def grant(self, ids: Iterable[DeviceId]) -> None:
        """Note that a container gets units."""
        with self._lock:
            self._grants += 1
            self._granted.update(dict.fromkeys(ids, self._grants))

    def tell(self, held: Collection[DeviceId], grants: int) -> None:
        """Note what the cluster is told.

        Args:
            held: units that are not free by that.
            grants: how many grants there were when that was known; those since are not in it.
        """
        with self._lock:
            self._held = held
            self._granted = {one: number for one, number in self._granted.items() if number > grants}

    def free(self, available: Iterable[DeviceId]) -> Sequence[DeviceId]:
        """Return which of the units that kubelet has free were free when something was last told."""
        with self._lock:
            if self._held is None:
                return tuple(available)
            return tuple(one for one in available if one not in self._held and one not in self._granted)
