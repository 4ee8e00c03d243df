"""NVML's answers as values: one poll of all cards.

Owns: what is queried of each card, and the validation of every number. Runs in the driver process alone.
Refuses: processes, pipes, and trust. Implausible values are dropped: an optional field becomes None, a card with an
implausible memory size carries an error, and a card that cannot be identified is named in `unreadable`.
"""

import ctypes
import math
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pynvml

from nodeplug_gpu.cards import Card, GpuProcess, MigInstance, Telemetry, Uuid
from nodeplug_gpu.driver import mig
from nodeplug_gpu.driver.calls import (
    DRIVER_WIDE,
    GONE,
    GPU_IS_LOST,
    MISSING,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    Calls,
    NvmlFailure,
)
from nodeplug_gpu.driver.connections import ConnectionReader
from nodeplug_gpu.driver.memory_limits import LimitableCards
from nodeplug_gpu.driver.texts import bus_of, text
from nodeplug_gpu.driver.utilization import UtilizationReader
from nodeplug_gpu.driver.wire import PollResult

_MAX_CARDS: Final = 256
_MAX_INSTANCES: Final = 64
_MAX_CUDA: Final = 1_000_000
_MEMORY: Final = range(1 << 20, (1 << 46) + 1)
"""Plausible sizes of a card, in bytes: 1 MiB to 64 TiB."""
_MAX_PID: Final = 1 << 22
"""proc(5): the highest pid_max."""
_RECOVERY_ACTION: Final = 230
_ECC_UNCORRECTED: Final = 4
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION and NVML_FI_DEV_ECC_DBE_VOL_TOTAL."""
_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""By nvmlValueType_t, the member of nvmlValue_t that holds the value."""
_PCIE_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{4,90}")
_MPS: Final = "nvmlDeviceGetMPSComputeRunningProcesses"
_PROCESS_LISTS: Final = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses", _MPS)

Handle = Any
"""nvmlDevice_t."""


@dataclass(slots=True)
class _Found:
    """What a poll has gathered so far."""

    cards: list[Card] = field(default_factory=list)
    telemetry: dict[Uuid, Telemetry] = field(default_factory=dict)
    processes: list[GpuProcess] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    handles: list[tuple[int, Uuid, Handle]] = field(default_factory=list)
    mig_capable: bool = False


