"""A machine with a card for the proof itself: the stand-in for NVML, and one for CUDA beside it.

Owns: the installed driver, and one stage that is run on it.
Refuses: to say anything about hardware.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.compiled import cc, once, shared_folder
from tests.gpu.mps.conftest import CONTROL, SMI
from tests.gpu.nvml.mock import GIB, MockNvml
from tests.gpu.proof.machine import MPS_CONTROL, ROOT
from tests.gpu.proof.mps import SERVER as SERVER_NAME
from tests.gpu.proof.patience import VARIABLE
from tests.programs import need

HERE = Path(__file__).parent
OWN_MOUNTS = frozenset({4, 5, 6, 9, 11})
"""The stages that ask whether they may make mount namespaces: those of MPS and CDI."""
SERVER = "#!/bin/sh\nwhile :; do sleep 1; done\n"
STARTS_SERVER = '"$(dirname "$0")/nvidia-cuda-mps-server" &\n    trap'


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libcuda."""
    need("cc")
    made = shared_folder(tmp_path_factory) / "libcuda.so.570.1"
    source = HERE / "cuda_mock.c"
    return once(made, lambda new: cc("-shared", "-Wl,-soname,libcuda.so.1", source, "-o", new))


@pytest.fixture
def driver(short_path: Path, link: Callable[..., None], libcuda: Path, monkeypatch: pytest.MonkeyPatch) -> MockNvml:
    """An installed driver with one card of 80 GiB, and CUDA."""
    mock = MockNvml(short_path / "root", link)
    mock.add_card(memory=80 * GIB)
    shutil.copy(libcuda, mock.path.parent)
    (mock.path.parent / "libcuda.so.1").symlink_to(libcuda.name)
    mock.path.rename(mock.path.with_name("libnvidia-ml.so.570.1"))
    mock.path.symlink_to("libnvidia-ml.so.570.1")
    (mock.root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia1"):
        (mock.root / "dev" / name).touch()
    short_path.chmod(0o755)  # a client of another user finds the driver, too
    mock.path.with_name("nvml.state").chmod(0o666)
    state = short_path / "nvml.state"  # also seen where the driver's root is not
    state.hardlink_to(mock.path.with_name("nvml.state"))
    monkeypatch.setenv("CUDA_MOCK_STATE", str(state))
    monkeypatch.setenv(VARIABLE, "10")
    return mock


@pytest.fixture
def programs(driver: MockNvml) -> Path:
    """The programs of the driver: the stand-in for the control program, which starts a server, too."""
    folder = driver.root / "usr" / "bin"
    folder.mkdir()
    control = CONTROL.replace("trap", STARTS_SERVER, 1)
    for name, text in ((MPS_CONTROL, control), (SERVER_NAME, SERVER), ("nvidia-smi", SMI)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@dataclass(frozen=True, slots=True)
class Proved:
    """What a report says of one stage, and how the program ended."""

    verdict: str
    reason: str
    figures: Mapping[str, Any]
    seen: Sequence[str]
    lacking: Sequence[str]
    status: int


@pytest.fixture
def prove(driver: MockNvml, tmp_path: Path) -> Callable[..., Proved]:
    """Run one stage on the machine with the stand-ins, by the command itself: it ends whatever descends from it."""

    def run(number: int, *options: str) -> Proved:
        need("git", *(["mount", "unshare"] if number in OWN_MOUNTS else []))  # the report names the commit
        out = tmp_path / "report"
        places = [
            "--driver-root",
            str(driver.root),
            "--dev-root",
            str(driver.root),
            "--sysfs",
            str(driver.sysfs),
            "--out",
            str(out),
        ]
        command = [
            sys.executable,
            "-m",
            "tests.gpu.proof",
            *places,
            "--suite",
            "mock",
            "--pace",
            "20",
            "--budget",
            "6000",
        ]
        done = subprocess.run([*command, "--stages", str(number), *options], cwd=ROOT, check=False)
        (stage,) = json.loads((out / "report.json").read_text())["stages"]
        figures = {one["name"]: one["value"] for one in stage["figures"]}
        return Proved(stage["verdict"], stage["reason"], figures, stage["seen"], stage["lacking"], done.returncode)

    return run
