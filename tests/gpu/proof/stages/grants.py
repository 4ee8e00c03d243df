"""Stage 2: what pods are given is usable, and what polling costs.

Owns: 16 pods of random sizes, each with a CUDA client that must see the granted card alone and compute on it.
Refuses: containers: a client gets the variables, as a runtime would turn them into device nodes (stage 9 does that).
"""

import os
import statistics
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from tests.gpu.proof.clients import Client
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.node import Node, node
from tests.gpu.proof.patience import patient
from tests.gpu.proof.stage import Disproved, Notes, Skipped

from nodeplug_gpu.driver import library
from nodeplug_gpu.driver.calls import Calls
from nodeplug_gpu.driver.nvml import Reader

PODS: Final = 16
_POLL_LIMIT: Final = 50.0
"""Milliseconds that a poll may take."""
_WATCHED: Final = 10.0
"""Seconds for which the driver's process is watched."""


def run(machine: Machine, notes: Notes) -> None:
    """Admit pods and use what they are given, then watch the driver's process."""
    machine.need_whole_card()
    with node(machine) as one:
        notes.figure("units", one.units())
        _pods(machine, one, notes)
        _cost(machine, one, notes)
        _openers(one, notes)
    _polls(machine, notes)


def _pods(machine: Machine, one: Node, notes: Notes) -> None:
    try:
        machine.need_cuda()
    except Skipped as error:
        notes.lacking(f"what pods are given was not used: {error}")
        return
    random, largest, usable = Random(7), max(1, one.units() // PODS), 0
    seconds = []
    for number in range(min(PODS, one.units())):
        granted = one.admit(f"pod-{number}", random.randint(1, largest))
        uuid = granted.envs["NVIDIA_VISIBLE_DEVICES"]
        started = time.monotonic()
        with Client(machine, one.place(granted)) as client:
            seen = client.do("start")
            notes.expect(seen["count"] == 1, f"pod-{number} sees {seen['count']} devices")
            notes.expect(seen["uuids"] == [uuid], f"pod-{number} was given {uuid} and sees {seen['uuids']}")
            notes.expect(client.do("compute")["right"], f"pod-{number} computes wrong numbers")
        seconds.append(time.monotonic() - started)
        usable += 1
    notes.figure("pods that used their card", usable)
    notes.figure("start and first kernel of a client, median", statistics.median(seconds), "s")


def _cost(machine: Machine, one: Node, notes: Notes) -> None:
    pid = one.driver_process()
    if not pid:
        raise Disproved("the daemon has no driver process")
    before, started = _ticks(pid), time.monotonic()
    time.sleep(machine.wait(_WATCHED))
    seconds = time.monotonic() - started
    used = (_ticks(pid) - before) / os.sysconf("SC_CLK_TCK")
    notes.figure("driver process, processor with a poll each second", 100 * used / seconds, "%")
    notes.figure("driver process, memory", _resident(pid) / (1 << 20), "MiB")
    notes.figure("daemon, memory", _resident(one.scratch.pid) / (1 << 20), "MiB")


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0


def _openers(one: Node, notes: Notes) -> None:
    """Note which processes of the daemon have the cards open: the driver's alone should."""
    for pid, line in one.processes().items():
        opened = set()
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    target = os.readlink(descriptor)
                    opened |= {target} if target.startswith("/dev/nvidia") else set()
        if opened:
            notes.seen(f"{' '.join(sorted(opened))} is open in `{line.strip()[:80]}`")
            notes.expect(pid == one.driver_process(), f"pid {pid} has a card open, and is not the driver's process")


def _polls(machine: Machine, notes: Notes) -> None:
    """Time polls by the same code in this process."""
    library.load(machine.driver_root)
    calls = Calls()
    calls("nvmlInitWithFlags", 0)
    reader = Reader(calls, machine.sysfs, lambda _: None)
    reader.poll()
    milliseconds = []
    for _ in range(50):
        started = time.perf_counter()
        reader.poll()
        milliseconds.append(1e3 * (time.perf_counter() - started))
    notes.figure("a poll, median", statistics.median(milliseconds), "ms")
    notes.figure("a poll, longest of 50", max(milliseconds), "ms")
    notes.expect(
        statistics.median(milliseconds) <= patient(_POLL_LIMIT),
        f"a poll takes {statistics.median(milliseconds):.1f} ms, where {_POLL_LIMIT:g} ms is the limit",
    )
