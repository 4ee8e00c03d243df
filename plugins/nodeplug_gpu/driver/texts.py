"""Texts of NVML, in plain form.

Owns: what is left of a text that cannot be printed, and the form of PCI addresses.
Refuses: calls.
"""

import re
from typing import Any, Final

_BUS: Final = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")


def text(answer: object) -> str:
    """Return NVML's text, which some versions of pynvml leave as bytes, without anything that cannot be printed."""
    plain = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
    return "".join(letter for letter in plain if letter.isprintable()).strip()


def bus_address(bus: str) -> str:
    """Return a PCI address as sysfs has it: `00000000:3B:00.0` is `0000:3b:00.0`; ``""`` for anything else."""
    match = _BUS.fullmatch(bus)
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower() if match else ""


def bus_of(info: Any) -> str:
    """Return the address in a nvmlPciInfo_t as sysfs has it; ``""`` without one, or if it is none."""
    try:
        return "" if info is None else bus_address(text(info.busId))
    except UnicodeDecodeError:  # pynvml decodes the fields of a structure when they are read
        return ""
