"""Device ids.

Owns: ids of replicas and memory units, which name their card by a digest of its UUID: short, because the size of
ListAndWatch's message is limited, and without an index, because indexes move when a card is gone.
Refuses: ids of whole cards and instances: those are the UUIDs themselves.
"""

from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from typing import Final, NewType

from nodeplug import DeviceId
from nodeplug_gpu.cards import Uuid

CardKey = NewType("CardKey", str)
"""Eight hexadecimal digits for one card."""
_DIGITS: Final = 8


@cache
def card_key(uuid: Uuid) -> CardKey:
    """Return the digits that identify a card in ids; the same on every node and in every version."""
    return CardKey(sha256(uuid.encode()).hexdigest()[:_DIGITS])


def unit_id(key: CardKey, number: int) -> DeviceId:
    """Return the id of one replica or unit of a card, numbered from 0."""
    return DeviceId(f"{key}-{number}")


def by_card(devices: Iterable[DeviceId]) -> dict[CardKey, list[DeviceId]]:
    """Group ids by card, each group in the order given."""
    groups: dict[CardKey, list[DeviceId]] = {}
    for device in devices:
        groups.setdefault(CardKey(device.partition("-")[0]), []).append(device)
    return groups
