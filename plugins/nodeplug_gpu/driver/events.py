"""NVML's events as values.

Owns: which event types are requested, which cards are registered, and what an event means.
Refuses: what an event means for a card's health.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from nodeplug_gpu.cards import GpuEvent, Uuid
from nodeplug_gpu.driver.calls import DRIVER_WIDE, MISSING, TIMEOUT, Calls, NvmlFailure
from nodeplug_gpu.driver.nvml import Handle, Reader, address

Kind = Literal["xid", "ecc", "recovery", "mig", "unavailable", "retirement"]
_KINDS: Final[Mapping[int, Kind]] = {
    0x2: "ecc",  # nvmlEventTypeDoubleBitEccError
    0x8: "xid",  # nvmlEventTypeXidCriticalError
    0x100: "mig",  # nvmlEventMigConfigChange
    0x800: "retirement",  # nvmlEventTypeDramRetirementFailure
    0x2000: "ecc",  # nvmlEventTypeFatalPoisonError
    0x4000: "unavailable",  # nvmlEventTypeGpuUnavailableError
    0x8000: "recovery",  # nvmlEventTypeGpuRecoveryAction
}
_WANTED: Final = sum(_KINDS)
_WHOLE_CARD: Final = 0xFFFFFFFF


class Listener:
    """One event set, waited for by one thread."""

    def __init__(self, calls: Calls, reader: Reader, warn: Callable[[str], None]) -> None:
        self._calls = calls
        self._reader = reader
        self._warn = warn
        self._set: Any = None
        self._registered: dict[int, Uuid] = {}
        self._refused: set[Uuid] = set()

    def wait(self, seconds: float) -> GpuEvent | None:
        """Wait for the next event of any card.

        Returns:
            None when none came in time, or one of a type that was not requested.

        Raises:
            NvmlFailure: waiting is not possible; the set was discarded, and the next call creates a new one.
        """
        try:
            if self._set is None:
                self._set = self._calls("nvmlEventSetCreate")
            self._register()
            if not self._registered:
                time.sleep(seconds)
                return None
            data = self._calls("nvmlEventSetWait_v2", self._set, int(seconds * 1000))
        except NvmlFailure as error:
            if error.code == TIMEOUT:
                return None
            self._give_up()
            raise
        return self._event(data)

    def _register(self) -> None:
        handles = self._reader.handles
        for index, uuid, handle in handles:
            if self._registered.get(address(handle)) != uuid and uuid not in self._refused:
                with self._calls.about(index, uuid):
                    self._subscribe(uuid, handle)
        self._refused &= {uuid for _, uuid, _ in handles}

    def _subscribe(self, uuid: Uuid, handle: Handle) -> None:
        """Register the events of one card; retried when the card was absent for a while, not at every call."""
        try:
            mask = self._calls("nvmlDeviceGetSupportedEventTypes", handle) & _WANTED
            if mask:
                self._calls("nvmlDeviceRegisterEvents", handle, mask, self._set)
                self._registered[address(handle)] = uuid
                return
        except NvmlFailure as error:
            if error.code in DRIVER_WIDE:
                raise
            if error.code not in MISSING:
                self._warn(f"{uuid} sends no events: {error}")
        self._refused.add(uuid)

    def _give_up(self) -> None:
        events, self._set = self._set, None
        self._registered.clear()
        self._refused.clear()
        if events is not None:
            with contextlib.suppress(NvmlFailure):  # it is freed with this process at the latest
                self._calls("nvmlEventSetFree", events)

    def _event(self, data: Any) -> GpuEvent | None:
        kind = _KINDS.get(int(data.eventType))
        if kind is None:
            return None
        place = address(data.device)
        instance, compute = int(data.gpuInstanceId), int(data.computeInstanceId)
        return GpuEvent(
            kind=kind,
            card=self._registered.get(place),
            code=int(data.eventData),
            gpu_instance=None if instance == _WHOLE_CARD else instance,
            compute_instance=None if compute == _WHOLE_CARD else compute,
            time=time.monotonic(),
        )
