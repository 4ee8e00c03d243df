"""What an XID means for a card (the number is that of the kernel log's NVRM lines).

Owns: the classes of XIDs, and a short description of the common ones.
Refuses: the decision about a card (`health` takes it).

The classes follow the resolution buckets of NVIDIA, "Analyzing Xid Errors with the Xid Catalog": what needs a reset or
a restart of the machine is fatal, what is to be ignored or points to the application does not count, and all others,
such as 94 (one application is lost, the card keeps working), are minor faults.
"""

from typing import Final, Literal

from nodeplug_gpu.config import APPLICATION_XIDS, Health

Severity = Literal["ignored", "minor", "fatal"]

FATAL: Final = frozenset({46, 48, 54, 61, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158})
"""The card needs a reset at least, or is gone; everything that is on it is lost."""
MISUSE: Final = frozenset({11, 25, 37, 69, 80})
"""CHECK_APP/CUDA: invalid work that an application submitted. A tenant must not be able to take a card from its
neighbours that way. 32 is not among them: it mostly comes from the PCI bus."""
INFORMATION: Final = frozenset(
    {38, 44, 63, 66, 67, 93, 106, 107, 108, 121, 137, 141, 152, 153, 154, 157, 160, 161, *range(162, 166)}
)
"""IGNORE: the driver corrected it, another source reports it better (154: the recovery action changed), or it costs
nothing but power. 92 counts all the same: a high rate of single-bit errors is how a card begins to fail."""
CONTAINED: Final = frozenset(
    {8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), 75, 76, 77, 80, *range(82, 87), 88, 89, 94}
    | {*range(96, 106), *range(126, 136), 139}
)
"""RESTART_APP: errors of a channel, an engine's context or a page of memory, with which one application is lost and the
card keeps working. The driver ends what used "a specific partition" then (the catalog, and the table of error
containment in open-gpu-kernel-modules), so where NVML names a MIG instance, the others are not concerned."""
NAMES: Final = {
    11: "invalid or corrupted push buffer stream",
    13: "graphics engine exception",
    31: "memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup after another error",
    46: "GPU stopped processing, reset required",
    48: "double bit ECC error",
    54: "auxiliary power is not connected",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "row remapped or page retired",
    64: "row remapping or page retirement failed",
    68: "video processor exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    110: "security fault",
    119: "timeout of the GSP processor",
    120: "error of the GSP processor",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization failed",
    154: "the recovery action changed",
    156: "a part of the card is retired at the next reset",
    158: "fatal timeout",
}


def severity(code: int, config: Health) -> Severity:
    """Return what an XID means for the card; an unknown one counts as a minor fault."""
    if code in config.fatal_xids:
        return "fatal"
    if code in config.ignore_xids or code in {*APPLICATION_XIDS, *MISUSE, *INFORMATION}:
        return "ignored"
    return "fatal" if code in FATAL else "minor"


def described(code: int) -> str:
    """Return `XID 79 (GPU has fallen off the bus)`."""
    name = NAMES.get(code)
    return f"XID {code} ({name})" if name else f"XID {code}"
