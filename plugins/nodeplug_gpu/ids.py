"""Device ids.

Owns: ids of replicas and memory units, which name their card by a digest of its UUID: short, because the size of
ListAndWatch's message is limited, and without an index, because indexes move when a card is gone.
Replicas of a MIG instance have its UUID: a card has few of them.
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
_OF_INSTANCE: Final = "::"


@cache
def card_key(uuid: Uuid) -> CardKey:
    """Return the digits that identify a card in ids; the same on every node and in every version."""
    return CardKey(sha256(uuid.encode()).hexdigest()[:_DIGITS])


def unit_id(key: CardKey, number: int) -> DeviceId:
    """Return the id of one replica or unit of a card, numbered from 0."""
    return DeviceId(f"{key}-{number}")


def whole_of(unit: DeviceId) -> DeviceId:
    """Return what a replica or unit is a part of: the key of its card."""
    return DeviceId(unit.partition("-")[0])


def replica_id(instance: Uuid, number: int) -> DeviceId:
    """Return the id of one replica of a MIG instance, numbered from 0, as NVIDIA's device plugin forms it."""
    return DeviceId(f"{instance}{_OF_INSTANCE}{number}")


def whole(device: DeviceId) -> DeviceId:
    """Return what an id is a replica of: the UUID of an instance; any other id as it is."""
    return DeviceId(device.partition(_OF_INSTANCE)[0])


def replica_number(device: DeviceId) -> int | None:
    """Return which replica of an instance an id names; None if it names none."""
    number = device.partition(_OF_INSTANCE)[2]
    return int(number) if number.isascii() and number.isdecimal() else None


def by_card(devices: Iterable[DeviceId]) -> dict[CardKey, list[DeviceId]]:
    """Group ids by card, each group in the order given."""
    groups: dict[CardKey, list[DeviceId]] = {}
    for device in devices:
        groups.setdefault(CardKey(device.partition("-")[0]), []).append(device)
    return groups
