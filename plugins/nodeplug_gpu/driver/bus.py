"""Which cards the NVIDIA kernel module drives, as the PCI bus has it.

Owns: the listing of the module's folder in sysfs.
Refuses: NVML, which lists the cards that were there when it was initialised, and no others.
"""

from pathlib import Path


def bound(sysfs: Path) -> tuple[str, ...]:
    """Return the PCI addresses of the cards, sorted; none where the kernel module is not loaded."""
    try:
        return tuple(sorted(entry.name for entry in (sysfs / "bus/pci/drivers/nvidia").iterdir() if ":" in entry.name))
    except OSError:
        return ()
