"""Building the wheel of one kind of machine, as `make wheels` does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path, machine: str, **environment: str) -> Path:
    """Build it from the checkout; the programs are compiled in a folder of their own."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    named = {**os.environ, "NODEPLUG_WHEEL_MACHINE": machine, **environment}
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=named)
    (wheel,) = folder.glob("*.whl")
    return wheel
