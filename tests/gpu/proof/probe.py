"""Which cards the driver shows: `python -m tests.gpu.proof.probe ROOT SYSFS` prints them as one JSON object.

Owns: the one look at the machine before any stage.
Refuses: to run in the process of the proof: a driver may hang or crash what loads its library.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.gpu.proof.machine import ROOT
from tests.gpu.proof.patience import patient

from nodeplug_gpu.driver import library
from nodeplug_gpu.driver.calls import Calls, NvmlFailure
from nodeplug_gpu.driver.nvml import Reader

PATIENCE: Final = 40.0
"""Seconds: attaching to a card without persistence mode takes some, for each card."""


class NoCard(Exception):
    """There is nothing that could be proved here; the text says why."""


def look(driver_root: Path, sysfs: Path, patience: float = PATIENCE) -> Mapping[str, Any]:
    """Return the driver's version and its cards.

    Raises:
        NoCard: there is none, or the driver does not answer.
    """
    command = [sys.executable, "-m", "tests.gpu.proof.probe", str(driver_root), str(sysfs)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patient(patience), check=False)
    except subprocess.TimeoutExpired:
        raise NoCard(f"NVIDIA's driver does not answer within {patience:.0f} s") from None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise NoCard(f"looking for cards ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    if why := found.get("nothing"):
        raise NoCard(why)
    return found


def main() -> None:
    """Print the cards, or why there are none."""
    _, root, sysfs = sys.argv
    try:
        library.load(Path(root))
        calls = Calls()
        calls("nvmlInitWithFlags", 0)
        found = Reader(calls, Path(sysfs), lambda _: None).poll()
    except (OSError, NvmlFailure) as error:
        said: dict[str, Any] = {"nothing": str(error)}
    else:
        cards = [
            {name: getattr(card, name) for name in ("uuid", "index", "minor", "model", "memory", "mig", "pci")}
            | {"compute_capability": card.compute_capability}
            for card in found.cards
        ]
        said = {"driver_version": found.driver_version, "cuda_version": found.cuda_version, "cards": cards}
        said |= {} if cards else {"nothing": "the driver is there, and shows no card"}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
