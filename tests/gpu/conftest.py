"""A driver's library of our own, machines with it or with the real one, and a driver that is watched.

NODEPLUG_GPU=mock or NODEPLUG_GPU=real chooses where the suite of the driver runs; by default it runs on the mock and,
where NVIDIA's library can be loaded, on the real cards as well.
"""

import ctypes
import logging
import mmap
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.compiled import cc, once, shared_folder
from tests.programs import need

from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.cards import GpuEvent, Snapshot
from nodeplug_gpu.driver import Driver, process
from nodeplug_gpu.driver.calls import SYMBOLS
from nodeplug_gpu.driver.process import NvmlDriver

HERE = Path(__file__).parent
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


@dataclass(eq=False)
class Watched:
    """A driver, and everything that it told its observer."""

    driver: Driver
    snapshots: list[Snapshot] = field(default_factory=list)
    events: list[GpuEvent] = field(default_factory=list)

    def start(self) -> None:
        self.driver.start(self._observe)

    def _observe(self, snapshot: Snapshot, events: Sequence[GpuEvent]) -> None:
        self.events += events
        self.snapshots.append(snapshot)

    def until(self, true: Callable[[Snapshot], object], seconds: float = 30.0) -> Snapshot:
        """Wait for a snapshot of which something is true."""
        end = time.monotonic() + seconds
        while not true(snapshot := self.driver.snapshot):
            if time.monotonic() > end:
                pytest.fail(f"the driver never got there; its last snapshot is {snapshot}")
            time.sleep(0.005)
        return snapshot

    def running(self) -> Snapshot:
        return self.until(lambda snapshot: snapshot.state == "running")

    def event(self, true: Callable[[GpuEvent], bool]) -> GpuEvent:
        self.until(lambda _: any(map(true, self.events)))
        return next(event for event in self.events if true(event))


@dataclass(frozen=True)
class Machine:
    """Where the suite of the driver runs."""

    kind: str
    root: Path
    sysfs: Path
    hang_after: float
    mock: Any = None


def real_cards() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def machines() -> list[str]:
    chosen = os.environ.get("NODEPLUG_GPU", "")
    return [chosen] if chosen else ["mock", *(["real"] if real_cards() else [])]


@pytest.fixture(scope="session")
def link(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, Sequence[str]], None]:
    """Make a library from mock.c, without some of its symbols; each call makes a new file."""
    need("cc")
    folder = shared_folder(tmp_path_factory)
    compiled = once(folder / "nvml.o", lambda new: cc("-c", HERE / "nvml/mock.c", "-o", new))

    def make(target: Path, hidden: Sequence[str]) -> None:
        variant = sha256(" ".join(hidden).encode()).hexdigest()[:16]
        script = folder / f"nvml-{variant}.map"

        def linked(new: Path) -> None:
            script.write_text("{ local: " + "".join(f"{name}; " for name in ("none", *hidden)) + "};\n")
            options = ["-shared", "-Wl,-soname,libnvidia-ml.so.1", f"-Wl,--version-script={script}"]
            cc(*options, compiled, "-o", new)

        shutil.copy(once(script.with_suffix(".so"), linked), target)

    return make


@pytest.fixture
def nvml(tmp_path: Path, link: Callable[[Path, Sequence[str]], None]) -> MockNvml:
    """A driver with two cards."""
    mock = MockNvml(tmp_path / "root", link)
    mock.add_card()
    mock.add_card(memory=40 * GIB, numa_node=1)
    return mock


@pytest.fixture(params=machines())
def machine(request: pytest.FixtureRequest) -> Machine:
    """A machine with cards: the mock's, and the real one where there is one."""
    if request.param == "real":
        return Machine("real", Path("/"), Path("/sys"), 15.0)
    mock = request.getfixturevalue("nvml")
    return Machine("mock", mock.root, mock.sysfs, 2.0, mock)


@pytest.fixture
def log() -> logging.LoggerAdapter[logging.Logger]:
    return logging.LoggerAdapter(logging.getLogger("nodeplug.gpu"), {})


@pytest.fixture(autouse=True)
def killed_drivers_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a driver process that was killed, however busy the machine is: nobody would collect its status later."""
    monkeypatch.setattr(process, "_KILL_TIMEOUT", 20.0)


@pytest.fixture
def follow() -> Iterator[Callable[[Driver], Watched]]:
    """Start any driver, and end it after the test."""
    watched: list[Watched] = []

    def begin(driver: Driver) -> Watched:
        watched.append(Watched(driver))
        watched[-1].start()
        return watched[-1]

    yield begin
    for one in watched:
        one.driver.stop()


@pytest.fixture
def watch(follow: Callable[[Driver], Watched], log: logging.LoggerAdapter[logging.Logger]) -> Callable[..., Watched]:
    """Start an NVML driver on a mock or machine."""

    def begin(
        place: Any,
        *,
        poll: float = 0.05,
        hang_after: float = 2.0,
        retry_after: float = 60.0,
        cgroups: Path | None = None,
    ) -> Watched:
        options = {"sysfs": place.sysfs, "retry_after": retry_after, "cgroups": cgroups}
        return follow(NvmlDriver(place.root, poll, hang_after, log, **options))

    return begin


@dataclass
class Cgroups:
    """A real tree of cgroup v2, and folders in it that are removed after the test."""

    root: Path
    made: list[Path] = field(default_factory=list)

    def make(self) -> Path:
        """Make a cgroup without processes."""
        self.made.append(self.root / f"nodeplug-limits-{secrets.token_hex(4)}")
        self.made[-1].mkdir()
        return self.made[-1]


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    """The tree of this machine: as its only one, or beside those of v1."""
    places = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]
    root = next((one for one in places if (one / "cgroup.controllers").exists()), None)
    if root is None or os.geteuid() != 0:
        pytest.skip("needs root and a cgroup v2 tree")
    found = Cgroups(root)
    yield found
    for one in found.made:
        with suppress(FileNotFoundError):
            one.rmdir()


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    """A folder with files for nodes: only their names matter here."""
    dev, caps = tmp_path / "dev", tmp_path / "capabilities"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in (
        "nvidiactl",
        "nvidia-uvm",
        "nvidia3",
        "nvidia4",
        "nvidia-caps/nvidia-cap30",
        "nvidia-caps/nvidia-cap31",
    ):
        (dev / name).touch()
    for folder, minor in (("gi7", 30), ("gi7/ci0", 31)):
        place = caps / "gpu4" / "mig" / folder
        place.mkdir(parents=True)
        (place / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
    return NodePaths(dev, caps, tmp_path, cdi=(tmp_path / "etc/cdi", tmp_path / "run/cdi"))
