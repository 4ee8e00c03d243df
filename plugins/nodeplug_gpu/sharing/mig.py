"""MIG instances as devices.

Owns: a device per instance, named by its UUID, under one name or a name per profile.
Refuses: to create or destroy instances; those that do not fit the strategy are reported as not advertised.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nodeplug import Device, DeviceAllocate, DeviceId, DevicePrefer, Grant, NotFound, ResourceName
from nodeplug_gpu import access
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.config import Mig
from nodeplug_gpu.placement import packed
from nodeplug_gpu.pool import Pool, PoolMember
from nodeplug_gpu.sharing.exclusive import numa_nodes


@dataclass(frozen=True, slots=True)
class MigInstances:
    """Advertises the instances of cards in MIG mode (strategies `single` and `mixed`)."""

    config: Mig
    paths: access.NodePaths

    def devices(self, resource: ResourceName, pool: Pool) -> Sequence[Device]:
        """List every instance of the resource.

        Raises:
            NotFound: no card has an instance of the resource's profiles.
        """
        found = [
            Device(
                DeviceId(gpu.uuid),
                healthy=not member.reason_of(gpu.instance),
                reason=member.reason_of(gpu.instance),
                numa_nodes=numa_nodes(member.card.numa_node),
            )
            for member, gpu in _mig_devices(pool)
            if self._advertises(resource, gpu, pool)
        ]
        if not found:
            raise NotFound(f"no MIG instance for {resource}: {self._why_none(pool)}")
        return found

    def prefer(self, request: DevicePrefer, pool: Pool) -> Sequence[DeviceId]:
        """Choose instances of as few cards as possible."""
        return packed(request, {DeviceId(gpu.uuid): gpu.card.uuid for _, gpu in _mig_devices(pool)})

    def allocate(self, request: DeviceAllocate, pool: Pool) -> Grant:
        """Allocate the instances.

        Raises:
            NotFound, NotReady: one of them is no longer present, or it or its card is not healthy.
        """
        wanted = set(request.ids)
        found = [(member, gpu) for member, gpu in _mig_devices(pool) if gpu.uuid in wanted]
        for member, gpu in found:
            member.require_healthy(gpu.instance)
            wanted.discard(DeviceId(gpu.uuid))
        if wanted:
            raise NotFound(
                f"{min(wanted)} is not among the instances of {request.resource}; it may have been destroyed"
            )
        gpus = [gpu for _, gpu in found]
        return access.grant(self.config.access, gpus, self.paths)

    def by_card(self, ids: Iterable[DeviceId], pool: Pool) -> Mapping[Uuid, Sequence[DeviceId]]:
        """Group instances by the card that has them."""
        cards = {gpu.uuid: gpu.card.uuid for _, gpu in _mig_devices(pool)}
        groups: dict[Uuid, list[DeviceId]] = {}
        for name in ids:
            if name in cards:
                groups.setdefault(cards[name], []).append(name)
        return groups

    def unadvertised(self, pool: Pool) -> Sequence[str]:
        """Return why instances are not advertised, as sentences."""
        if self.config.strategy == "mixed":
            missing = sorted({_profile(gpu) for _, gpu in _mig_devices(pool)} - self.config.profiles.keys())
            return [
                f"instances of profile {name} are not advertised: `profiles` has no resource for it" for name in missing
            ]
        profiles = sorted({_profile(gpu) for _, gpu in _mig_devices(pool)})
        if len(profiles) > 1:
            return [f"no instance is advertised: strategy 'single' needs one profile, there are {', '.join(profiles)}"]
        return []

    def resource_of(self, profile: str, pool: Pool) -> str | None:
        """Return the resource under which instances of a profile are advertised; None if they are not."""
        if self.config.strategy == "mixed":
            return self.config.profiles.get(profile)
        return None if self.unadvertised(pool) else self.config.resource

    def _advertises(self, resource: ResourceName, gpu: access.GpuDevice, pool: Pool) -> bool:
        return self.resource_of(_profile(gpu), pool) == resource

    def _why_none(self, pool: Pool) -> str:
        if not pool.members:
            return "none of its cards is in MIG mode"
        return "; ".join(self.unadvertised(pool)) or "the cards have no instance of its profiles"


def _mig_devices(pool: Pool) -> Iterator[tuple[PoolMember, access.GpuDevice]]:
    for member in pool.members:
        for instance in member.card.instances:
            yield member, access.GpuDevice(member.card, instance)


def _profile(gpu: access.GpuDevice) -> str:
    return gpu.instance.profile if gpu.instance is not None else ""
