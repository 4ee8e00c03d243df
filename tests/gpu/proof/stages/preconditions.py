"""Stage 0: what the machine has. It cannot fail: what is missing makes others skip.

Owns: the list of what to look at.
Refuses: to change anything; nvidia-smi is asked for what it shows.
"""

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pynvml
from tests.gpu.proof.machine import MPS_CONTROL, Machine
from tests.gpu.proof.patience import patient
from tests.gpu.proof.stage import Notes

from nodeplug_gpu.driver import library
from nodeplug_gpu.driver.calls import SYMBOLS

ONLY_RECORDS: Final = True
_SMI: Final = (
    "Product Name",
    "Driver Version",
    "CUDA Version",
    "Compute Mode",
    "Persistence Mode",
    "GPU Recovery Action",
)
_MEMORY_LIMITS: Final = "nvmlDeviceGetMemoryLimits_v1"
"""Limits of a cgroup's memory by the kernel's driver, from R615 on."""


def run(machine: Machine, notes: Notes) -> None:
    """Write down what there is."""
    notes.figure("card", machine.card["model"])
    notes.figure("memory", machine.card["memory"], "bytes")
    notes.figure("compute capability", ".".join(map(str, machine.card["compute_capability"])))
    notes.figure("driver", machine.driver_version)
    notes.figure("cgroups", machine.cgroup_version())
    notes.figure("root", os.geteuid() == 0)
    _files(notes)
    _programs(machine, notes)
    _symbols(machine, notes)


def _files(notes: Notes) -> None:
    nodes = sorted(str(node) for node in Path("/dev").glob("nvidia*") if not node.is_dir())
    notes.figure("device nodes", " ".join(nodes) or "none")
    version = Path("/proc/driver/nvidia/version")
    if version.exists():
        notes.figure(str(version), version.read_text(errors="replace").splitlines()[0])
    else:
        notes.lacking(f"there is no {version}")
    for name in ("containerd.sock", "crio/crio.sock", "docker.sock"):
        for place in (Path("/run/containerd"), Path("/run")):
            if (place / name).exists():
                notes.seen(f"a container runtime listens at {place / name}")


def _programs(machine: Machine, notes: Notes) -> None:
    smi = machine.program("nvidia-smi")
    if smi is None:
        notes.lacking("there is no nvidia-smi")
    else:
        for name, value in shown(_said([smi, "-q", "-i", machine.card["uuid"]])):
            notes.figure(f"nvidia-smi: {name}", value)
    control = machine.program(MPS_CONTROL)
    if control is None:
        notes.lacking(f"there is no {MPS_CONTROL}")
    else:
        notes.figure("MPS control program", control)
        notes.figure("MPS version", " ".join(_said([control, "-v"]).split())[:200] or "it does not say")


def _said(command: Sequence[str]) -> str:
    """Return what a program prints; nothing where it fails or takes too long."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=patient(4),
            check=False,
            stdin=subprocess.DEVNULL,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def shown(text: str) -> Iterator[tuple[str, str]]:
    """Yield what `nvidia-smi -q` says of the things that matter here, the first of each name."""
    known = set()
    for line in text.splitlines():
        found = re.fullmatch(r"\s*(.+?)\s+: (.+?)\s*", line)
        if found is not None and found[1] in _SMI and found[1] not in known:
            known.add(found[1])
            yield found[1], found[2]


def _symbols(machine: Machine, notes: Notes) -> None:
    """Compare the functions that the driver's process calls with those of the library."""
    notes.figure("library", str(library.load(machine.driver_root).path))
    missing = [symbol for symbol in SYMBOLS if not _has(symbol)]
    notes.figure("NVML functions missing", " ".join(missing) or "none")
    unknown = [symbol for symbol, function in SYMBOLS.items() if getattr(pynvml, function, None) is None]
    notes.figure("functions that this nvidia-ml-py lacks", " ".join(unknown) or "none")
    if not _has(_MEMORY_LIMITS):
        notes.figure(_MEMORY_LIMITS, "not there: the driver is older than R615")
    else:
        notes.figure(_MEMORY_LIMITS, "there")


def _has(symbol: str) -> bool:
    try:
        ctypes.cast(getattr(pynvml.nvmlLib, symbol), ctypes.c_void_p)
    except AttributeError:
        return False
    return True
