"""Stage 4: MPS with two clients as Allocate makes them, of 8 and of 16 units.

Owns: the limits of memory and of multiprocessors as clients find them, and how long it takes until a card is ready.
Refuses: what a client may do to have another limit: that is stage 5.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from tests.gpu.proof.clients import Client, failure
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.mps import STEP, Mps, limit_of, mps, told
from tests.gpu.proof.node import Node
from tests.gpu.proof.patience import until
from tests.gpu.proof.stage import Notes
from tests.gpu.proof.stages.overuse import container

OUT_OF_MEMORY: Final = 2
_PODS: Final = (8, 16)
_OFF: Final = 0.05


def run(machine: Machine, notes: Notes) -> None:
    """Give two pods a part of the card each, and measure what they have of it."""
    machine.need_mps()
    machine.need_units(sum(_PODS) + 2)
    with Client(machine) as alone:
        whole = alone.do("start")["multiprocessors"]
    notes.figure("multiprocessors of the card", whole)
    started = time.monotonic()
    with mps(machine, notes) as one:
        notes.figure("until the card is allocatable, daemon included", time.monotonic() - started, "s")
        _both(one, notes, whole)


def _both(one: Mps, notes: Notes, whole: int) -> None:
    granted = {units: one.node.admit(f"pod-{units}", units) for units in _PODS}
    cgroups = {units: container(notes, f"pod-{units}") for units in _PODS}
    with (
        one.client(granted[8], cgroups=cgroups[8]) as small,
        one.client(granted[16], cgroups=cgroups[16]) as large,
    ):
        for units, client in zip(_PODS, (small, large), strict=True):
            began = time.monotonic()
            seen = client.do("start", patience=40)
            notes.figure(f"{units} units: start of the client", time.monotonic() - began, "s")
            _multiprocessors(notes, granted[units], seen, whole, units)
        for units, client in zip(_PODS, (small, large), strict=True):
            _memory(one.node, notes, client, units, limit_of(granted[units]))
        for units, client in zip(_PODS, (small, large), strict=True):
            notes.expect(client.do("compute")["right"], f"{units} units: the client computes wrong numbers")


def _multiprocessors(notes: Notes, granted: Any, seen: Mapping[str, Any], whole: int, units: int) -> None:
    percent = int(granted.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    found = seen["multiprocessors"]
    notes.figure(f"{units} units: multiprocessors at {percent} %", found)
    # MPS rounds up, to pairs of multiprocessors at least.
    most = whole * percent / 100 + 4
    notes.expect(found <= most, f"{units} units: {found} of {whole} multiprocessors, where the share is {percent} %")


def _memory(one: Node, notes: Notes, client: Client, units: int, limit: int) -> None:
    """Allocate to the limit: the step that crosses it must be refused as out of memory, and no step before."""
    base = _told(one, client, 0)
    notes.expect(base, f"{units} units: NVML does not list the client with its memory")
    reply = client.ask("fill", step=STEP, most=limit + 4 * STEP)
    held = reply["held"]
    notes.figure(f"{units} units: limit", limit, "bytes")
    notes.figure(f"{units} units: allocated until refused", held, "bytes")
    notes.figure(f"{units} units: context, as NVML tells it", base, "bytes")
    if "error" not in reply:
        notes.expect(False, f"{units} units: {held} bytes were allocated beyond the limit of {limit}")
        return
    notes.expect(reply["error"] == OUT_OF_MEMORY, f"{units} units: at the limit {failure(reply)}")
    # Whether a client's context counts against its limit is not documented: both would be kept.
    with_context, without = abs(limit - held - base) / limit, abs(limit - held) / limit
    off = min(with_context, without)
    notes.seen(f"{units} units: the context counts {'against' if with_context <= without else 'beside'} the limit")
    notes.figure(f"{units} units: limit off by", 100 * off, "%")
    notes.expect(off <= _OFF, f"{units} units: the limit is off by {100 * off:.1f} %")
    full = _told(one, client, held // 2)
    notes.expect(full >= held // 2, f"{units} units: NVML tells {full} bytes of the client, which has {held}")
    client.do("free")


def _told(one: Node, client: Client, least: int) -> int:
    """Return what NVML tells of the client after a poll; 0 where it tells nothing within seconds."""
    try:
        until(lambda: told(one, client.pid) > least, 8)
    except AssertionError:
        return 0
    return told(one, client.pid)
