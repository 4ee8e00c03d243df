"""The machine as the stages see it: its driver, its card, and what it lacks.

Owns: where the driver's files are searched, and the card that is tried: the first one that is not divided by MIG.
Refuses: to load a library of the driver: that is done in processes that may hang or crash.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tests.gpu.proof.stage import Skipped

from nodeplug_gpu.driver.folders import FOLDERS
from nodeplug_gpu.mps import program

ROOT: Final = Path(__file__).parents[3]
GIB: Final = 1 << 30
CGROUPS: Final = Path("/sys/fs/cgroup")
CUDA: Final = "libcuda.so.1"
MPS_CONTROL: Final = "nvidia-cuda-mps-control"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a stage is given.

    Attributes:
        driver_root: below which the driver is installed.
        folder: of the stage's own, with a short path; it is removed afterwards.
        card: that is tried: `uuid`, `index`, `minor`, `model`, `memory` (bytes), `mig`, `compute_capability`.
        driver_version: of the kernel driver.
        dev_root: what has the driver's /dev.
        sysfs: where sysfs is mounted.
        suite: for which machine the GPU suite is run: `real`, or `mock` to try the stage itself.
        pace: by which long waits are divided, to try a stage itself.
    """

    driver_root: Path
    folder: Path
    card: Mapping[str, Any] = field(default_factory=dict)
    driver_version: str = ""
    dev_root: Path = Path("/")
    sysfs: Path = Path("/sys")
    suite: str = "real"
    pace: float = 1.0

    def dump(self) -> str:
        """Return the machine as JSON, for the process of a stage."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def load(cls, text: str) -> Self:
        """Return the machine that `dump` has written."""
        values = json.loads(text)
        return cls(**values | {name: Path(values[name]) for name in ("driver_root", "dev_root", "folder", "sysfs")})

    def library(self, name: str) -> Path | None:
        """Return a library below the driver's root; None where only the dynamic linker may know one."""
        places = (self.driver_root / folder / name for folder in FOLDERS)
        return next((place for place in places if place.exists()), None)

    def program(self, name: str) -> str | None:
        """Return a program of the driver, or of PATH."""
        return shutil.which(program.path_of(name, self.driver_root))

    def wait(self, seconds: float) -> float:
        """Return for how long to wait in place of some seconds."""
        return seconds / self.pace

    # --- what a stage needs

    def need_root(self, what_for: str) -> None:
        """Raise `Skipped` unless this is root."""
        if os.geteuid() != 0:
            raise Skipped(f"needs root, for {what_for}")

    def need_mounts(self, what_for: str) -> None:
        """Raise `Skipped` unless this is root that may mount."""
        self.need_root(what_for)
        done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Skipped(f"needs root that may make mount namespaces, for {what_for}: {done.stderr.strip()}")

    def need_cuda(self) -> None:
        """Raise `Skipped` where clients would find no libcuda."""
        if self.library(CUDA) is not None:
            return
        # For the root `/` the dynamic linker may know a folder that we do not.
        load = [sys.executable, "-c", f"import ctypes; ctypes.CDLL('{CUDA}')"]
        if self.driver_root != Path("/") or subprocess.run(load, capture_output=True, check=False).returncode:
            raise Skipped(f"there is no {CUDA} below {self.driver_root}: it comes with the driver")

    def need_whole_card(self) -> None:
        """Raise `Skipped` where the only cards are divided."""
        if self.card.get("mig"):
            raise Skipped("every card is in MIG mode, and its memory cannot be shared by units then")

    def need_units(self, count: int) -> None:
        """Raise `Skipped` where the card has less than some GiB."""
        if self.card["memory"] < count * GIB:
            raise Skipped(
                f"needs a card with {count} GiB, and {self.card['model']} has {self.card['memory'] / GIB:.1f}"
            )

    def need_mps(self) -> None:
        """Raise `Skipped` where MPS cannot run or has no limits."""
        self.need_mounts("MPS, whose clients share mounts with it")
        self.need_cuda()
        self.need_whole_card()
        if self.program(MPS_CONTROL) is None:
            raise Skipped(f"there is no {MPS_CONTROL} below {self.driver_root} or on PATH: it comes with the driver")
        if tuple(self.card["compute_capability"]) < (7, 0):
            raise Skipped(f"{self.card['model']} is older than Volta: MPS has no limits there")

    def cgroup_version(self) -> int:
        """Return 2 where there is one hierarchy alone, 1 where there are several, 0 without any."""
        if (CGROUPS / "cgroup.controllers").exists():
            return 2
        return 1 if (CGROUPS / "pids").is_dir() else 0
