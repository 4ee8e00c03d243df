"""Stage 11: MPS with the compute mode EXCLUSIVE_PROCESS, which keeps processes without MPS from the card.

Owns: that the mode is set while MPS serves the card, and set back when it no longer does.
Refuses: to run unless settings may be changed.
"""

from tests.gpu.proof import settings
from tests.gpu.proof.clients import Client, failure
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.mps import Mps, leave_no_mount_point
from tests.gpu.proof.node import node
from tests.gpu.proof.patience import until
from tests.gpu.proof.stage import Notes

_BACK = 90.0
"""Seconds: the daemon of a card is stopped when nothing has held it for a minute."""


def run(machine: Machine, notes: Notes) -> None:
    """Share the card by MPS, then without."""
    machine.need_mps()
    before = settings.keep_compute_mode(machine, notes)
    notes.figure("compute mode before", before)
    leave_no_mount_point(notes)
    with node(machine, "mps = {}") as one:
        mode = settings.query(machine, "compute_mode")
        notes.expect(mode == "Exclusive_Process", f"with MPS the compute mode is {mode}")
        granted = one.admit("tenant", 2)
        with Mps(one).client(granted) as client:
            client.do("start", patience=40)
            notes.expect(client.do("compute")["right"], "a client of MPS computes wrong numbers")
            with Client(machine) as direct:
                reply = direct.ask("start")
                notes.seen(f"a process without MPS: {failure(reply) if 'error' in reply else 'is served'}")
        one.kubelet.remove_pod("tenant")
        one.configure()
        until(lambda: settings.query(machine, "compute_mode") == "Default", _BACK, one.state)
        one.until_card(_BACK, allocatable=True)
        notes.seen("without MPS the compute mode is Default, and the card is allocatable")
