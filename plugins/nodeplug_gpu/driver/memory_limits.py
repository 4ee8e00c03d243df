"""Limits of a card's memory for a cgroup, which the driver enforces.

Owns: setting one and reading it back, and the question whether a card can have one. Runs in the driver process alone.
Refuses: which cgroup, and how much (the daemon knows).

Source: NVIDIA, "MPS v3 Memory Partitioning", and the NVML reference, nvmlDeviceSetMemoryLimits_v1: since R615, root
only, not for MIG, cgroup v2. The soft limit stays 0: the driver adds it to every ancestor, where it is left when the
cgroup is removed, which is how a container ends. A limit goes with its cgroup.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pynvml

from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.driver.calls import (
    DRIVER_WIDE,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    Calls,
    NvmlFailure,
    failure,
)
from nodeplug_gpu.driver.wire import LimitAnswer, LimitOrder

UNLIMITED: Final = (1 << 64) - 1
"""NVML_DEVICE_MEMORY_LIMIT_MAX, which clears a limit."""
_ROUNDED: Final = 2 << 20
"""By how much the limit that is read back may differ, in bytes: a large page of the card."""
_SET: Final = "nvmlDeviceSetMemoryLimits_v1"
_GET: Final = "nvmlDeviceGetMemoryLimits_v1"
_IN_MIG_MODE: Final = "it is in MIG mode, and the driver limits memory by cgroup on whole cards alone"
_WHYS: Final[Mapping[int, str]] = {
    FUNCTION_NOT_FOUND: f"the driver does not have {_SET}; R615 and later have it",
    NOT_SUPPORTED: "the driver does not support limits by cgroup on this card and node",
    NO_PERMISSION: "the driver lets nobody but root set limits by cgroup",
}
_LASTING: Final = frozenset({"", _IN_MIG_MODE, *_WHYS.values()})
"""The answers that stay as they are for as long as this driver and the card's MIG mode do."""


def own_cgroup(root: Path, proc: Path = Path("/proc")) -> Path | None:
    """Return the folder of this process's cgroup; None where cgroup v2 is not mounted there.

    Args:
        root: where cgroup v2 should be mounted.
        proc: where proc(5) is mounted.
    """
    if not (root / "cgroup.controllers").exists():
        return None
    lines = (proc / "self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    folder = root / path.lstrip("/")
    return folder if folder.is_dir() else root


class MemoryLimits:
    """Sets limits. One for each thread, as its calls are."""

    def __init__(self, calls: Calls) -> None:
        """Make one with the calls of the thread."""
        self._calls = calls

    def answer(self, order: LimitOrder, handles: Sequence[tuple[int, Uuid, Any]]) -> LimitAnswer:
        """Carry out an order, and read back what the driver has made of it."""
        for index, uuid, handle in handles:
            if uuid == order.card:
                with self._calls.about(index, uuid):
                    try:
                        return LimitAnswer(order.number, self._limited(handle, Path(order.cgroup), order.size))
                    except NvmlFailure as error:
                        return LimitAnswer(order.number, error=_explained(error, order.cgroup))
        return LimitAnswer(order.number, error=f"{order.card} is not among the cards that the driver shows")

    def set(self, handle: Any, cgroup: Path, size: int) -> None:
        """Set a limit.

        Raises:
            NvmlFailure: the driver has not set it.
        """
        self._calls(_SET, handle, self._structure("c_nvmlSetMemoryLimits_v1_t", _SET)(bytes(cgroup), 0, size))

    def _limited(self, handle: Any, cgroup: Path, size: int) -> int:
        self.set(handle, cgroup, size)
        told = self._structure("c_nvmlGetMemoryLimits_v1_t", _GET)(bytes(cgroup))
        self._calls(_GET, handle, told)
        hard = int(told.hardLimit)
        if abs(hard - size) > _ROUNDED:
            found = "none" if hard == UNLIMITED else f"{hard} bytes"
            raise NvmlFailure(0, f"{size} bytes were set as the limit of {cgroup}, and the driver tells {found}")
        return hard

    def _structure(self, name: str, symbol: str) -> Any:
        made = getattr(pynvml, name, None)
        if made is None:  # this pynvml is older than the call
            raise failure(symbol, FUNCTION_NOT_FOUND)
        return made


class LimitableCards:
    """Knows which cards can have limits."""

    def __init__(self, calls: Calls, cgroups: Path) -> None:
        """Make one.

        Args:
            calls: of the thread.
            cgroups: where cgroup v2 should be mounted.
        """
        self._calls = calls
        self._limits = MemoryLimits(calls)
        self._cgroups = cgroups
        self._known: dict[tuple[Uuid, bool], str] = {}

    def whys(self, cards: Sequence[Card], handles: Sequence[tuple[int, Uuid, Any]]) -> Mapping[Uuid, str]:
        """Return, by card, why it cannot have limits; empty where it can.

        What stays as it is until the driver is replaced is asked once; other failures may be over at the next poll.

        Raises:
            NvmlFailure: the driver as a whole does not answer.
        """
        found = {uuid: handle for _, uuid, handle in handles}
        whys: dict[Uuid, str] = {}
        for card in cards:
            why = self._known.get((card.uuid, card.mig))
            if why is None and card.uuid in found:
                with self._calls.about(card.index, card.uuid):
                    why = _IN_MIG_MODE if card.mig else self._why(found[card.uuid])
                if why in _LASTING:
                    self._known[card.uuid, card.mig] = why
            if why is not None:
                whys[card.uuid] = why
        return whys

    def _why(self, handle: Any) -> str | None:
        """Clear a limit that nobody has, that of this process's cgroup: whoever may do that may set one.

        Returns:
            Why not; empty if it can, None if the card does not answer.
        """
        folder = own_cgroup(self._cgroups)
        if folder is None:
            return f"cgroup v2 is not mounted at {self._cgroups}"
        try:
            self._limits.set(handle, folder, UNLIMITED)
        except NvmlFailure as error:
            if error.code in DRIVER_WIDE:
                raise
            if error.code in {GPU_IS_LOST, RESET_REQUIRED}:
                return None  # the next poll says so
            # Not found: this one has no files of the controller dmem, which says nothing of a container's.
            return "" if error.code == NOT_FOUND else _WHYS.get(error.code, str(error))
        return ""


def _explained(error: NvmlFailure, cgroup: str) -> str:
    if error.code == NOT_FOUND:
        return f"{error}: {cgroup} has no files of the cgroup controller dmem; its runtime has to enable it (runc does)"
    return _WHYS.get(error.code, str(error))
