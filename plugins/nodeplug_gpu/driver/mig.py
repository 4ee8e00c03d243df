"""Names of MIG profiles, as nvidia-smi prints them.

Owns: the name from the parts of an instance.
Refuses: NVML.
"""

import re
from typing import Final

_IN_NAME: Final = re.compile(r"\bMIG (\d+(?:c\.\d+)?g\.\d+gb[+\-.\w]*)$")
_GIB: Final = 1 << 30
_EIGHTHS: Final = 8


def profile_in(model: str) -> str:
    """Return the profile in the product name of an instance, such as `NVIDIA H100 80GB HBM3 MIG 1g.10gb`, or ``""``.

    NVML: "when used with MIG device handles the API returns MIG device names".
    """
    match = _IN_NAME.search(model)
    return match[1] if match else ""


def profile(gpu_slices: int, compute_slices: int, memory: int, card_memory: int, *, ofa: bool) -> str:
    """Compose a profile's name from its parts.

    The size in the name is not the instance's memory: it is the card's advertised size, in eighths, rounded.

    Args:
        gpu_slices: of the GPU instance.
        compute_slices: of the compute instance; one that is smaller than its GPU instance has its own slices in
            front, as in `1c.2g.20gb`.
        memory: bytes of the GPU instance.
        card_memory: bytes of the whole card.
        ofa: it has an optical flow unit; only a profile with media extensions (`+me`) or a whole card does.
    """
    eighths = min(-(-memory * _EIGHTHS // card_memory), _EIGHTHS) if card_memory else 0
    size = -(-card_memory // _GIB)
    gigabytes = (2 * eighths * size + _EIGHTHS) // (2 * _EIGHTHS)  # half a gigabyte is rounded up
    slices = f"{gpu_slices}g" if compute_slices == gpu_slices else f"{compute_slices}c.{gpu_slices}g"
    media = "+me" if ofa and eighths < _EIGHTHS else ""
    return f"{slices}.{gigabytes}gb{media}"
