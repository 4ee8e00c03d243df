"""Stage 7: faults of an application on a sound card: the XID arrives, is ignored, and the card stays healthy.

Owns: two clients that break, without MPS, and an observer of the driver's events.
Refuses: XIDs that need a reset: no program can cause one on purpose.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.gpu.proof.clients import Client
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.node import node
from tests.gpu.proof.patience import patient, until
from tests.gpu.proof.stage import Notes

from nodeplug_gpu.cards import GpuEvent, Snapshot
from nodeplug_gpu.config import Health
from nodeplug_gpu.driver.process import NvmlDriver
from nodeplug_gpu.xid import severity

_LATE: Final = 1.0
"""Seconds within which an event must have come."""
_FAULTS: Final = (("address", 700, 31), ("alignment", 716, 13))
"""What the client does wrong, the error of CUDA, and the XID."""


@dataclass(slots=True)
class Seen:
    """The events that the driver's process has told."""

    events: list[tuple[float, GpuEvent]] = field(default_factory=list)

    def observe(self, _: Snapshot, events: Sequence[GpuEvent]) -> None:
        """Note events with the time at which they came."""
        self.events += [(time.monotonic(), event) for event in events if event.kind == "xid"]


def run(machine: Machine, notes: Notes) -> None:
    """Break two clients one after the other, beside a daemon that watches."""
    machine.need_cuda()
    machine.need_whole_card()
    seen = Seen()
    log = logging.LoggerAdapter(logging.getLogger("proof"), {})
    driver = NvmlDriver(machine.driver_root, 1.0, 15.0, log, sysfs=machine.sysfs)
    with node(machine) as one:
        driver.start(seen.observe)
        try:
            until(lambda: driver.snapshot.state == "running", 20, lambda: str(driver.snapshot))
            time.sleep(1)  # the event set is made after the first poll, and nothing tells when
            one.until_card(state="healthy")
            for kind, error, xid in _FAULTS:
                _break(machine, notes, seen, kind, error, xid)
            time.sleep(machine.wait(3))  # polls, in which the daemon would have taken the card out
            card = one.card()
        finally:
            driver.stop()
        notes.expect(card.get("state") == "healthy", f"the card is {card.get('state')}: {card.get('reason')}")
        notes.expect(card.get("allocatable"), f"the card is not allocatable: {card.get('reason')}")
        notes.expect(one.units() > 0, "kubelet has no unit of the card any more")


def _break(machine: Machine, notes: Notes, seen: Seen, kind: str, error: int, xid: int) -> None:
    known = len(seen.events)
    with Client(machine) as client:
        client.do("start")
        client.do("compute")
        broken = time.monotonic()
        reply = client.ask("fault", kind=kind)
        notes.expect(reply.get("error") == error, f"{kind}: CUDA returned {reply.get('error')}, and not {error}")
        try:
            until(lambda: len(seen.events) > known, 10)
        except AssertionError:
            notes.expect(False, f"{kind}: no XID came within 10 s")
            return
    came, event = seen.events[known]
    notes.figure(f"XID of {kind}", event.code)
    notes.figure(f"XID of {kind}, after the fault", came - broken, "s")
    notes.expect(event.code == xid, f"{kind}: XID {event.code} came, and not {xid}")
    notes.expect(came - broken <= patient(_LATE), f"{kind}: the XID came after {came - broken:.1f} s")
    notes.expect(event.card == machine.card["uuid"], f"{kind}: the XID is of {event.card}")
    found = severity(event.code, Health())
    notes.expect(found == "ignored", f"XID {event.code} counts as {found}")
