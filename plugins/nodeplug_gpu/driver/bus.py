"""The cards that are bound to the NVIDIA kernel module, as sysfs lists them.

Owns: the listing of the module's folder in sysfs.
Refuses: NVML, which lists only the cards that were present when it was initialised.
"""

from pathlib import Path


def bound(sysfs: Path) -> tuple[str, ...]:
    """Return the PCI addresses of the cards, sorted; none where the kernel module is not loaded."""
    try:
        return tuple(sorted(entry.name for entry in (sysfs / "bus/pci/drivers/nvidia").iterdir() if ":" in entry.name))
    except OSError:
        return ()
