"""Runs stages: each in a process of its own, until its deadline.

Owns: that process and everything that descends from it, also daemons with sessions of their own: after the stage all of
it is ended, its mounts are unmounted, and what it has changed is taken back.
Refuses: to let one stage stop the next, and to end a process that does not descend from this one.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.gpu.proof.machine import ROOT, Machine
from tests.gpu.proof.stage import Notes, Result, Stage, Verdict

from nodeplug import PluginError

_PR_SET_CHILD_SUBREAPER: Final = 36
_TAIL: Final = 600
"""Characters of what a crashed stage has printed last."""
_KILLED: Final = 5.0
"""Seconds that a killed process has to end."""
_UNDO: Final = 60.0
"""Seconds that a command may take that takes something back."""


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can get lost."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(stage: Stage, machine: Machine, deadline: float) -> Result:
    """Run one stage, and clean up behind it.

    Args:
        stage: which.
        machine: whose folder exists and is empty.
        deadline: seconds that it may take.
    """
    notes = Notes(machine.folder.with_name(f"{machine.folder.name}.jsonl"))
    notes.file.unlink(missing_ok=True)
    started = time.monotonic()
    log = machine.folder / "stage.log"
    overdue = True
    try:
        overdue = not _ended(stage, machine, notes, log, deadline)
    finally:  # also when somebody interrupts the whole
        end_descendants()
        seconds = time.monotonic() - started
        printed = log.read_text(errors="replace")[-_TAIL:].strip() if log.exists() else ""
        left = [*undone(notes.read()), *_emptied(machine.folder)]
        lines = notes.read()
        notes.file.unlink(missing_ok=True)
    result = judged(stage, lines, seconds, f"did not end within {deadline:.0f} s" if overdue else "", printed)
    if left:
        return replace(result, verdict="failed", reason="; ".join([result.reason, *left]).removeprefix("; "))
    return result


def _ended(stage: Stage, machine: Machine, notes: Notes, log: Path, deadline: float) -> bool:
    """Run the process of a stage; return whether it has ended by itself."""
    command = [sys.executable, "-m", "tests.gpu.proof.child", stage.name, str(notes.file), machine.dump()]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            process.wait(deadline)
        except subprocess.TimeoutExpired:
            return False
        finally:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # not even SIGKILL ends what hangs in the driver
                process.wait(_KILLED)
    return True


def judged(
    stage: Stage, lines: Sequence[Mapping[str, Any]], seconds: float, overdue: str = "", printed: str = ""
) -> Result:
    """Return the result that a stage's notes come to: one fault fails it, however it ended."""
    said = next((line for line in lines if "end" in line), None)
    faults = [str(line["fault"]) for line in lines if "fault" in line]
    verdict: Verdict
    if said is None:
        verdict, reason = "failed", overdue or f"its process ended before it did: {printed}"
    else:
        verdict, reason = said["end"], said["reason"]
    if faults:
        verdict, reason = "failed", "; ".join([*faults, *([reason] if reason else [])])
    return Result(
        stage, verdict, reason, round(seconds, 1), [line for line in lines if not {"end", "undo"} & line.keys()]
    )


def descendants(of: int) -> list[int]:
    """Return the processes below one, those that have ended and were not waited for included."""
    parents: dict[int, int] = {}
    for place in Path("/proc").iterdir():  # a pattern would look into each, and fail when one has ended
        if place.name.isdigit():
            with suppress(OSError):
                stat = (place / "stat").read_text(errors="replace")
                parents[int(place.name)] = int(stat.rpartition(")")[2].split()[1])
    found, below = [], {of}
    while below:
        below = {pid for pid, parent in parents.items() if parent in below}
        found += sorted(below)
    return found


def end_descendants(seconds: float = 10.0) -> None:
    """Kill every descendant of this process; one that hangs in the driver is left after some seconds."""
    end = time.monotonic() + seconds
    while (left := descendants(os.getpid())) and time.monotonic() < end:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def undone(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Take back what a stage has changed, the last change first; return what could not be."""
    left = []
    for kind, *what in reversed([line["undo"] for line in lines if "undo" in line]):
        try:
            if kind == "run":
                subprocess.run(what, check=True, capture_output=True, timeout=_UNDO)
            elif kind == "unlink":
                Path(what[0]).unlink(missing_ok=True)
            elif Path(what[0]).exists():
                _remove_folder(Path(what[0]))
        except (OSError, subprocess.SubprocessError) as error:
            left.append(f"left behind: `{kind} {' '.join(what)}` failed: {error}")
    return left


def _remove_folder(folder: Path) -> None:
    """Remove an empty folder or cgroup; a killed process leaves its cgroup a moment later."""
    for _ in range(200):
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.02)
    folder.rmdir()


def _emptied(folder: Path) -> list[str]:
    from nodeplug.testing import folders  # noqa: PLC0415 - a second, which is for nothing where there is no card

    try:
        folders.unmount_below(folder)
        folders.remove(folder)
    except (PluginError, OSError) as error:
        return [f"left behind: {error}"]
    return []
