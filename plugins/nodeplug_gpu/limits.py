"""The limits that a card's containers run under, as far as those who hold it rely on them.

Owns: which settings of an entry matter here: with MPS, containers get limits by their share of the card, so a card with
containers at a quarter each cannot take others at an eighth, and a card that is used without MPS cannot be reserved for
MPS clients.
Refuses: names, kinds of sharing, unit sizes (allocation records distinguish those already).
"""

from collections.abc import Iterable

from nodeplug import DeviceId
from nodeplug_gpu.config import Memory, Replicas, Resource


def limits_of(entry: Resource) -> str:
    """Return the limits in words; empty where there are none. The words are kept in allocation records."""
    match entry:
        case Replicas() if entry.mps is not None:
            return f"MPS, {entry.replicas} replicas"
        case Memory() if entry.mps is not None:
            return "MPS"
        case _:
            return ""


def excess_replicas(entry: Resource, held: Iterable[DeviceId]) -> str:
    """Return why a card has too many users: replicas that are no longer configured and that are still allocated."""
    if not isinstance(entry, Replicas):
        return ""
    numbers = [name.partition("-")[2] for name in held]
    excess = sum(number.isdecimal() and int(number) >= entry.replicas for number in numbers)
    return f"{excess} of its allocated replicas exceed the {entry.replicas} configured now" if excess else ""
