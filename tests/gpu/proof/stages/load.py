"""Stage 10: what kubelet waits for, while a job saturates the card: the choice among many units, and Allocate.

Owns: the figures of docs/performance.md once more, on the driver of this machine, with the card idle and busy.
Refuses: a processor that is busy, too: the job computes on the card alone.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.gpu.proof.clients import Client
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.node import MEM, Node, node
from tests.gpu.proof.patience import patient
from tests.gpu.proof.stage import Notes

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb

_UNITS: Final = 16_000
_PREFER_LIMIT, _ALLOCATE_LIMIT = 25.0, 5.0
"""Milliseconds, as in docs/performance.md: the median of the choice, the 99th percentile of Allocate."""
_CHOICES, _ALLOCATIONS = 50, 500


def run(machine: Machine, notes: Notes) -> None:
    """Measure with the card idle, then with the card busy."""
    machine.need_cuda()
    machine.need_whole_card()
    notes.figure("load average of the machine", os.getloadavg()[0])
    unit = max(1, math.ceil((machine.card["memory"] >> 20) / _UNITS))
    with node(machine, f'unit = "{unit}Mi"\nmax_units_per_card = {_UNITS}') as one:
        ids = sorted(one.kubelet.stand_in.resources[MEM].reported)
        notes.figure("units", len(ids))
        _measure(machine, one, notes, ids, "idle")
        with Client(machine) as job:
            multiprocessors = job.do("start")["multiprocessors"]
            # Enough blocks for every multiprocessor, many times over; multiplications without any memory between.
            job.do("work", seconds=600.0, blocks=64 * multiprocessors)
            before = job.do("progress")["launches"]
            _measure(machine, one, notes, ids, "busy")
            after = job.do("progress")
        notes.expect(after["failed"] is None, f"the job failed with error {after['failed']}")
        notes.expect(after["launches"] > before, "the job made no progress meanwhile")


def _measure(machine: Machine, one: Node, notes: Notes, ids: Sequence[str], how: str) -> None:
    wanted = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=10)
    request = pb.PreferredAllocationRequest(container_requests=[wanted])
    choices = _times(one, lambda stub: stub.GetPreferredAllocation(request), int(machine.wait(_CHOICES)))
    first = pb.ContainerAllocateRequest(devices_ids=ids[:8])
    allocate = pb.AllocateRequest(container_requests=[first])
    allocations = _times(one, lambda stub: stub.Allocate(allocate), int(machine.wait(_ALLOCATIONS)))
    prefer, worst = statistics.median(choices), _percentile(allocations, 0.99)
    notes.figure(f"{how}: choice of ten among {len(ids)} units, median", prefer, "ms")
    notes.figure(f"{how}: Allocate of eight units, median", statistics.median(allocations), "ms")
    notes.figure(f"{how}: Allocate of eight units, p99", worst, "ms")
    choice = f"{how}: the choice takes {prefer:.1f} ms, at most {_PREFER_LIMIT:g}"
    notes.expect(prefer <= patient(_PREFER_LIMIT), choice)
    allocation = f"{how}: Allocate takes {worst:.1f} ms (p99), at most {_ALLOCATE_LIMIT:g}"
    notes.expect(worst <= patient(_ALLOCATE_LIMIT), allocation)


def _times(one: Node, call: Callable[[Any], Any], count: int) -> list[float]:
    """Return the milliseconds of calls, one after the other."""

    async def measure() -> list[float]:
        endpoint = one.kubelet.stand_in.resources[MEM].endpoint
        assert endpoint is not None
        milliseconds = []
        for _ in range(count):
            started = time.perf_counter()
            await call(endpoint.stub)
            milliseconds.append(1e3 * (time.perf_counter() - started))
        return milliseconds

    return one.kubelet.call(measure)


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
