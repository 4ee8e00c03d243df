"""The limits that a card's containers run under, as far as those who hold it rely on them, and what they are worth.

Owns: which settings of an entry matter here: with MPS, containers get limits by their share of the card, so a card with
containers at a quarter each cannot take others at an eighth, and a card that is used without MPS cannot be reserved for
MPS clients; and the words that say whether anything enforces them.
Refuses: names, kinds of sharing, unit sizes (allocation records distinguish those already).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from nodeplug import DeviceId
from nodeplug_gpu.cards import Card
from nodeplug_gpu.config import Memory, Mig, Mps, Replicas, Resource, advertises_mig

BY_KERNEL: Final = "kernel"
"""The driver holds a container to its share by its cgroup, which no pod can change."""
FIRST_VOLTA: Final = (7, 0)
"""Compute capability from which MPS has memory limits and isolated address spaces."""


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of an MPS control daemon, which the environment of a client can lower, not raise.

    NVIDIA, "Multi-Process Service": CUDA_MPS_PINNED_DEVICE_MEM_LIMIT and CUDA_MPS_ACTIVE_THREAD_PERCENTAGE.

    Attributes:
        memory: MiB that each process may allocate; 0 for no cap.
        threads: percentage of multiprocessors that each process may use; 0 for no cap.
    """

    memory: int = 0
    threads: int = 0


NO_CAPS: Final = Caps()


def caps_of(entry: Resource, card: Card) -> Caps:
    """Return what no client of a card may exceed: only where all have equal shares, as one daemon has one cap."""
    if not isinstance(entry, Replicas) or entry.mps is None or not entry.refuse_more_than_one or before_volta(card):
        return NO_CAPS
    share = 1 / entry.replicas
    return Caps(int(card.memory * share) >> 20, max(1, round(100 * share)) if entry.mps.thread_percentage else 0)


def mps_of(entry: Resource) -> Mps | None:
    """Return the MPS settings of an entry; None if it has none."""
    return entry.mps if isinstance(entry, Memory | Replicas) else None


def why_unlimited(card: Card) -> str:
    """Return why MPS cannot limit how much memory its clients use of a card; empty when it can."""
    return before_volta(card) or ("" if card.memory else "memory unknown")


def before_volta(card: Card) -> str:
    """Return why MPS has no limits at all on a card; empty when it has."""
    if card.compute_capability >= FIRST_VOLTA:
        return ""
    major, minor = card.compute_capability
    return f"compute capability {major}.{minor}, below 7.0" if major else "compute capability unknown"


def refusal_without_limits(entry: Resource, card: Card) -> str:
    """Return why a card is not allocatable: its entry requires limits, and it can have none."""
    mps, why = mps_of(entry), why_unlimited(card)
    if mps is None or not mps.require_limits or not why:
        return ""
    return (
        f"{entry.resource} requires limits (mps.require_limits), and MPS can set none on it: {why}; share cards of 7.0 "
        "or later whose memory is known, or set require_limits = false"
    )


def limits_in_words(entry: Resource, card: Card, capped: Caps | None = None) -> str:
    """Return what keeps the containers of a card within their allocation.

    MPS reads its limits from the environment of each client, and kubelet appends the pod's own environment to what a
    plugin grants (kubelet_pods.go), so a pod can set others.

    Args:
        entry: that has the card.
        card: of which.
        capped: what its running daemon lets no client exceed, if it has one and nothing gets past it.
    """
    match entry:
        case Memory() | Replicas():
            if entry.mps is None:
                return "none"
            why = why_unlimited(card)
            can = "lower" if capped == caps_of(entry, card) != NO_CAPS else "raise"
            return f"none: {why}" if why else f"mps (a pod can {can} them)"
        case Mig() if entry.replicas_in_words:
            return "the instance, for all that share it"
        case _:
            return "the instance" if advertises_mig(entry) else "the card"


def limits_of(entry: Resource) -> str:
    """Return the limits in words; empty where there are none. The words are kept in allocation records."""
    match entry:
        case Replicas() if entry.mps is not None:
            return f"MPS, {entry.replicas} replicas"
        case Memory() if entry.mps is not None:
            return "MPS"
        case Mig():
            return entry.replicas_in_words
        case _:
            return ""


def without_limits(entry: Resource) -> str:
    """Return what a card without words of limits was, for messages."""
    return "whole instances" if isinstance(entry, Mig) else "without MPS"


def excess(held: Iterable[DeviceId], configured: int, what: str) -> str:
    """Return why a card has too many users: replicas or units that are no longer configured and still allocated.

    Args:
        held: ids of the card that are allocated.
        configured: how many the card has now, numbered from 0.
        what: they are.
    """
    numbers = [name.partition("-")[2] for name in held]
    beyond = sum(number.isdecimal() and int(number) >= configured for number in numbers)
    return f"{beyond} of its allocated {what} exceed the {configured} configured now" if beyond else ""
