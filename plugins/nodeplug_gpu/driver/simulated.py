"""Simulated cards: for the demo, tutorials and tests on machines without a GPU.

Owns: the cards that the configuration describes, and the faults that a file injects while the driver runs.
Refuses: NVML.

The file is JSON and read at each poll; its faults persist until it says otherwise. A missing file injects nothing; one
that cannot be read changes nothing and is logged. Its keys are those of `Faults`:

    {"cards": {"0": {"lost": true}, "GPU-8a5e…": {"xid": 79, "ecc": 3, "recovery_action": 1}}}
"""

import json
import re
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from nodeplug.fields import Quantity
from nodeplug_gpu.cards import Card, CardPair, GpuEvent, GpuProcess, MigInstance, Snapshot, Telemetry, Utilization, Uuid
from nodeplug_gpu.driver import Observer
from nodeplug_gpu.driver.publish import Log, Publisher
from nodeplug_gpu.driver.wire import LimitAnswer

_PROFILE: Final = re.compile(r"(?:\dc\.)?(\d)g\.(\d{1,4})gb(?:[+-][a-z.]+)?")
_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]{4,90}")
_NAMESPACE: Final = uuid.UUID("6f1c6a4e-5e1e-5c53-9d0a-5a1b8f3c2d10")
_NODE: Final = 40
_SYSTEM: Final = 50
"""NVML_TOPOLOGY_NODE and NVML_TOPOLOGY_SYSTEM."""
LIMITS_FILE: Final = "simulated-limits.json"
"""What was limited: by card, and by the folder of the cgroup, in bytes."""
_IN_MIG_MODE: Final = "it is in MIG mode, and the driver limits memory by cgroup on whole cards alone"
_LOST: Final = (15, "the GPU is lost: it fell off the bus or has become inaccessible (NVML error 15, simulated)")


def _profile(value: str) -> str:
    if not _PROFILE.fullmatch(value):
        raise ValueError(f"{value[:40]!r} is not a MIG profile; write it as nvidia-smi does, such as 1g.10gb")
    return value


