"""Rules about the process in which a plugin runs; most can be judged only where it has one of its own.

Owns: the process of a plugin while it is called and while it is not: its end, processor, memory and descriptors, and
what belongs to all of a process.
Refuses: time limits: how much is compared with how much there was, never how fast.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Final

from nodeplug.testing import processes
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.report import few
from nodeplug.testing.conformance.rounds import POLL, ROUNDS, Rounds, play_once, rounds
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.isolation import Isolation

_WHOLE: Final = "the process: what belongs to all of it is not one plugin's"
_NODE: Final = "the node: it has other things to do"
_ALONE: Final[tuple[Isolation, ...]] = ("process",)
_WINDOW: Final = 0.5
_WINDOWS: Final = 10
_LONGEST_WINDOW: Final = 5.0
"""Longest window in seconds. A window is extended while a thread is runnable."""
_BUSY: Final = 0.5
_MIB: Final = 1 << 20
_HANDLED: Final[Mapping[Isolation, frozenset[signal.Signals]]] = {
    "thread": frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP}),
    "process": frozenset({signal.SIGINT}),
}
"""Python handles the first, the daemon the others."""
_WATCHED: Final = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGTERM,
        signal.SIGCHLD,
    }
)
"""Not those of faults, which libraries handle to tell where."""


@rule(
    "process",
    _WHOLE,
    "Use absolute paths, `os.open(..., mode)` and `subprocess`; take no signals, and close only what you opened.",
)
def process_is_left_as_it_was(exam: Examination) -> str:
    """The plugin leaves signals, working directory, umask and standard streams of its process as they are."""
    _fresh(exam)
    play_once(exam)
    try:
        if changed := list(_changes(exam)):
            raise Broken("; ".join(changed))
    except OSError:
        raise NotApplicable("its process ended meanwhile") from None
    return ""


def _changes(exam: Examination) -> Iterator[str]:
    pid = exam.pid
    opened, log = processes.descriptors(pid), str(exam.node.log_path)
    if (folder := processes.folder(pid)) != "/":
        yield f"its working directory is {folder}"
    if (mask := processes.status(pid).get("Umask")) != (mine := processes.status(processes.OWN).get("Umask")):
        yield f"its umask is {mask}, it was {mine}"
    if exam.isolation == "process":  # what it writes goes to the daemon, by one socket
        log = next((link for link in (opened.get(2), opened.get(1)) if link and link.startswith("socket:")), "a socket")
    for number, (name, was) in enumerate((("stdin", "/dev/null"), ("stdout", log), ("stderr", log))):
        if (found := opened.get(number, "closed")) != was:
            yield f"its {name} is {found}, it was {was}"
    handled, ignored = (processes.signals(pid, mask) & _WATCHED for mask in ("SigCgt", "SigIgn"))
    for one in sorted(ignored - processes.signals(os.getpid(), "SigIgn")):  # as of a job in the background
        yield f"it ignores {one.name}"
    for one in sorted((handled - ignored) ^ _HANDLED[exam.isolation] - ignored):
        yield f"it {'handles' if one in handled else 'does not handle'} {one.name}"


@rule(
    "process",
    "the daemon: it starts an ended process again, while calls fail",
    "Raise instead; end threads alone.",
    isolation=_ALONE,
)
def process_stays_alive(exam: Examination) -> str:
    """The plugin's process does not end by itself, neither while it is called nor afterwards."""
    _fresh(exam)
    play_once(exam)
    time.sleep(_WINDOW)
    row = exam.row()
    if row["restarts"]:
        raise Broken(f"it ended {row['restarts']} times; most recently, {row['restarted']}")
    if row["process"] is None:
        raise Broken(f"it has no process: {row['reason'] or row['state']}")
    return ""


@rule(
    "process",
    _NODE,
    "Wait for what you wait for: with poll(2), inotify(7), an Event, or a sleep between two looks.",
    isolation=_ALONE,
)
def idle_plugin_rests(exam: Examination) -> str:
    """A plugin that nobody calls leaves the processor to others."""
    _fresh(exam)
    least = 1.0
    for _ in range(_WINDOWS):
        least = min(least, _share(exam))
        if least < _BUSY:
            return f"{least:.0%} of a processor"
    raise Broken(f"its threads want {least:.0%} of a processor or more, all the time")


def _share(exam: Examination) -> float:
    """Return which part of a window the threads that lived through all of it ran or waited for a processor."""
    try:
        started, before = time.monotonic(), processes.demands(exam.pid)
        while True:
            time.sleep(_WINDOW)
            after, seconds = processes.demands(exam.pid), time.monotonic() - started
            share = sum(after[task] - before[task] for task in before.keys() & after.keys()) / 1e9 / seconds
            if share >= _BUSY or seconds > _LONGEST_WINDOW or not processes.is_runnable(exam.pid):
                return share
    except OSError:
        raise NotApplicable("its process ended meanwhile") from None


@rule("process", _NODE, "Keep nothing per call, or limit it: `functools.lru_cache(maxsize=...)`.", isolation=_ALONE)
def memory_stays_bounded(exam: Examination) -> str:
    """Repeated calls do not take more memory each time."""
    seen = _rounds(exam)
    told = " MiB, ".join(f"{sample.memory / _MIB:.1f}" for sample in seen.samples)
    if seen.memory_grows and len(seen.samples) > 1:
        raise Broken(f"after every {ROUNDS} rounds of {seen.calls} it had {told} MiB")
    return f"{told} MiB"


@rule("process", _NODE, "Close in the call what the call opened: `with` does.", isolation=_ALONE)
def descriptors_stay_bounded(exam: Examination) -> str:
    """Repeated calls do not leave more descriptors open each time."""
    seen = _rounds(exam)
    told = ", ".join(str(sample.descriptors.total()) for sample in seen.samples)
    if seen.descriptors_grow and len(seen.samples) > 1:
        more = seen.samples[-1].descriptors - seen.samples[0].descriptors
        names = few([name for name, _ in more.most_common()])
        raise Broken(f"after every {ROUNDS} rounds of {seen.calls} it had {told} open, ever more of {names}")
    return f"{told} open"


def _rounds(exam: Examination) -> Rounds:
    _fresh(exam)
    return rounds(exam)


def _fresh(exam: Examination) -> None:
    """Have a node on which lists are read often, with the process as it starts."""
    if exam.poll != POLL:
        exam.poll = POLL
        exam.renew()
    assert exam.node
