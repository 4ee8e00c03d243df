"""Stage 14: the card leaves the PCI bus and comes back, while the daemon runs.

Owns: that it is found again without a restart.
Refuses: to run unless settings may be changed; and to remove a card that a process has open, for which the kernel's
driver waits for ever: nodeplug lets go of it before.
"""

import time

from tests.gpu.proof import settings
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.node import node
from tests.gpu.proof.patience import until
from tests.gpu.proof.stage import Notes, Skipped

_SOON = 60.0


def run(machine: Machine, notes: Notes) -> None:
    """Remove the card from the bus, and have the bus scanned."""
    settings.program(machine)
    machine.need_whole_card()
    bus = machine.sysfs / "bus/pci"
    remove = bus / "devices" / machine.card["pci"] / "remove"
    if not remove.exists() or not (bus / "rescan").exists():
        raise Skipped(f"there is no {remove}, or no {bus / 'rescan'}")
    notes.undo("run", "sh", "-c", 'echo 1 > "$0"', str(bus / "rescan"))
    with node(machine) as one:
        units = one.units()
        one.configure(enabled=False)
        until(lambda: one.units() == 0 and not one.driver_process(), _SOON)
        remove.write_text("1")
        one.configure()
        until(one.driver_process, _SOON)
        time.sleep(machine.wait(5))  # polls, in which a card that is gone must not be found
        notes.expect(one.units() == 0, f"kubelet has {one.units()} units of a card that is gone")
        started = time.monotonic()
        (bus / "rescan").write_text("1")
        until(lambda: one.units() == units, _SOON, one.state)
        notes.figure("from the scan of the bus until all units are back", time.monotonic() - started, "s")
