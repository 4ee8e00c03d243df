"""Stage 13: the card is reset, by the steps of docs/gpu.md: nodeplug lets go of it, and takes it back.

Owns: that no process of nodeplug has the card open when the section is off, and that kubelet gets all units back.
Refuses: to run unless settings may be changed, and to end processes of others that have the card open.
"""

import time

from tests.gpu.proof import settings
from tests.gpu.proof.clients import Client
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.node import node
from tests.gpu.proof.patience import until
from tests.gpu.proof.stage import Notes

_SOON = 40.0


def run(machine: Machine, notes: Notes) -> None:
    """Switch the section off, reset the card, and switch the section on."""
    settings.program(machine)
    machine.need_cuda()
    machine.need_whole_card()
    with node(machine) as one:
        units = one.units()
        one.configure(enabled=False)
        until(lambda: one.units() == 0 and not one.driver_process(), _SOON)
        started = time.monotonic()
        settings.change(machine, "--gpu-reset")
        notes.figure("the reset", time.monotonic() - started, "s")
        started = time.monotonic()
        one.configure()
        until(lambda: one.units() == units, _SOON, one.state)
        notes.figure("until all units are back", time.monotonic() - started, "s")
        notes.expect(one.until_card(allocatable=True)["state"] == "healthy", "the card is not healthy after the reset")
    with Client(machine) as client:
        client.do("start")
        notes.expect(client.do("compute")["right"], "a client computes wrong numbers after the reset")
