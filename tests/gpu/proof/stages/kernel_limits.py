"""Stage 15: whether the kernel limits a cgroup's memory of the card (controller dmem, cgroup v2, drivers from R615 on).

Owns: a cgroup with a limit of 2 GiB, in which a client tries to have 4.
Refuses: to run unless settings may be changed: the controller is switched on for a cgroup of its own. nodeplug does not
use it yet; what is seen here says whether it could.
"""

import os
from typing import Final

from tests.gpu.proof.clients import Client, Place, failure
from tests.gpu.proof.machine import CGROUPS, GIB, Machine
from tests.gpu.proof.mps import STEP
from tests.gpu.proof.stage import Notes, Skipped

ONLY_RECORDS: Final = True
_LIMIT, _WANTED = 2 * GIB, 4 * GIB


def run(machine: Machine, notes: Notes) -> None:
    """Limit a cgroup, and have a client exceed it."""
    machine.need_root("a cgroup")
    machine.need_cuda()
    if machine.cgroup_version() != 2:
        raise Skipped("needs cgroup v2 alone")
    if "dmem" not in (CGROUPS / "cgroup.controllers").read_text().split():
        raise Skipped("this kernel has no controller dmem (Linux 6.14 has it first)")
    regions = [line.split()[0] for line in (CGROUPS / "dmem.capacity").read_text().splitlines()]
    notes.figure("regions of dmem", " ".join(regions) or "none")
    ours = [region for region in regions if "nvidia" in region or machine.card["pci"] in region]
    if not ours:
        raise Skipped("the driver has no region of dmem: NVIDIA's has one from R615 on")
    control = CGROUPS / "cgroup.subtree_control"
    if "dmem" not in control.read_text().split():
        notes.undo("run", "sh", "-c", 'echo -dmem > "$0"', str(control))
        control.write_text("+dmem")
    group = CGROUPS / f"nodeplug-proof-{os.getpid()}"
    notes.undo("rmdir", str(group))
    group.mkdir()
    for region in ours:
        (group / "dmem.max").write_text(f"{region} {_LIMIT}")
    place = Place(env={"CUDA_VISIBLE_DEVICES": machine.card["uuid"]}, cgroups=[str(group / "cgroup.procs")])
    with Client(machine, place) as client:
        client.do("start")
        reply = client.ask("fill", step=STEP, most=_WANTED)
        notes.figure("limit", _LIMIT, "bytes")
        notes.figure("allocated", reply["held"], "bytes")
        notes.seen(failure(reply) if "error" in reply else "the kernel limits nothing")
        notes.seen(f"dmem.current: {(group / 'dmem.current').read_text().strip()}")
