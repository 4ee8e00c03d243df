"""A driver's library of our own, machines with it or with the real one, and a driver that is watched.

NODEPLUG_GPU=mock or NODEPLUG_GPU=real chooses where the suite of the driver runs; by default it runs on the mock and,
where NVIDIA's library can be loaded, on the real cards as well.
"""

import ctypes
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.compiled import cc, once, shared_folder
from tests.gpu.nvml.mock import GIB, MockNvml
from tests.gpu.watched import Watched
from tests.programs import need

from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.driver import Driver, process
from nodeplug_gpu.driver.process import NvmlDriver

HERE = Path(__file__).parent


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
