"""The ways to share a card: not at all, by time-slicing, by its memory, by its MIG instances.

Owns: the one interface that they share.
Refuses: which cards there are, and their health.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from nodeplug import Device, DeviceAllocate, DeviceId, DevicePrefer, Grant, Part, ResourceName
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.pool import Pool


class Sharing(Protocol):
    """One way to share cards. Methods depend on their arguments alone, except what an error says about free units."""

    def devices(self, resource: ResourceName, pool: Pool) -> Sequence[Device]:
        """Return the devices of one of the entry's resources.

        Raises:
            NotFound: there is nothing of this resource on the node.
        """
        ...

    def part(self, name: DeviceId) -> Part | None:
        """Return what an id is a share of, whether it is listed or not; None for a whole card or instance."""
        ...

    def prefer(self, request: DevicePrefer, pool: Pool) -> Sequence[DeviceId] | None:
        """Choose ids for a container; None leaves it to kubelet."""
        ...

    def allocate(self, request: DeviceAllocate, pool: Pool) -> Grant:
        """Return what a container gets.

        Raises:
            Exhausted, InvalidRequest: it cannot get these; the message has the numbers.
        """
        ...

    def by_card(self, ids: Iterable[DeviceId], pool: Pool) -> Mapping[Uuid, Sequence[DeviceId]]:
        """Group ids by the card that they belong to; ids of no card of the pool are left out."""
        ...
