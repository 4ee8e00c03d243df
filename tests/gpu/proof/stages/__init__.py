"""The stages of the proof, one module each, with a function `run`.

Owns: their order, their deadlines and what each proves; docs/gpu-hardware.md has the same table.
Refuses: to import them: each runs in a process of its own.
"""

from typing import Final

from tests.gpu.proof.stage import Stage

STAGES: Final = (
    Stage(0, "preconditions", 10, "what is there: programs, device nodes, cgroups, NVML's functions"),
    Stage(1, "suite", 60, "the GPU suite on NVIDIA's library"),
    Stage(2, "grants", 50, "what pods are given is usable; what polling costs"),
    Stage(3, "overuse", 60, "memory by container as NVML tells it; warning, SIGTERM, SIGKILL"),
    Stage(4, "mps_limits", 80, "limits of memory and multiprocessors as MPS clients find them"),
    Stage(5, "mps_evasion", 60, "what a tenant can do to have other limits"),
    Stage(6, "mps_faults", 60, "what is lost and what is said when a part of MPS ends"),
    Stage(7, "xids", 40, "faults of an application arrive as XIDs and take no card"),
    Stage(8, "driver_process", 60, "a stopped or killed driver process disturbs no job"),
    Stage(9, "cdi", 60, "the CDI spec has all that CUDA needs"),
    Stage(10, "load", 30, "preferred allocation and Allocate beside a saturated card"),
    Stage(11, "exclusive_mode", 240, "MPS in exclusive mode, and the mode set back", settings=True),
    Stage(12, "mig_mode", 300, "a card that is divided while it is used, and its instances", settings=True),
    Stage(13, "reset", 150, "a card that is reset comes back", settings=True),
    Stage(14, "unplug", 200, "a card that leaves the bus is found again", settings=True),
    Stage(15, "kernel_limits", 60, "whether the kernel limits a cgroup's memory of the card", settings=True),
)
