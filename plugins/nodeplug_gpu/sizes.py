"""The memory of cards whose driver does not tell it, as with GB10 and others that use the machine's own.

Owns: which size of the configuration is a card's, and what is said of a card that has none.
Refuses: to guess a size, and to correct one that the driver tells.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from nodeplug_gpu.cards import Card, Snapshot
from nodeplug_gpu.choice import CardMemory
from nodeplug_gpu.config import Memory, Resource

UNKNOWN: Final = (
    "the driver does not tell how much memory it has, so it has no units; set its size in [[plugins.gpu.config.memory]]"
)


def sized(snapshot: Snapshot, sizes: Sequence[CardMemory]) -> Snapshot:
    """Return a snapshot in which cards of unknown memory have the first size that is for them."""
    if all(card.memory for card in snapshot.cards) or not sizes:
        return snapshot
    return replace(snapshot, cards=tuple(card if card.memory else _sized(card, sizes) for card in snapshot.cards))


def _sized(card: Card, sizes: Sequence[CardMemory]) -> Card:
    return replace(card, memory=next((one.size for one in sizes if one.is_for(card)), 0))


def unknown(entry: Resource, card: Card) -> str:
    """Return why a card has no units of an entry although it is there; empty when it has."""
    return UNKNOWN if isinstance(entry, Memory) and not card.memory else ""
