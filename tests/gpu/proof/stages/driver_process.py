"""Stage 8: the driver's process stands still, then is killed five times, while a CUDA job runs.

Owns: that the job, its results and kubelet's streams do not notice.
Refuses: to stop the driver itself: only our process is.
"""

import os
import signal
import time
from typing import Final

from tests.gpu.proof.clients import Client
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.mps import kill
from tests.gpu.proof.node import Node, node
from tests.gpu.proof.patience import until
from tests.gpu.proof.stage import Disproved, Notes

_STILL: Final = 35.0
"""Seconds: more than `hang_after`, after which the process is replaced."""
_KILLS: Final = 5


def run(machine: Machine, notes: Notes) -> None:
    """Disturb the driver's process, and look at all that must not notice."""
    machine.need_cuda()
    machine.need_whole_card()
    still = max(machine.wait(_STILL), 6.0)
    with (
        node(machine, more=f'hang_after = "{still - 5 if still > 10 else still / 2:g}s"') as one,
        Client(machine) as job,
    ):
        job.do("start")
        job.do("work", seconds=3600.0, blocks=8)
        registrations, streams = len(one.kubelet.registrations), one.streams()
        stopped = one.driver_process()
        if not stopped:
            raise Disproved("the daemon has no driver process")
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(still)
        _replaced(one, notes, stopped, "stood still")
        for number in range(_KILLS):
            until(one.driver_process, 15, one.state)
            pid = one.driver_process()
            kill(pid, "driver process")
            _replaced(one, notes, pid, f"was killed, {number + 1}")
        card = one.until_card(state="healthy")
        notes.expect(card["allocatable"], f"the card is not allocatable: {card['reason']}")
        _unnoticed(job, notes)
        notes.expect(len(one.kubelet.registrations) == registrations, "the daemon had to register again")
        notes.expect(one.streams() == streams, "a stream to kubelet ended")


def _replaced(one: Node, notes: Notes, pid: int, how: str) -> None:
    started = time.monotonic()
    try:
        until(lambda: one.driver_process() not in {0, pid}, 15)
    except AssertionError:
        notes.expect(False, f"the driver's process {how}, and no other took its place within 15 s")
        return
    notes.figure(f"another process after it {how}", time.monotonic() - started, "s")


def _unnoticed(job: Client, notes: Notes) -> None:
    before = job.do("progress")
    notes.expect(before["failed"] is None, f"the CUDA job failed with error {before['failed']}")
    time.sleep(0.5)
    after = job.do("progress")
    notes.figure("launches of the job", after["launches"])
    notes.expect(after["launches"] > before["launches"], "the CUDA job makes no progress any more")
    notes.expect(job.do("compute")["right"], "the CUDA job computes wrong numbers")
