"""Time-slicing: each card as several replicas.

Owns: `replicas` devices per card, and the refusal of more than one where it is configured.
Refuses: limits of memory or compute; without MPS there are none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nodeplug import Device, DeviceAllocate, DeviceId, DevicePrefer, Grant, InvalidRequest, NotFound, Part, ResourceName
from nodeplug_gpu import access
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.config import Replicas
from nodeplug_gpu.ids import by_card, card_key, unit_id, whole_of
from nodeplug_gpu.mps.client import client
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.placement import distributed
from nodeplug_gpu.pool import Pool, PoolMember
from nodeplug_gpu.properties import REPLICAS, card_attributes
from nodeplug_gpu.sharing.exclusive import numa_nodes


@dataclass(frozen=True, slots=True)
class TimeSlicing:
    """Advertises `replicas` of each card."""

    config: Replicas
    paths: access.NodePaths

    def devices(self, resource: ResourceName, pool: Pool) -> Sequence[Device]:
        """List every replica of every card."""
        del resource
        return [device for member in pool.members for device in self._replicas(member, pool.driver_version)]

    def _replicas(self, member: PoolMember, driver_version: str) -> Iterator[Device]:
        key, numa = card_key(member.card.uuid), numa_nodes(member.card.numa_node)
        part, attributes = self.part(unit_id(key, 0)), card_attributes(member.card, driver_version)
        for number in range(self.config.replicas):
            yield member.device(unit_id(key, number), part, attributes, numa)

    def part(self, name: DeviceId) -> Part:
        """Return what an id is a share of: a card, by its key."""
        return Part(whole_of(name), {REPLICAS: 1})

    def prefer(self, request: DevicePrefer, pool: Pool) -> Sequence[DeviceId]:
        """Prefer replicas of different cards."""
        del pool
        return distributed(request, self.config.policy)

    def allocate(self, request: DeviceAllocate, pool: Pool) -> Grant:
        """Allocate the cards of the replicas, each once.

        Raises:
            InvalidRequest: more than one is refused by configuration, as it would give no larger share.
            NotFound, NotReady: a card is no longer present, or not healthy.
        """
        # A claim may be for all of a card, or look at it; and a pod that is refused one would wait for ever.
        if self.config.refuse_more_than_one and len(request.ids) > 1 and request.claim is None:
            raise InvalidRequest(
                f"{len(request.ids)} of {request.resource} wanted: one replica already shares the whole card, and more "
                "give no larger share; ask for 1 (refuse_more_than_one = false allows it)"
            )
        check_numbers(request, self.config.replicas)
        keys = by_card(request.ids)
        members = {card_key(member.card.uuid): member for member in pool.members}
        if not keys or keys.keys() - members.keys():
            raise NotFound(f"{', '.join(request.ids[:1]) or 'no id'} names no card of {request.resource}")
        gpus = [access.GpuDevice(member.require_healthy()) for key, member in members.items() if key in keys]
        common = access.grant(self.config.access, gpus, self.paths)
        return Grant.merged([common, self._limits(request, gpus)])

    def _limits(self, request: DeviceAllocate, gpus: Sequence[access.GpuDevice]) -> Grant:
        if self.config.mps is None:
            return Grant()
        if len(gpus) > 1:
            raise InvalidRequest(
                f"{len(request.ids)} of {request.resource} wanted, on {len(gpus)} cards: a container can be a client "
                "of one MPS daemon only; ask for 1"
            )
        card, share = gpus[0].card, len(request.ids) / self.config.replicas
        folders = Folders.of(self.paths.run, card.uuid, self.paths.former)
        return client(folders, card, int(card.memory * share), share, threads=self.config.mps.thread_percentage)

    def by_card(self, ids: Iterable[DeviceId], pool: Pool) -> Mapping[Uuid, Sequence[DeviceId]]:
        """The id begins with the card's key."""
        return units_by_card(ids, pool)


def check_numbers(request: DeviceAllocate, count: int) -> None:
    """Check that ids are among the `count` units of a card.

    Raises:
        NotFound: one is not.
    """
    for name in request.ids:
        number = name.partition("-")[2]
        if not (number.isascii() and number.isdecimal() and int(number) < count):
            raise NotFound(f"{name} is not among the {count} units of its card; it may have been removed")


def units_by_card(ids: Iterable[DeviceId], pool: Pool) -> Mapping[Uuid, Sequence[DeviceId]]:
    """Group ids by the card whose key they begin with."""
    groups = by_card(ids)
    cards = {card_key(member.card.uuid): member.card.uuid for member in pool.members}
    return {cards[key]: names for key, names in groups.items() if key in cards}
