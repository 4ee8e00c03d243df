"""What the driver's error numbers mean for a card (NVIDIA, "XID Errors"; the numbers are those of dmesg's NVRM lines).

Owns: the classes of XIDs, and a few words for each that people meet.
Refuses: the decision about a card (`health` takes it).
"""

from typing import Final, Literal

from nodeplug_gpu.config import APPLICATION_XIDS, Health

Severity = Literal["ignored", "lesser", "fatal"]

FATAL: Final = frozenset({46, 48, 54, 61, 62, 64, 69, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 158})
"""The card needs a reset at least, or is gone; everything that is on it is lost."""
INFORMATION: Final = frozenset({63, 137, 154, 160})
"""Something was mended, or another source tells it better (154: the recovery action changed)."""
NAMES: Final = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "a process stopped",
    45: "preemptive cleanup after another error",
    46: "the card stopped processing",
    48: "double bit ECC error",
    54: "auxiliary power is not connected",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "row remapped or page retired",
    64: "row remapping or page retirement failed",
    68: "video processor exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "the card has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    110: "security fault",
    119: "timeout of the GSP processor",
    120: "error of the GSP processor",
    140: "unrecovered ECC error",
    143: "initialisation of the card failed",
    154: "the recovery action changed",
}


def severity(code: int, config: Health) -> Severity:
    """Return what an XID means for the card; one that is not known counts as a lesser fault."""
    if code in config.fatal_xids:
        return "fatal"
    if code in APPLICATION_XIDS or code in config.ignore_xids or code in INFORMATION:
        return "ignored"
    return "fatal" if code in FATAL else "lesser"


def described(code: int) -> str:
    """Return `XID 79 (the card has fallen off the bus)`."""
    name = NAMES.get(code)
    return f"XID {code} ({name})" if name else f"XID {code}"
