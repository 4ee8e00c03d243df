"""`python -m tests.gpu.proof`, which `make gpu-proof` runs: proves on a real card what simulated ones cannot.

Owns: the command line, the time for the whole, and the exit status: 0 nothing failed, 1 a stage failed, 2 a wrong
option, 3 there is no card here, 130 it was interrupted.
Refuses: settings of a card or the machine, unless it is asked for them.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.gpu.proof import probe, running
from tests.gpu.proof.machine import ROOT, Machine
from tests.gpu.proof.patience import patient
from tests.gpu.proof.report import FILES, Report
from tests.gpu.proof.stage import Result, Stage
from tests.gpu.proof.stages import STAGES

FAILED: Final = 1
NO_CARD: Final = 3
INTERRUPTED: Final = 130
BUDGET: Final = 530.0
"""Seconds: what a command of ten minutes leaves when packages were unpacked, and the look for cards took its time."""
_LEAST: Final = 5.0
"""Seconds without which a stage is not begun."""


def options() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="make gpu-proof", description=__doc__.partition("\n")[0])
    numbers = [stage.number for stage in STAGES]
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-proof", help="folder of the report (%(default)s)")
    parser.add_argument(
        "--driver-root", type=Path, default=Path("/"), help="where the driver's files are (%(default)s)"
    )
    parser.add_argument("--dev-root", type=Path, default=Path("/"), help="what has the driver's /dev (%(default)s)")
    parser.add_argument("--stages", type=int, nargs="+", choices=numbers, metavar="N", help="these alone")
    parser.add_argument(
        "--budget", type=float, help=f"seconds for all stages ({BUDGET:g}, more with --change-settings)"
    )
    parser.add_argument(
        "--change-settings",
        action="store_true",
        help="also run the stages that change the card's compute mode or MIG mode, reset or unplug it: on a machine of "
        "your own; each puts back what it has changed",
    )
    hidden = {"--sysfs": Path("/sys"), "--suite": "real", "--pace": 1.0}  # to try the proof itself
    for name, value in hidden.items():
        parser.add_argument(
            name, type=type(value) if name != "--sysfs" else Path, default=value, help=argparse.SUPPRESS
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages that were asked for, and return the exit status."""
    asked = options().parse_args(arguments)
    try:
        found = probe.look(asked.driver_root, asked.sysfs)
    except probe.NoCard as why:
        _say(f"there is no card to prove anything on: {why}; nothing was run, and no report is written")
        return NO_CARD
    running.adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what limits the time of commands sends it
    stages = chosen(asked.stages, settings=asked.change_settings)
    report = Report(asked.out, found, stages)
    asked.budget = asked.budget or BUDGET + sum(stage.seconds for stage in stages if stage.settings)
    end = time.monotonic() + asked.budget
    try:
        for stage in stages:
            result = _run(stage, asked, found, end - time.monotonic())
            report.add(result)
            _say(f"{stage.number:>2} {stage.name:<16} {result.verdict:<9} {result.seconds:>6.1f} s  {result.reason}")
    except KeyboardInterrupt:
        _say("interrupted: the report has the stages before")
        return INTERRUPTED
    finally:
        report.write()
    _say(f"report: {' and '.join(str(asked.out / name) for name in FILES)}")
    return FAILED if any(result.verdict == "failed" for result in report.results) else 0


def chosen(numbers: Sequence[int] | None, *, settings: bool) -> list[Stage]:
    """Return the stages to run, in order; those that change settings only if that was asked for."""
    wanted = [stage for stage in STAGES if numbers is None or stage.number in numbers]
    return [stage for stage in wanted if settings or numbers is not None or not stage.settings]


def _run(stage: Stage, asked: argparse.Namespace, found: Mapping[str, Any], left: float) -> Result:
    if stage.settings and not asked.change_settings:
        return Result(stage, "skipped", "it changes settings: add --change-settings on a machine of your own", 0.0)
    if left < _LEAST:
        return Result(stage, "skipped", f"no time is left of --budget {asked.budget:g}", 0.0)
    cards = sorted(found["cards"], key=lambda card: bool(card["mig"]))
    machine = Machine(
        driver_root=asked.driver_root,
        folder=Path(tempfile.mkdtemp(prefix="np-", dir="/tmp")),
        card=cards[0],
        driver_version=found["driver_version"],
        dev_root=asked.dev_root,
        sysfs=asked.sysfs,
        suite=asked.suite,
        pace=asked.pace,
    )
    return running.run(stage, machine, min(patient(stage.seconds), left))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
