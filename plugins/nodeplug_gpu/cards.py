"""What a driver reports: cards, their MIG instances, their telemetry, and the processes on them.

Owns: the values between a driver and the rest of the plugin. Sizes are bytes, times are seconds of the monotonic clock.
Refuses: how they are read (a driver does that), what they mean for sharing or health, JSON and NVML.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NewType

Uuid = NewType("Uuid", str)
"""`GPU-…` of a card or `MIG-…` of an instance, as NVML and NVIDIA_VISIBLE_DEVICES have it."""

DriverState = Literal["absent", "starting", "running", "failed"]


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One MIG compute instance of a card.

    Attributes:
        uuid: `MIG-…`.
        profile: such as `1g.10gb`, as nvidia-smi names it.
        memory: bytes of the GPU instance.
        gpu_instance, compute_instance: NVML's ids; they name the capability nodes of /dev/nvidia-caps.
    """

    uuid: Uuid
    profile: str
    memory: int
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU.

    Attributes:
        uuid: stable for the life of the hardware.
        index: NVML's index: by PCI address, changes when a card vanishes.
        minor: N of /dev/nvidiaN; not the index.
        model: product name, such as `NVIDIA H100 80GB HBM3`.
        memory: bytes in total; 0 where that is not known: of a card that has none of its own (it uses the machine's).
        pci: `0000:3b:00.0`, lower case, the domain in four digits as sysfs has it.
        numa_node: None when the machine reports none.
        pcie_root: the PCIe root complex, such as `pci0000:3a`; empty if none is known.
        compute_capability: major and minor; MPS differs below 7.0.
        mig: MIG mode is on; the card is then advertised by its instances alone.
        instances: the MIG instances, in NVML's order.
    """

    uuid: Uuid
    index: int
    minor: int
    model: str
    memory: int
    pci: str = ""
    numa_node: int | None = None
    compute_capability: tuple[int, int] = (0, 0)
    mig: bool = False
    instances: tuple[MigInstance, ...] = ()
    pcie_root: str = ""


@dataclass(frozen=True, slots=True)
class Utilization:
    """How busy the engines of a card were, in percent of the time that NVML has looked at.

    Attributes:
        sm: the multiprocessors, with compute or graphics.
        memory: the memory was read or written.
        encoder, decoder: of video; None where only the others are known.
    """

    sm: int
    memory: int
    encoder: int | None = None
    decoder: int | None = None

    @classmethod
    def together(cls, parts: Iterable["Utilization | None"]) -> "Utilization | None":
        """Return what processes use of a card together, 100 percent at most; None if of none of them it is known.

        Clients of MPS run at the same time, so that the sum of theirs may be more than all of it.
        """
        known = [one for one in parts if one is not None]
        if not known:
            return None
        engines = ([one.sm, one.memory, one.encoder or 0, one.decoder or 0] for one in known)
        return cls(*(min(sum(shares), 100) for shares in zip(*engines, strict=True)))


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What one poll read about a card's condition; None where the card or the driver does not report it.

    Attributes:
        error: the live probe (a read of the memory info) failed with this NVML error; empty when it went well.
        error_code: NVML's number for it, such as 15 (GPU is lost), or 10 (timeout) for a call that never returned; 0
            when it went well.
        recovery_action: field 230: 0 none, 1 GPU reset, 2 node reboot, 3 drain peer-to-peer, 4 drain and reset, …
        uncorrected_ecc: volatile uncorrected errors since the driver loaded the card.
        used: bytes in use on the card.
        utilization: of the card, in the driver's last sample period (1 s or less); not known in MIG mode.
    """

    error: str = ""
    error_code: int = 0
    recovery_action: int | None = None
    uncorrected_ecc: int | None = None
    used: int | None = None
    utilization: Utilization | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a card.

    Attributes:
        pid: in the driver's pid namespace, that of the host.
        card: the card's uuid.
        instance: the MIG instance's uuid, or None.
        used: bytes; None where the driver does not report it.
        utilization: by this process since the poll before; None where the driver does not report it, as in MIG mode.
    """

    pid: int
    card: Uuid
    used: int | None = None
    instance: Uuid | None = None
    utilization: Utilization | None = None


@dataclass(frozen=True, slots=True)
class CardPair:
    """How two cards are connected.

    Attributes:
        one, other: the cards, each pair once.
        links: NVLinks between them that are active; by way of a switch, as many as the card with fewer has to it.
        distance: NVML's level of the first part that both share: 10 one PCIe switch, 20 several, 30 a host bridge, 40 a
            NUMA node, 50 the machine.
    """

    one: Uuid
    other: Uuid
    links: int
    distance: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The machine, as one poll found it.

    Attributes:
        state: `absent` without a driver, `starting` before the first poll, `running`, `failed` while the driver hangs
            or answers nonsense.
        reason: what is wrong; while running, what the driver has to do without, or empty.
        driver_version: of the kernel driver; empty unless running.
        cards: in NVML's order. While `failed`, or `absent` after the driver was there, those of the last good poll.
        telemetry: by card; empty unless running.
        processes: of all cards; empty unless running, because a pid may have been reused by now.
        unreadable: a sentence for each card or MIG instance that the driver counts and that could not be read, such as
            a card that was lost before this driver process started, or one without a UUID.
        cuda_version: 1000 times the major and 10 times the minor version of CUDA that the driver has; 0 if unknown.
        mig_capable: some card has a MIG mode, on or off.
        pairs: how cards are connected; empty unless running.
        limits: by card: why the driver cannot limit the memory that a cgroup has of it; empty where it can. No card is
            in it before that is known, and where nobody wants to know.
        taken: when, on the monotonic clock.
        generation: counts the starts of the driver process: a change means that the driver was loaded again.
    """

    state: DriverState = "starting"
    reason: str = ""
    driver_version: str = ""
    cards: tuple[Card, ...] = ()
    telemetry: Mapping[Uuid, Telemetry] = field(default_factory=lambda: MappingProxyType({}))
    processes: tuple[GpuProcess, ...] = ()
    taken: float = 0.0
    generation: int = 0
    unreadable: tuple[str, ...] = ()
    cuda_version: int = 0
    mig_capable: bool = False
    pairs: tuple[CardPair, ...] = ()
    limits: Mapping[Uuid, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """Something that the driver reported between two polls.

    Attributes:
        kind: `xid` (code = the XID), `ecc` (uncorrected), `recovery` (code = the action), `mig` (the mode changed),
            `unavailable`, `retirement`.
        card: None when the event names a card that no poll has shown, or none at all.
        code: its number.
        gpu_instance, compute_instance: where the event is about a MIG instance.
        time: when it was received, on the monotonic clock.
    """

    kind: Literal["xid", "ecc", "recovery", "mig", "unavailable", "retirement"]
    card: Uuid | None
    code: int = 0
    gpu_instance: int | None = None
    compute_instance: int | None = None
    time: float = 0.0
