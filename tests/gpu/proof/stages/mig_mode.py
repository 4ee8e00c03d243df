"""Stage 12: the card is divided by MIG while it is shared by memory, used by its instances, and put together again.

Owns: two instances of the smallest profile, and what kubelet is told meanwhile.
Refuses: to run unless settings may be changed, and on a card that is divided already.
"""

from typing import Final

from tests.gpu.proof import settings
from tests.gpu.proof.clients import Client, Place
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.node import Node, node
from tests.gpu.proof.patience import until
from tests.gpu.proof.stage import Notes

RESOURCE: Final = "nvidia.com/mig"
SMALLEST: Final = "19"
"""nvidia-smi's number of the profile with one slice, on all cards that have MIG."""
_ENTRY: Final = f'sharing = "mig"\nstrategy = "single"\nresource = "{RESOURCE}"'
_SOON: Final = 30.0
_MINUTE: Final = 90.0
"""Seconds in which a card changes its resource: it must have had no holder for a minute."""


def run(machine: Machine, notes: Notes) -> None:
    """Divide the card, use an instance, and put the card together."""
    smi, uuid = settings.program(machine), machine.card["uuid"]
    machine.need_cuda()
    settings.keep_mig_mode(machine, notes)
    with node(machine) as one:
        settings.change(machine, "-mig", "1")
        until(lambda: one.units() == 0, _SOON, one.state)
        notes.seen(f"divided, and shared by memory: {one.card().get('reason') or 'no longer among the cards'}")
        for words in (("-dgi",), ("-dci",)):
            notes.undo("run", smi, "-i", uuid, *words)
        settings.change(machine, "-cgi", f"{SMALLEST},{SMALLEST}", "-C")
        one.configure(_ENTRY)
        until(lambda: one.kubelet.allocatable(RESOURCE) == 2, _MINUTE, one.state)
        _use(machine, one, notes)
        settings.change(machine, "-dci")
        settings.change(machine, "-dgi")
        until(lambda: one.kubelet.allocatable(RESOURCE) == 0, _SOON, one.state)
        notes.seen("instances that were destroyed are no longer allocatable")


def _use(machine: Machine, one: Node, notes: Notes) -> None:
    granted = one.kubelet.admit("tenant", {RESOURCE: 1})[RESOURCE]
    instance = granted.envs["NVIDIA_VISIBLE_DEVICES"]
    notes.expect(instance.startswith("MIG-"), f"a pod was given {instance}, and no instance")
    with Client(machine, Place(env={"CUDA_VISIBLE_DEVICES": instance})) as client:
        seen = client.do("start")
        notes.expect(seen["count"] == 1, f"a pod with an instance sees {seen['count']} devices")
        notes.figure("memory of an instance, as CUDA has it", seen["total"], "bytes")
        notes.figure("multiprocessors of an instance", seen["multiprocessors"])
        notes.expect(client.do("compute")["right"], "a client on an instance computes wrong numbers")
    one.kubelet.remove_pod("tenant")
