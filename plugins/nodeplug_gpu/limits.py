"""The terms on which a card is sold by one entry, as far as those who hold it rely on them.

Owns: what of an entry are terms: containers get limits by their share of the card, so a card that some hold by quarters
cannot be sold by eighths beside them, and one that some use without MPS cannot be for MPS clients alone.
Refuses: names, kinds of sharing, sizes of units (`known` tells those apart already).
"""

from collections.abc import Iterable

from nodeplug import DeviceId
from nodeplug_gpu.config import Memory, Replicas
from nodeplug_gpu.pool import Entry


def limits_of(entry: Entry) -> str:
    """Return the terms in words; empty where nobody relies on any."""
    match entry:
        case Replicas() if entry.mps is not None:
            return f"MPS, {entry.replicas} replicas"
        case Memory() if entry.mps is not None:
            return "MPS"
        case _:
            return ""


def excess_replicas(entry: Entry, held: Iterable[DeviceId]) -> str:
    """Return why a card has too many users already: replicas that there are no longer, and that are still held."""
    if not isinstance(entry, Replicas):
        return ""
    numbers = [name.partition("-")[2] for name in held]
    many = sum(number.isdecimal() and int(number) >= entry.replicas for number in numbers)
    return f"{many} of its former replicas beyond the {entry.replicas} of now are still held" if many else ""
