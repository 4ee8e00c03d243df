"""MIG instances as devices.

Owns: a device per instance, named by its UUID, under one name or a name per profile.
Refuses: to make or destroy instances; cards whose instances do not fit the strategy are said to be unsold.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nodeplug import Device, DeviceAllocate, DeviceId, DevicePrefer, Grant, NotFound, ResourceName
from nodeplug_gpu import access
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.config import Mig
from nodeplug_gpu.placement import together
from nodeplug_gpu.pool import Pool, PoolMember
from nodeplug_gpu.sharing.exclusive import numa_nodes


@dataclass(frozen=True, slots=True)
class MigInstances:
    """Sells the instances of cards in MIG mode (strategies `single` and `mixed`)."""

    config: Mig
    paths: access.NodePaths

    def devices(self, resource: ResourceName, pool: Pool) -> Sequence[Device]:
        """List every instance that the resource sells.

        Raises:
            NotFound: no card has an instance of the resource's profiles.
        """
        found = [
            Device(DeviceId(part.uuid), member.healthy, member.reason, numa_nodes(member.card.numa_node))
            for member, part in _parts(pool)
            if self._advertises(resource, part, pool)
        ]
        if not found:
            raise NotFound(f"no MIG instance for {resource}: {self._why_none(pool)}")
        return found

    def prefer(self, request: DevicePrefer, pool: Pool) -> Sequence[DeviceId]:
        """Fill cards: instances of as few cards as possible."""
        return together(request, {DeviceId(part.uuid): part.card.uuid for _, part in _parts(pool)})

    def allocate(self, request: DeviceAllocate, pool: Pool) -> Grant:
        """Grant the instances.

        Raises:
            NotFound, NotReady: one of them is not there any more, or its card is not well.
        """
        wanted = set(request.ids)
        found = [(member, part) for member, part in _parts(pool) if part.uuid in wanted]
        for member, part in found:
            member.require_healthy()
            wanted.discard(DeviceId(part.uuid))
        if wanted:
            raise NotFound(
                f"{min(wanted)} is not among the instances of {request.resource}; it may have been destroyed"
            )
        parts = [part for _, part in found]
        return access.grant(self.config.access, parts, self.paths)

    def by_card(self, ids: Iterable[DeviceId], pool: Pool) -> Mapping[Uuid, Sequence[DeviceId]]:
        """Group instances by the card that has them."""
        cards = {part.uuid: part.card.uuid for _, part in _parts(pool)}
        groups: dict[Uuid, list[DeviceId]] = {}
        for name in ids:
            if name in cards:
                groups.setdefault(cards[name], []).append(name)
        return groups

    def unadvertised(self, pool: Pool) -> Sequence[str]:
        """Return why instances are not sold, for people."""
        if self.config.strategy == "mixed":
            missing = sorted({_profile(part) for _, part in _parts(pool)} - self.config.profiles.keys())
            return [f"instances of profile {name} are not sold: `profiles` has no resource for it" for name in missing]
        profiles = sorted({_profile(part) for _, part in _parts(pool)})
        if len(profiles) > 1:
            return [f"no instance is sold: strategy 'single' needs one profile, there are {', '.join(profiles)}"]
        return []

    def resource_of(self, profile: str, pool: Pool) -> str | None:
        """Return the resource that an instance of a profile is sold as; None for none."""
        if self.config.strategy == "mixed":
            return self.config.profiles.get(profile)
        return None if self.unadvertised(pool) else self.config.resource

    def _advertises(self, resource: ResourceName, part: access.Part, pool: Pool) -> bool:
        return self.resource_of(_profile(part), pool) == resource

    def _why_none(self, pool: Pool) -> str:
        if not pool.members:
            return "no card that it may sell is in MIG mode"
        return "; ".join(self.unadvertised(pool)) or "the cards have no instance of its profiles"


def _parts(pool: Pool) -> Iterator[tuple[PoolMember, access.Part]]:
    for member in pool.members:
        for instance in member.card.instances:
            yield member, access.Part(member.card, instance)


def _profile(part: access.Part) -> str:
    return part.instance.profile if part.instance is not None else ""
