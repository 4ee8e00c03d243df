"""Run pytest while everything comes late at random: `python -m tests.delays -m quick`.

A test that fails here, and not without the delays, takes for granted in which order things happen; it would fail
now and then on a busy machine. The delays reach all processes that read the environment's site-packages, forked ones
too. They differ from run to run.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

_VARIABLE: Final = "NODEPLUG_DELAYS"


def main(arguments: list[str]) -> int:
    """Return pytest's exit status."""
    # A file that Python reads as it starts. It does nothing without the variable, should nobody remove it.
    start = Path(sysconfig.get_path("purelib"), "nodeplug_delays.pth")
    late = Path(__file__).with_name("late.py")
    run = f"__import__('runpy').run_path({str(late)!r})"
    start.write_text(f"import os; os.environ.get('{_VARIABLE}') and {run}\n", encoding="utf-8")
    try:
        environment = {**os.environ, _VARIABLE: "1"}
        return subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode
    finally:
        start.unlink(missing_ok=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
