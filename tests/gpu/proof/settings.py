"""Settings of a card, read and changed by nvidia-smi, for stages that were asked to change them.

Owns: that the way back is noted before a setting is changed: the runner goes it, however the stage ends.
Refuses: to change what nvidia-smi does not name: the driver's modules, its persistence daemon, other cards.
"""

import subprocess
from typing import Final

from tests.gpu.proof.machine import Machine
from tests.gpu.proof.patience import patient
from tests.gpu.proof.stage import Disproved, Notes, Skipped

COMPUTE_MODES: Final = {"Default": "DEFAULT", "Exclusive_Process": "EXCLUSIVE_PROCESS", "Prohibited": "PROHIBITED"}
_PATIENCE: Final = 60.0


def program(machine: Machine) -> str:
    """Return nvidia-smi, or raise `Skipped`."""
    machine.need_root("settings of a card")
    found = machine.program("nvidia-smi")
    if found is None:
        raise Skipped("there is no nvidia-smi, which changes settings")
    return found


def change(machine: Machine, *words: str) -> str:
    """Have nvidia-smi do something to the card that is tried; return what it says.

    Raises:
        Disproved: it refused.
    """
    command = [program(machine), "-i", machine.card["uuid"], *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(_PATIENCE), check=False)
    if done.returncode:
        raise Disproved(f"`nvidia-smi {' '.join(words)}` failed: {(done.stdout + done.stderr).strip()[-300:]}")
    return done.stdout


def query(machine: Machine, name: str) -> str:
    """Return one property of the card, as nvidia-smi names it."""
    return change(machine, f"--query-gpu={name}", "--format=csv,noheader").strip()


def keep_compute_mode(machine: Machine, notes: Notes) -> str:
    """Note the way back to the compute mode, and return the mode."""
    mode = query(machine, "compute_mode")
    if mode not in COMPUTE_MODES:
        raise Skipped(f"the card's compute mode is {mode}, which cannot be set back")
    notes.undo("run", program(machine), "-i", machine.card["uuid"], "-c", COMPUTE_MODES[mode])
    return mode


def keep_mig_mode(machine: Machine, notes: Notes) -> None:
    """Note the way back to a card that is not divided.

    Raises:
        Skipped: it is divided already, or cannot be.
    """
    mode = query(machine, "mig.mode.current")
    if mode != "Disabled":
        raise Skipped(f"needs a card that can be divided by MIG and is not: its MIG mode is {mode}")
    notes.undo("run", program(machine), "-i", machine.card["uuid"], "-mig", "0")
