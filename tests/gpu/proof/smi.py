"""Stands in for nvidia-smi, where it changes settings: `python smi.py STATE MODES ARGUMENT...`.

Owns: the compute mode, in the file MODES, and the MIG mode and instances of the first card, in STATE (`nvml.state`).
Refuses: a reset while a process of NVML's has the card open, as the real one does.
"""

import mmap
import sys
from pathlib import Path

from tests.gpu.nvml.mock import State


def main() -> None:
    file, modes, _, _, *words = sys.argv[1:]
    with Path(file).open("r+b") as opened:
        state = State.from_buffer(mmap.mmap(opened.fileno(), 0))
    card, mode = state.card[0], Path(modes)
    with mode.open("a") as log:
        log.write(f"{' '.join(words)}\n")
    current = [line.split()[1] for line in mode.read_text().splitlines() if line.startswith("-c ")]
    names = {"DEFAULT": "Default", "EXCLUSIVE_PROCESS": "Exclusive_Process"}
    match words:
        case ["--query-gpu=compute_mode", _]:
            sys.stdout.write(names[current[-1]] if current else "Default")
        case ["--query-gpu=mig.mode.current", _]:
            sys.stdout.write("Enabled" if card.mig else "Disabled")
        case ["-mig", wanted]:
            card.mig = int(wanted)
        case ["-cgi", profiles, "-C"]:
            for number, _ in enumerate(profiles.split(",")):
                part = card.part[number]
                part.uuid = card.uuid.replace(b"GPU-", b"MIG-") + f"-{number}".encode()
                part.gpu_instance, part.slices, part.compute_slices, part.megabytes = number + 7, 1, 1, 10_000
                card.parts = number + 1
        case ["-dgi"]:
            card.parts = 0


if __name__ == "__main__":
    main()