Profile = Annotated[str, AfterValidator(_profile)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SimulatedCard(_Strict):
    """Equal cards of a simulated machine."""

    model: str = Field("Simulated GPU", min_length=1, max_length=100, description="Product name.")
    memory: Quantity = Field(
        16 << 30, le=1 << 46, description='Memory of each card, such as "80GiB"; "0" for cards that do not tell it.'
    )
    count: int = Field(1, ge=1, le=64, description="How many such cards there are.")
    numa_node: int | None = Field(None, ge=0, le=1023, description="NUMA node of the cards; none by default.")
    uuid: str | None = Field(
        None, pattern=f"^{_UUID.pattern}$", description="UUID of a single card; derived from node and index by default."
    )
    mig: tuple[Profile, ...] = Field((), max_length=32, description="MIG instances of each card; none: MIG is off.")
    compute_capability: tuple[Annotated[int, Field(ge=0, le=99)], Annotated[int, Field(ge=0, le=99)]] = Field(
        (9, 0), description="CUDA compute capability, major and minor."
    )

    nvlinks: int = Field(0, ge=0, le=36, description="NVLinks between each two of these cards.")

    @model_validator(mode="after")
    def _a_size_is_one(self) -> Self:
        if 0 < self.memory < 1 << 20:
            raise ValueError("memory is 1Mi or more, or 0")
        return self

    @model_validator(mode="after")
    def _one_uuid(self) -> Self:
        if self.uuid is not None and self.count > 1:
            raise ValueError("a uuid names one card; write count = 1, or leave the uuid out")
        return self


class SimulatedProcess(_Strict):
    """A process that holds memory of a card."""

    pid: int = Field(ge=1, le=1 << 22, description="Process id on the host.")
    used: Quantity | None = Field(None, ge=0, description='Memory that it holds, such as "2GiB"; unknown by default.')
    instance: str | None = Field(None, description="UUID of the MIG instance that it runs on.")
    sm: int | None = Field(None, ge=0, le=100, description="Percent of the time that it computes; unknown by default.")


class CardFaults(_Strict):
    """What is wrong with one card."""

    gone: bool = Field(False, description="The card is no longer there, as if it were unplugged.")
    lost: bool = Field(False, description="The card is there and does not answer: NVML error 15.")
    error: str = Field("", max_length=200, description="The probe fails with this text: NVML error 999.")
    xid: int | tuple[int, ...] = Field((), description="XID events; sent once, and again when the file is written.")
    instance_xids: dict[str, int | tuple[int, ...]] = Field(
        default_factory=dict,
        description="XID events of MIG instances, by UUID or place, from 0; sent as those of `xid`.",
    )
    ecc: int | None = Field(None, ge=0, description="Uncorrected ECC errors; more of them are an event.")
    recovery_action: int | None = Field(
        None, ge=0, le=255, description="NVML's recovery action; a new one is an event."
    )
    used: Quantity | None = Field(None, ge=0, description="Memory in use; the sum of the processes by default.")
    processes: tuple[SimulatedProcess, ...] = Field((), description="Who uses the card.")
    mig: tuple[Profile, ...] | None = Field(None, description="MIG instances from now on; [] switches MIG off.")
    limits: str = Field("", max_length=200, description="Why the driver cannot limit its memory by cgroup.")


class Faults(_Strict):
    """The whole file."""

    driver: Literal["running", "absent", "failed"] = Field("running", description="State of the driver as a whole.")
    reason: str = Field("", max_length=200, description="Why, unless it is running.")
    driver_version: str = Field("simulated", max_length=80, description="Version that the driver reports.")
    cards: dict[str, CardFaults] = Field(default_factory=dict, description="By index or UUID of the card.")


def simulate(descriptions: Sequence[SimulatedCard], node: str = "") -> tuple[Card, ...]:
    """Return the cards of a simulated machine.

    Args:
        descriptions: in the order of the indices.
        node: the node's name; cards of different nodes have different UUIDs, and keep them over restarts.
    """
    cards: list[Card] = []
    for entry in descriptions:
        for _ in range(entry.count):
            index = len(cards)
            made = Uuid(f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}")
            card = Card(
                uuid=Uuid(entry.uuid) if entry.uuid else made,
                index=index,
                minor=index,
                model=entry.model,
                memory=entry.memory,
                pci=f"0000:{index + 1:02x}:00.0",
                numa_node=entry.numa_node,
                compute_capability=entry.compute_capability,
            )
            cards.append(_with_mig(card, entry.mig))
    return tuple(cards)


def connected(descriptions: Sequence[SimulatedCard], cards: Sequence[Card]) -> tuple[CardPair, ...]:
    """Return how each two of the cards are connected: those of one description by its links."""
    groups = [number for number, entry in enumerate(descriptions) for _ in range(entry.count)]
    return tuple(
        CardPair(
            one.uuid,
            other.uuid,
            descriptions[groups[one.index]].nvlinks if groups[one.index] == groups[other.index] else 0,
            _NODE if one.numa_node == other.numa_node else _SYSTEM,
        )
        for one, other in combinations(cards, 2)
    )


def _with_mig(card: Card, profiles: Sequence[str]) -> Card:
    """Return a card that is partitioned into MIG instances, or a whole one without any."""
    instances = tuple(
        MigInstance(
            uuid=Uuid(f"MIG-{uuid.uuid5(_NAMESPACE, f'{card.uuid}/{place}/{profile}')}"),
            profile=profile,
            memory=int(match[2]) << 30,
            gpu_instance=place + 1,
            compute_instance=0,
        )
        for place, profile in enumerate(profiles)
        if (match := _PROFILE.fullmatch(profile)) is not None
    )
    return replace(card, mig=bool(instances), instances=instances)


class SimulatedDriver:
    """Simulated cards as a driver."""

    def __init__(
        self, cards: Sequence[SimulatedCard], poll: float, faults_file: Path, log: Log, *, node: str = ""
    ) -> None:
        """Make a driver that does nothing yet.

        Args:
            cards: what the machine has.
            poll: seconds between two readings of the file.
            faults_file: the file of faults; it need not exist.
            log: for a file that cannot be read.
            node: the node's name.
        """
        self._cards = simulate(cards, node)
        self._pairs = connected(cards, self._cards)
        self._poll = poll
        self._file = faults_file
        self._log = log
        self._publisher = Publisher(log)
        self._faults = Faults()
        self._written: tuple[int, int, int] | None = None
        self._asked = threading.Event()
        self._stopping = False
        self._limiting = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The latest snapshot."""
        return self._publisher.snapshot

    def start(self, observer: Observer) -> None:
        """Start to poll, in a thread of its own."""
        if self._thread is None and not self._stopping:
            self._publisher.observer = observer
            self._thread = threading.Thread(target=self._run, name="nodeplug-gpu-simulated", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._asked.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(0.5)

    def poll(self) -> None:
        """Ask for a poll now."""
        self._asked.set()

    def _run(self) -> None:
        while not self._stopping:
            events = tuple(self._read())
            self._publisher.publish(self._poll_cards(), events)
            self._asked.wait(self._poll)
            self._asked.clear()

    def _read(self) -> Iterator[GpuEvent]:
        """Read the file if it has changed, and yield the events that result."""
        try:
            stat = self._file.stat()
            written = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if written == self._written:
                return
            self._written = written
            faults = Faults.model_validate_json(self._file.read_bytes())
        except FileNotFoundError:
            self._written, faults = None, Faults()
        except (OSError, ValidationError) as error:
            self._log.warning("the file of faults %s is ignored: %s", self._file, _sentence(error))
            return
        before, self._faults = self._faults, faults
        for card in self._cards:
            yield from _events(card, _of(before, card), _of(faults, card))

    def _poll_cards(self) -> Snapshot:
        now, faults = time.monotonic(), self._faults
        cards = tuple(_with_faults(card, _of(faults, card)) for card in self._cards if not _of(faults, card).gone)
        if faults.driver != "running":
            reason = faults.reason or f"the simulated driver is {faults.driver}"
            return Snapshot(faults.driver, reason, cards=self.snapshot.cards, taken=now, generation=1)
        telemetry: dict[Uuid, Telemetry] = {}
        processes: list[GpuProcess] = []
        for card in cards:
            telemetry[card.uuid], held = _condition(card, _of(faults, card))
            processes += held
        return Snapshot(
            "running",
            driver_version=faults.driver_version,
            cards=cards,
            telemetry=telemetry,
            processes=tuple(processes),
            taken=now,
            generation=1,
            pairs=self._pairs,
            limits={card.uuid: self._why_unlimited(card) for card in cards},
        )

    def _why_unlimited(self, card: Card) -> str:
        return _of(self._faults, card).limits or (_IN_MIG_MODE if card.mig else "")

    def limit(self, card: Uuid, cgroup: Path, size: int, timeout: float) -> LimitAnswer:
        """Write the limit into a file beside that of the faults; nothing is limited."""
        del timeout
        found = next((one for one in self.snapshot.cards if one.uuid == card), None)
        why = f"{card} is not there" if found is None else self._why_unlimited(found)
        if why:
            return LimitAnswer(0, error=why)
        file = self._file.with_name(LIMITS_FILE)
        with self._limiting:
            known = json.loads(file.read_bytes()) if file.exists() else {}
            known.setdefault(card, {})[str(cgroup)] = size
            file.write_text(json.dumps(known), encoding="utf-8")
        return LimitAnswer(0, size)


def _of(faults: Faults, card: Card) -> CardFaults:
    return faults.cards.get(card.uuid) or faults.cards.get(str(card.index)) or _NO_FAULTS


_NO_FAULTS: Final = CardFaults()


def _with_faults(card: Card, faults: CardFaults) -> Card:
    return card if faults.mig is None else _with_mig(card, faults.mig)


def _condition(card: Card, faults: CardFaults) -> tuple[Telemetry, list[GpuProcess]]:
    if faults.lost:
        return Telemetry(_LOST[1], _LOST[0]), []
    processes = [
        GpuProcess(
            one.pid,
            card.uuid,
            one.used,
            Uuid(one.instance) if one.instance else None,
            Utilization(one.sm, 0, 0, 0) if one.sm is not None and not card.mig else None,
        )
        for one in faults.processes
    ]
    used = sum(one.used or 0 for one in processes) if faults.used is None else faults.used
    return Telemetry(
        error=faults.error,
        error_code=999 if faults.error else 0,
        recovery_action=faults.recovery_action or 0,
        uncorrected_ecc=faults.ecc or 0,
        used=min(used, card.memory) if card.memory else None,
        utilization=None if card.mig else Utilization(min(sum(one.sm or 0 for one in faults.processes), 100), 0),
    ), processes


def _events(of: Card, before: CardFaults, after: CardFaults) -> Iterator[GpuEvent]:
    if after.gone:
        return
    card, now = of.uuid, time.monotonic()
    for xid in _numbers(after.xid):
        yield GpuEvent("xid", card, xid, time=now)
    for place, one in enumerate(_with_faults(of, after).instances):
        for name in (one.uuid, str(place)):
            for xid in _numbers(after.instance_xids.get(name, ())):
                yield GpuEvent("xid", card, xid, one.gpu_instance, one.compute_instance, time=now)
    if (after.ecc or 0) > (before.ecc or 0):
        yield GpuEvent("ecc", card, after.ecc or 0, time=now)
    if (after.recovery_action or 0) != (before.recovery_action or 0):
        yield GpuEvent("recovery", card, after.recovery_action or 0, time=now)
    if after.mig != before.mig:
        yield GpuEvent("mig", card, int(bool(after.mig)), time=now)


def _numbers(xids: int | tuple[int, ...]) -> tuple[int, ...]:
    return (xids,) if isinstance(xids, int) else xids


def _sentence(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in error.errors()[:3])