class Reader:
    """Polls the cards of an initialised library.

    Attributes:
        handles: index, UUID and handle of the cards that the last poll could read; replaced by each poll.
    """

    def __init__(
        self,
        calls: Calls,
        sysfs: Path,
        warn: Callable[[str], None],
        skip: Collection[int] = frozenset(),
        cgroups: Path | None = None,
    ) -> None:
        """Make a reader.

        Args:
            calls: of the polling thread.
            sysfs: where sysfs is mounted.
            warn: called once for each call that fails although the card works.
            skip: indices of cards that are not queried.
            cgroups: where cgroup v2 should be mounted, if it matters whether cards can have limits by cgroup.
        """
        self.handles: Sequence[tuple[int, Uuid, Handle]] = ()
        self._skip = frozenset(skip)
        self._calls = calls
        self._sysfs = sysfs
        self._warn = warn
        self._warned: set[tuple[str, int]] = set()
        self._connections = ConnectionReader(calls)
        self._utilization = UtilizationReader(calls, self._tolerate)
        self._known: dict[Uuid, Card] = {}
        self._at: dict[int, Uuid] = {}
        self._limits = None if cgroups is None else LimitableCards(calls, cgroups)

    def poll(self) -> PollResult:
        """Read all cards.

        Raises:
            NvmlFailure: the driver as a whole does not answer.
        """
        found = _Found()
        version = text(self._optional("", "nvmlSystemGetDriverVersion"))
        cuda = self._optional(0, "nvmlSystemGetCudaDriverVersion_v2")
        count = self._count()
        for index in range(count):
            if index not in self._skip:
                with self._calls.about(index, f"card {index}"):
                    self._read_card(index, found)
        self.handles = tuple(found.handles)
        pairs = self._connections.pairs(self.handles, found.cards)
        self._at = {card.index: card.uuid for card in found.cards}
        self._known = {card.uuid: card for card in found.cards}
        return PollResult(
            "running",
            driver_version=version,
            cards=tuple(found.cards),
            telemetry=found.telemetry,
            processes=tuple(found.processes),
            taken=time.monotonic(),
            unreadable=tuple(found.unreadable),
            cuda_version=cuda if 0 <= cuda < _MAX_CUDA else 0,
            mig_capable=found.mig_capable,
            pairs=pairs,
            limits={} if self._limits is None else self._limits.whys(found.cards, self.handles),
        )

    def _count(self) -> int:
        count: int = self._calls("nvmlDeviceGetCount_v2")
        if count > _MAX_CARDS:
            raise NvmlFailure(UNKNOWN, f"the driver counts {count} cards; at most {_MAX_CARDS} are plausible")
        return count

    def _read_card(self, index: int, found: _Found) -> None:
        uuid = self._at.get(index)
        try:
            handle = self._calls("nvmlDeviceGetHandleByIndex_v2", index)
            uuid = self._uuid(handle, "GPU")
            if any(card.uuid == uuid for card in found.cards):
                found.unreadable.append(f"card {index} has the UUID of another card: {uuid}")
                return
            self._calls.subject = uuid
            self._describe(index, uuid, handle, found)
        except NvmlFailure as error:
            if error.code in DRIVER_WIDE:
                raise
            self._unreadable(index, uuid, error, found)

    def _unreadable(self, index: int, uuid: Uuid | None, error: NvmlFailure, found: _Found) -> None:
        """Keep a known card that does not answer, with its error; report an unknown one as unreadable."""
        known = self._known.get(uuid) if uuid else None
        if known is None:
            if error.code not in GONE:
                found.unreadable.append(f"card {index}{f' ({uuid})' if uuid else ''}: {error}")
        elif error.code not in GONE and all(card.uuid != known.uuid for card in found.cards):
            found.cards.append(replace(known, index=index))
            found.telemetry[known.uuid] = Telemetry(str(error), error.code)

    def _describe(self, index: int, uuid: Uuid, handle: Handle, found: _Found) -> None:
        known = self._known.get(uuid)
        memory, used = self._memory(handle, known.memory if known else 0)
        card = replace(known, index=index, memory=memory) if known else self._identity(index, uuid, handle, memory)
        mode = self._optional(None, "nvmlDeviceGetMigMode", handle)
        found.mig_capable |= mode is not None
        mode = [0, 0] if mode is None else mode
        instances = self._instances(handle, card, found) if mode[0] == 1 else ()
        card = replace(card, mig=mode[0] == 1, instances=instances)
        recovery, ecc = self._fields(handle)
        processes = self._utilization.of_processes(handle, card, self._processes(handle, card))
        found.cards.append(card)
        found.telemetry[uuid] = Telemetry(
            recovery_action=recovery,
            uncorrected_ecc=ecc,
            used=used,
            utilization=self._utilization.of_card(handle, card),
        )
        found.processes += processes
        found.handles.append((index, uuid, handle))

    def _identity(self, index: int, uuid: Uuid, handle: Handle, memory: int) -> Card:
        """Read what never changes while the driver is loaded."""
        minor = self._optional(index, "nvmlDeviceGetMinorNumber", handle)
        pci = self._pci(handle)
        capability = self._optional((0, 0), "nvmlDeviceGetCudaComputeCapability", handle)
        plausible = all(0 <= part < 1000 for part in capability)
        return Card(
            uuid=uuid,
            index=index,
            minor=minor if minor < 1 << 20 else index,
            model=text(self._optional("", "nvmlDeviceGetName", handle)) or "unknown",
            memory=memory,
            pci=pci,
            numa_node=numa_node(self._sysfs, pci),
            pcie_root=pcie_root(self._sysfs, pci),
            compute_capability=(capability[0], capability[1]) if plausible else (0, 0),
        )

    def _uuid(self, handle: Handle, kind: str) -> Uuid:
        uuid = text(self._calls("nvmlDeviceGetUUID", handle))
        if not _UUID.fullmatch(uuid) or not uuid.startswith(kind):
            raise NvmlFailure(UNKNOWN, f"nvmlDeviceGetUUID returned {uuid[:40]!r}, which is not a {kind} UUID")
        return Uuid(uuid)

    def _memory(self, handle: Handle, before: int = 0) -> tuple[int, int | None]:
        """Return the total and used bytes of a card; this call is the live probe.

        A card without memory of its own tells that this is not supported, or 0 bytes; then it told no others before.
        """
        try:
            try:
                info = self._calls("nvmlDeviceGetMemoryInfo_v2", handle, pynvml.nvmlMemory_v2)
            except NvmlFailure as error:
                if error.code not in MISSING:
                    raise
                info = self._calls("nvmlDeviceGetMemoryInfo", handle)
        except NvmlFailure as error:
            if error.code != NOT_SUPPORTED:
                raise
            return 0, None
        total, used = int(info.total), int(info.used)
        if total == used == before == 0:
            return 0, None
        if total not in _MEMORY or used > total:
            raise NvmlFailure(UNKNOWN, f"the driver reports {used} bytes used of {total}, which is implausible")
        return total, used

    def _pci(self, handle: Handle) -> str:
        return bus_of(self._optional(None, "nvmlDeviceGetPciInfo_v3", handle))

    def _fields(self, handle: Handle) -> tuple[int | None, int | None]:
        """Return the recovery action and the uncorrected ECC errors."""
        values = self._optional((), "nvmlDeviceGetFieldValues", handle, [_RECOVERY_ACTION, _ECC_UNCORRECTED])
        numbers = {int(value.fieldId): number(value) for value in values if value.nvmlReturn == 0}
        recovery = numbers.get(_RECOVERY_ACTION)
        return (recovery if recovery is None or recovery < 256 else None), numbers.get(_ECC_UNCORRECTED)

    def _instances(self, handle: Handle, card: Card, found: _Found) -> tuple[MigInstance, ...]:
        instances = []
        most = self._optional(0, "nvmlDeviceGetMaxMigDeviceCount", handle)
        for index in range(min(most, _MAX_INSTANCES)):
            try:
                part = self._calls("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
                instances.append(self._instance(part, card))
            except NvmlFailure as error:
                if error.code in DRIVER_WIDE or error.code in {GPU_IS_LOST, RESET_REQUIRED}:
                    raise
                if error.code not in GONE:
                    found.unreadable.append(f"MIG instance {index} of {card.uuid}: {error}")
        return tuple(instances)

    def _instance(self, part: Handle, card: Card) -> MigInstance:
        uuid = self._uuid(part, "MIG")
        attributes = self._optional(None, "nvmlDeviceGetAttributes_v2", part)
        memory = self._memory(part)[0] if attributes is None else int(attributes.memorySizeMB) << 20
        if memory not in _MEMORY:
            raise NvmlFailure(UNKNOWN, f"the driver reports {memory} bytes for {uuid}, which is implausible")
        name = mig.profile_in(text(self._optional("", "nvmlDeviceGetName", part)))
        if not name and attributes is not None:
            slices = int(attributes.gpuInstanceSliceCount), int(attributes.computeInstanceSliceCount)
            name = mig.profile(*slices, memory, card.memory, ofa=attributes.sharedOfaCount > 0)
        return MigInstance(
            uuid=uuid,
            profile=name or "unknown",
            memory=memory,
            gpu_instance=self._calls("nvmlDeviceGetGpuInstanceId", part),
            compute_instance=self._calls("nvmlDeviceGetComputeInstanceId", part),
        )

    def _processes(self, handle: Handle, card: Card) -> list[GpuProcess]:
        """Merge the lists of compute, graphics and MPS: a process with several kinds of contexts is in several."""
        instances = {(one.gpu_instance, one.compute_instance): one.uuid for one in card.instances}
        most: dict[tuple[int, Uuid | None], int | None] = {}
        for name in _PROCESS_LISTS:
            entries = self._optional(None, f"{name}_v3", handle)
            if entries is None:
                entries = self._optional((), f"{name}_v2", handle)
            for entry in entries:
                pid, used = int(entry.pid), entry.usedGpuMemory
                if not 0 < pid <= _MAX_PID:
                    continue  # of a pid namespace unknown to the driver, or garbage
                key = pid, instances.get((entry.gpuInstanceId, entry.computeInstanceId))
                plausible = int(used) if used is not None and 0 <= used <= max(card.memory, 1 << 40) else None
                most[key] = max(most.get(key) or 0, plausible) if plausible is not None else most.get(key)
        return [GpuProcess(pid, card.uuid, used, instance) for (pid, instance), used in most.items()]

    def _optional(self, default: Any, symbol: str, *arguments: Any) -> Any:
        """Query something that a card or driver may not support."""
        try:
            return self._calls(symbol, *arguments)
        except NvmlFailure as error:
            self._tolerate(symbol, error)
            return default

    def _tolerate(self, symbol: str, error: NvmlFailure) -> None:
        """Do without an answer, and say so once; raise what is about the card or the driver as a whole."""
        if error.code in DRIVER_WIDE or error.code in {GPU_IS_LOST, RESET_REQUIRED}:
            raise error
        if error.code not in MISSING and (symbol, error.code) not in self._warned:
            self._warned.add((symbol, error.code))
            self._warn(str(error))


def numa_node(sysfs: Path, pci: str) -> int | None:
    """Return the NUMA node of a PCI device; None where the kernel says -1 or nothing."""
    try:
        node = int((sysfs / "bus/pci/devices" / pci / "numa_node").read_text()) if pci else -1
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def pcie_root(sysfs: Path, pci: str) -> str:
    """Return the PCIe root complex of a PCI device by its name in sysfs, such as `pci0000:3a`; empty if it has none."""
    if not pci:
        return ""
    place = (sysfs / "bus/pci/devices" / pci).resolve()
    return next((one for one in place.parts if _PCIE_ROOT.fullmatch(one)), "")


def number(value: Any) -> int | None:
    """Return the value of a nvmlFieldValue_t if it is a whole number from 0 up to 2^53."""
    if not 0 <= value.valueType < len(_MEMBERS):
        return None
    found = getattr(value.value, _MEMBERS[value.valueType])
    if not math.isfinite(found) or found != int(found) or not 0 <= found <= 1 << 53:
        return None
    return int(found)


def address(handle: Handle) -> int:
    """Return what identifies a card's handle: an event carries the handle, not the UUID."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
