"""How busy cards are, and by whom.

Owns: the two questions to NVML about it, once per poll, and what of its answers is plausible. Runs in the driver
process.
Refuses: containers, sums, metrics; and cards in MIG mode, of which NVML tells neither ("on MIG-enabled GPUs, querying
process utilization is not currently supported").

NVML has for each process that was busy the average since a time stamp, which is that of the answer before. Some drivers
leave entries of the answer unset: a share above 100, a process 0 or a time stamp that was asked for before is none.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from nodeplug_gpu.cards import Card, GpuProcess, Utilization, Uuid
from nodeplug_gpu.driver.calls import NOT_FOUND, TOO_SMALL, Calls, NvmlFailure

_NOBODY: Final = frozenset({0, NOT_FOUND})
"""Nobody was busy: NVML says "not found", and pynvml takes an empty success for an error of that number."""
_MAX_SHARE: Final = 100
_CLOCK_SKEW: Final = 60_000_000
"""Microseconds that a time stamp may be ahead; a later one would hide all that follow."""
_IDLE: Final = Utilization(0, 0, 0, 0)


class UtilizationReader:
    """Reads the utilisation of cards; remembers, for each, up to when."""

    def __init__(self, calls: Calls, tolerate: Callable[[str, NvmlFailure], None]) -> None:
        """Make a reader.

        Args:
            calls: of the polling thread.
            tolerate: is given what fails; raises it where nothing more can be asked.
        """
        self._calls = calls
        self._tolerate = tolerate
        self._until: dict[Uuid, int] = {}

    def of_card(self, handle: Any, card: Card) -> Utilization | None:
        """Return how busy a card is; None if that is not known."""
        if card.mig:
            return None
        symbol = "nvmlDeviceGetUtilizationRates"
        try:
            rates = self._calls(symbol, handle)
        except NvmlFailure as error:
            self._tolerate(symbol, error)
            return None
        sm, memory = int(rates.gpu), int(rates.memory)
        return Utilization(sm, memory) if _plausible(sm, memory) else None

    def of_processes(self, handle: Any, card: Card, processes: Sequence[GpuProcess]) -> Sequence[GpuProcess]:
        """Return the processes of a card with what each has used; without processes nothing is asked."""
        if card.mig or not processes:
            return processes
        symbol, since = "nvmlDeviceGetProcessUtilization", self._until.get(card.uuid, 0)
        try:
            samples = self._calls(symbol, handle, since)
        except NvmlFailure as error:
            if error.code not in _NOBODY:
                if error.code != TOO_SMALL:  # more have become busy between the two calls of pynvml
                    self._tolerate(symbol, error)
                return processes
            samples = ()
        shares, self._until[card.uuid] = average(samples, since, int(time.time() * 1e6) + _CLOCK_SKEW)
        return [replace(one, utilization=shares.get(one.pid, _IDLE)) for one in processes]


def average(samples: Iterable[Any], since: int, latest: int) -> tuple[Mapping[int, Utilization], int]:
    """Return the utilisation by process, and the newest time stamp.

    Args:
        samples: nvmlProcessUtilizationSample_t; of several of one process, the average counts.
        since: time stamp in microseconds; what is not newer was told before.
        latest: the same; what is newer is not plausible.
    """
    by_pid: dict[int, list[tuple[int, int, int, int]]] = {}
    newest = since
    for one in samples:
        shares = int(one.smUtil), int(one.memUtil), int(one.encUtil), int(one.decUtil)
        if one.pid and since < one.timeStamp <= latest and _plausible(*shares):
            by_pid.setdefault(int(one.pid), []).append(shares)
            newest = max(newest, int(one.timeStamp))
    return {pid: Utilization(*_averages(found)) for pid, found in by_pid.items()}, newest


def _averages(found: Sequence[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    sm, memory, encoder, decoder = (round(sum(shares) / len(found)) for shares in zip(*found, strict=True))
    return sm, memory, encoder, decoder


def _plausible(*shares: int) -> bool:
    return all(0 <= share <= _MAX_SHARE for share in shares)
