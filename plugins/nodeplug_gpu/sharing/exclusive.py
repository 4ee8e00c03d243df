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
from nodeplug_gpu.connected import best_connected
from nodeplug_gpu.pool import Pool
from nodeplug_gpu.properties import capacity, card_attributes


@dataclass(frozen=True, slots=True)
class ExclusiveSharing:
    """Advertises whole cards."""

    config: Exclusive | Mig
    paths: access.NodePaths

    def devices(self, resource: ResourceName, pool: Pool) -> Sequence[Device]:
        """List every card."""
        del resource
        return [
            Device(
                DeviceId(member.card.uuid),
                healthy=member.healthy,
                reason=member.reason,
                numa_nodes=numa_nodes(member.card.numa_node),
                attributes=card_attributes(member.card, pool.driver_version),
                capacity=capacity(member.card.memory),
            )
            for member in pool.members
        ]

    def part(self, name: DeviceId) -> None:
        """Nothing: each is whole."""

    def prefer(self, request: DevicePrefer, pool: Pool) -> Sequence[DeviceId]:
        """Prefer cards that are connected best, by NVLink, then by NUMA node and PCIe."""
        nodes = {DeviceId(member.card.uuid): f"node {member.card.numa_node}" for member in pool.members}
        return best_connected(request, nodes, pool.pairs)

    def allocate(self, request: DeviceAllocate, pool: Pool) -> Grant:
        """Allocate the cards.

        Raises:
            NotFound, NotReady: one of them is no longer present, or not healthy.
        """
        gpus = [access.GpuDevice(pool.of(Uuid(name)).require_healthy()) for name in request.ids]
        return access.grant(self.config.access, sorted(gpus, key=lambda gpu: gpu.card.index), self.paths)

    def by_card(self, ids: Iterable[DeviceId], pool: Pool) -> Mapping[Uuid, Sequence[DeviceId]]:
        """The id is the card's UUID."""
        cards = {DeviceId(member.card.uuid) for member in pool.members}
        return {Uuid(name): [name] for name in ids if name in cards}


def numa_nodes(node: int | None) -> tuple[int, ...]:
    """Return a NUMA node as a device has it; none where the machine reports none (-1 in sysfs)."""
    return (node,) if node is not None and node >= 0 else ()
