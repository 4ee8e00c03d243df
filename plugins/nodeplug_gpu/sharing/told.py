"""Which units are free by what the cluster was told, some time after it was told.

Owns: the units that were held then, and those that were granted since. Any thread may ask.
Refuses: to say what is free: kubelet does. Whoever places pods knows no more than what was told, so a card that is
chosen by that is the one that they expect.

They know it late, and their pods come later still. So figures come into force `SETTLES` after they were told: a pod
that was placed by the former ones has come by then, and until then both are reckoned with there.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nodeplug import DeviceId
from nodeplug_gpu.free_memory import SETTLES


@dataclass(slots=True)
class _Told:
    """What was told once: at which time, which units were held, and which ones were granted since that was known."""

    at: float
    held: Collection[DeviceId]
    granted: dict[DeviceId, int]


class ToldUnits:
    """The units of one resource. Until something is told, all that kubelet has free is.

    Args:
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: list[_Told] = []
        self._untold: dict[DeviceId, int] = {}
        self._grants = 0

    def grants(self) -> int:
        """Return how many grants there were, to be given to `tell` with what is known now."""
        return self._grants

    def grant(self, ids: Iterable[DeviceId]) -> None:
        """Note that a container gets units."""
        with self._lock:
            self._grants += 1
            fresh = dict.fromkeys(ids, self._grants)
            for granted in [one.granted for one in self._told] or [self._untold]:
                granted.update(fresh)

    def tell(self, held: Collection[DeviceId], grants: int) -> None:
        """Note what the cluster is told.

        Args:
            held: units that are not free by that.
            grants: how many grants there were when that was known; those since are not in it.
        """
        with self._lock:
            known = self._told[-1].granted if self._told else self._untold
            since = {one: number for one, number in known.items() if number > grants}
            self._told.append(_Told(self._clock(), held, since))
            self._forget()

    def free(self, available: Collection[DeviceId]) -> Iterator[Sequence[DeviceId]]:
        """Yield which of the units that kubelet has free were so by the figures in force, by each later ones; all."""
        with self._lock:
            self._forget()
            told = tuple(self._told)
        for one in told:
            yield tuple(unit for unit in available if unit not in one.held and unit not in one.granted)
        yield tuple(available)

    def _forget(self) -> None:
        """Forget what is no longer in force: something later is."""
        due = self._clock() - SETTLES
        while len(self._told) > 1 and self._told[1].at <= due:
            del self._told[0]
