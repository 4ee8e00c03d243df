"""A driver's library of our own (`mock.c`), and the cards that it has."""

import ctypes
import mmap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nodeplug_gpu.driver.calls import SYMBOLS

U32, U64 = ctypes.c_uint, ctypes.c_ulonglong
CALLS = tuple(SYMBOLS)
CRASH = 0xDEAD
GIB = 1 << 30


class Link(ctypes.Structure):
    _fields_ = [("there", U32), ("active", U32), ("end", ctypes.c_char * 32)]


class Shares(ctypes.Structure):
    _fields_ = [(name, U32) for name in ("sm", "memory", "encoder", "decoder")]


class Process(ctypes.Structure):
    _fields_ = [
        *(("pid", U32), ("kinds", U32), ("used", U64), ("gpu_instance", U32), ("compute_instance", U32)),
        ("shares", Shares),
        ("sampled", U64),
    ]


class Part(ctypes.Structure):
    _fields_ = [
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        *((name, U32) for name in ("gpu_instance", "compute_instance", "slices", "compute_slices", "ofa", "used")),
        ("megabytes", U64),
    ]


class Value(ctypes.Structure):
    _fields_ = [("type", U32), ("error", U32), ("bits", U64)]


class CardState(ctypes.Structure):
    _fields_ = [
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("bus", ctypes.c_char * 32),
        *((name, U32) for name in ("minor", "major", "minor_capability", "mig", "parts", "processes")),
        *((name, U64) for name in ("total", "used", "events")),
        ("shares", Shares),
        *((name, U32) for name in ("node", "padding_of_node")),
        ("link", Link * 18),
        ("errors", U32 * len(CALLS)),
        ("recovery", Value),
        ("ecc", Value),
        ("part", Part * 8),
        ("process", Process * 16),
    ]


class Limit(ctypes.Structure):
    _fields_ = [("cgroup", ctypes.c_char * 512), ("card", U32), ("padding", U32), ("soft", U64), ("hard", U64)]


class Event(ctypes.Structure):
    _fields_ = [
        *((name, U32) for name in ("card", "gpu_instance", "compute_instance", "padding")),
        ("type", U64),
        ("data", U64),
    ]


class State(ctypes.Structure):
    _fields_ = [
        *((name, U32) for name in ("size", "count", "sticky", "max_parts", "process_count", "next_event")),
        ("version", ctypes.c_char * 80),
        *((name, U32 * len(CALLS)) for name in ("errors", "hangs", "calls")),
        ("event", Event * 64),
        *((name, U32) for name in ("limits", "no_root", "rounding", "padding")),
        ("limit", Limit * 32),
        ("card", CardState * 65),
    ]


class MockNvml:
    """An installed driver whose library is mock.c; every change is seen by a library that is loaded already."""

    def __init__(self, root: Path, link: Callable[[Path, Sequence[str]], None]) -> None:
        self.root = root
        self.sysfs = root / "sys"
        self.path = root / "usr/lib64/libnvidia-ml.so.1"
        self._link = link
        self.path.parent.mkdir(parents=True)
        (self.sysfs / "bus/pci/drivers/nvidia").mkdir(parents=True)
        file = self.path.with_name("nvml.state")
        file.write_bytes(bytes(ctypes.sizeof(State)))
        with file.open("r+b") as opened:
            self.state = State.from_buffer(mmap.mmap(opened.fileno(), 0))
        self.state.size = ctypes.sizeof(State)
        self.state.version = b"570.1"
        self.state.max_parts = 7
        self.install()

    def install(self, hidden: Sequence[str] = ()) -> None:
        """Put a new file of the library in place; the old one stays mapped where it is loaded."""
        made = self.path.with_name("new")
        self._link(made, hidden)
        made.rename(self.path)

    def uninstall(self) -> None:
        self.path.unlink()

    def add_card(self, memory: int = 80 * GIB, numa_node: int = 0) -> Any:
        index = self.state.count
        card = self.state.card[index]
        ctypes.memset(ctypes.byref(card), 0, ctypes.sizeof(card))
        card.uuid = f"GPU-00000000-0000-0000-0000-{index:012x}".encode()
        card.name = b"NVIDIA H100 80GB HBM3"
        card.bus = f"00000000:{0x3A + index:02X}:00.0".encode()
        card.minor, card.major, card.minor_capability = index + 1, 9, 0
        card.total, card.events = memory, 0xFFFF
        card.recovery, card.ecc = Value(1, 0, 0), Value(3, 0, 0)
        bus = f"0000:{0x3A + index:02x}"
        device = self.sysfs / f"devices/pci0000:30/0000:30:01.0/{bus}:00.0"
        device.mkdir(parents=True, exist_ok=True)
        known = self.sysfs / "bus/pci/devices" / device.name
        known.parent.mkdir(parents=True, exist_ok=True)
        if not known.is_symlink():
            known.symlink_to(device)
        (device / "numa_node").write_text(f"{numa_node}\n")
        self.state.count = index + 1
        return card

    def bind(self, *addresses: str) -> None:
        """Say which PCI devices the kernel module drives."""
        folder = self.sysfs / "bus/pci/drivers/nvidia"
        for old in folder.iterdir():
            old.rmdir()
        for address in addresses:
            (folder / address).mkdir()

    def add_instance(self, card: Any, gigabytes: int = 10, slices: int = 1, compute_slices: int | None = None) -> Any:
        index = card.parts
        part = card.part[index]
        part.uuid = card.uuid.replace(b"GPU-", b"MIG-") + f"-{index}".encode()
        part.name = b""
        part.gpu_instance, part.compute_instance = index + 7, 0
        part.slices, part.compute_slices = slices, slices if compute_slices is None else compute_slices
        part.megabytes = gigabytes * 1000
        card.parts = index + 1
        card.mig = 1
        return part

    def add_process(self, card: Any, pid: int, used: int, kinds: int = 1, instance: int = 0xFFFFFFFF) -> None:
        compute = 0xFFFFFFFF if instance == 0xFFFFFFFF else 0
        card.process[card.processes] = Process(pid, kinds, used, instance, compute)
        card.processes += 1

    def link(self, card: Any, end: bytes, *, active: int = 1) -> None:
        """Give a card one more NVLink, to what has a PCI address."""
        place = next(number for number, one in enumerate(card.link) if not one.there)
        card.link[place] = Link(1, active, end)

    def sample(self, card: Any, number: int, *shares: int, microseconds: int = 0) -> None:
        """Have a process, by its number on the card, a new sample of its utilisation."""
        process = card.process[number]
        process.shares = Shares(*shares)
        process.sampled = microseconds or time.time_ns() // 1000

    def fail(self, symbol: str, code: int, card: Any = None) -> None:
        (self.state if card is None else card).errors[CALLS.index(symbol)] = code

    def hang(self, symbol: str, *, hangs: bool = True) -> None:
        self.state.hangs[CALLS.index(symbol)] = int(hangs)

    def calls(self, symbol: str) -> int:
        return int(self.state.calls[CALLS.index(symbol)])

    def limits(self) -> dict[str, tuple[int, int, int]]:
        """Card, soft and hard limit by the folder of each cgroup that has one."""
        found = [self.state.limit[index] for index in range(self.state.limits)]
        return {one.cgroup.decode(): (one.card, one.soft, one.hard) for one in found}

    def event(self, card: int, kind: int, data: int = 0, instance: int = 0xFFFFFFFF) -> None:
        compute = 0xFFFFFFFF if instance == 0xFFFFFFFF else 0
        number = self.state.next_event
        self.state.event[number % 64] = Event(card, instance, compute, 0, kind, data)
        self.state.next_event = number + 1
