"""Whole cards, one container each.

Owns: a device per card, named by its UUID, with its NUMA node.
Refuses: anything smaller than a card.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodeplug import Device, DeviceAllocate, DeviceId, DevicePrefer, Grant, ResourceName
from nodeplug_gpu import access
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.config import Exclusive, Mig
from nodeplug_gpu.placement import together
from nodeplug_gpu.pool import Stock


@dataclass(frozen=True, slots=True)
class ExclusiveSharing:
    """Sells whole cards."""

    config: Exclusive | Mig
    paths: access.NodePaths

    def devices(self, resource: ResourceName, stock: Stock) -> Sequence[Device]:
        """List every card."""
        del resource
        return [
            Device(DeviceId(offer.card.uuid), offer.healthy, offer.reason, numa_nodes(offer.card.numa_node))
            for offer in stock.offers
        ]

    def prefer(self, request: DevicePrefer, stock: Stock) -> Sequence[DeviceId]:
        """Prefer cards of one NUMA node."""
        nodes = {DeviceId(offer.card.uuid): f"node {offer.card.numa_node}" for offer in stock.offers}
        return together(request, nodes)

    def allocate(self, request: DeviceAllocate, stock: Stock) -> Grant:
        """Grant the cards.

        Raises:
            NotFound, NotReady: one of them is not there any more, or not well.
        """
        parts = [access.Part(stock.of(Uuid(name)).usable()) for name in request.ids]
        return access.grant(self.config.access, sorted(parts, key=lambda part: part.card.index), self.paths)

    def by_card(self, ids: Iterable[DeviceId], stock: Stock) -> Mapping[Uuid, Sequence[DeviceId]]:
        """The id is the card's UUID."""
        cards = {DeviceId(offer.card.uuid) for offer in stock.offers}
        return {Uuid(name): [name] for name in ids if name in cards}


def numa_nodes(node: int | None) -> tuple[int, ...]:
    """Return the wire's form; a machine without an opinion (-1 in sysfs) gives none."""
    return (node,) if node is not None and node >= 0 else ()
