"""The process of one stage: `python -m tests.gpu.proof.child NAME NOTES MACHINE`.

Owns: what a stage's end is called.
Refuses: deadlines: who started it ends it.
"""

import importlib
import logging
import sys
import traceback
from pathlib import Path

from tests.gpu.proof.machine import Machine
from tests.gpu.proof.stage import Disproved, Notes, Run, Skipped


def main() -> None:
    """Run the stage that the command line names."""
    _, name, file, machine = sys.argv
    logging.basicConfig(level=logging.INFO)
    notes = Notes(Path(file))
    try:
        module = importlib.import_module(f"tests.gpu.proof.stages.{name}")
        stage: Run = module.run
        stage(Machine.load(machine), notes)
    except Skipped as lacking:
        notes.end("skipped", str(lacking))
    except Disproved as found:
        notes.end("failed", str(found))
    except Exception as error:
        traceback.print_exc()
        notes.end("failed", f"{type(error).__name__}: {error}")
    else:
        notes.end("recorded" if getattr(module, "ONLY_RECORDS", False) else "passed")


if __name__ == "__main__":
    main()
