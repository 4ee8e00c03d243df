"""MIG instances as devices.

Owns: a device per instance, named by its UUID, or one per replica of it, under one name or a name per profile.
Refuses: to create or destroy instances; those that do not fit the strategy are reported as not advertised.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nodeplug import Device, DeviceAllocate, DeviceId, DevicePrefer, Grant, InvalidRequest, NotFound, Part, ResourceName
from nodeplug_gpu import access
from nodeplug_gpu.cards import MigInstance, Uuid
from nodeplug_gpu.config import Mig
from nodeplug_gpu.ids import replica_id, replica_number, whole
from nodeplug_gpu.placement import distributed, packed
from nodeplug_gpu.pool import Pool, PoolMember
from nodeplug_gpu.profiles import first_match
from nodeplug_gpu.properties import REPLICAS, capacity, instance_attributes
from nodeplug_gpu.sharing.exclusive import numa_nodes


@dataclass(frozen=True, slots=True)
class MigInstances:
    """Advertises the instances of cards in MIG mode (strategies `single` and `mixed`)."""

    config: Mig
    paths: access.NodePaths

    def devices(self, resource: ResourceName, pool: Pool) -> Sequence[Device]:
        """List every instance of the resource, or its replicas.

        Raises:
            NotFound: no card has an instance of the resource's profiles.
        """
        found = [
            device
            for member in pool.members
            for instance in member.card.instances
            if self.resource_of(instance.profile, pool) == resource
            for device in self._devices_of(member, instance, pool.driver_version)
        ]
        if not found:
            raise NotFound(f"no MIG instance for {resource}: {self._why_none(pool)}")
        return found

    def _devices_of(self, member: PoolMember, instance: MigInstance, driver_version: str) -> Iterator[Device]:
        """Yield an instance, or its replicas."""
        reason, numa = member.reason_of(instance), numa_nodes(member.card.numa_node)
        attributes = instance_attributes(member.card, instance, driver_version)
        ids = self._ids(access.GpuDevice(member.card, instance))
        part = self.part(ids[0])
        size = capacity(instance.memory) if part is None else {}
        for name in ids:
            yield Device(
                name,
                healthy=not reason,
                reason=reason,
                numa_nodes=numa,
                attributes=attributes,
                capacity=size,
                part=part,
            )

    def part(self, name: DeviceId) -> Part | None:
        """Return of which instance an id is a replica; None for an instance."""
        return None if replica_number(name) is None else Part(whole(name), {REPLICAS: 1})

    def prefer(self, request: DevicePrefer, pool: Pool) -> Sequence[DeviceId]:
        """Choose instances of as few cards as possible; replicas of different instances."""
        if any(replica_number(name) is not None for name in request.available):
            return distributed(request, self.config.policy, _by_instance)
        return packed(request, {DeviceId(gpu.uuid): gpu.card.uuid for _, gpu in _mig_devices(pool)})

    def allocate(self, request: DeviceAllocate, pool: Pool) -> Grant:
        """Allocate the instances.

        Raises:
            InvalidRequest: more than one replica is refused by configuration, as it would give no larger share.
            NotFound, NotReady: one of them is no longer present, or it or its card is not healthy.
        """
        replicas = any(replica_number(name) is not None for name in request.ids)
        # As for replicas of a card: not for claims, which may be for all of it, and whose pods would wait for ever.
        if replicas and self.config.refuse_more_than_one and len(request.ids) > 1 and request.claim is None:
            raise InvalidRequest(
                f"{len(request.ids)} of {request.resource} wanted: one replica already shares the whole instance, and "
                "more give no larger share; ask for 1 (refuse_more_than_one = false allows it)"
            )
        wanted = set(request.ids)
        gpus = []
        for member, gpu in _mig_devices(pool):
            if mine := wanted.intersection(self._ids(gpu)):
                member.require_healthy(gpu.instance)
                gpus.append(gpu)
                wanted -= mine
        if wanted:
            raise NotFound(
                f"{min(wanted)} is not among the instances of {request.resource}; it may have been destroyed"
            )
        return access.grant(self.config.access, gpus, self.paths)

    def by_card(self, ids: Iterable[DeviceId], pool: Pool) -> Mapping[Uuid, Sequence[DeviceId]]:
        """Group instances by the card that has them."""
        cards = {gpu.uuid: gpu.card.uuid for _, gpu in _mig_devices(pool)}
        groups: dict[Uuid, list[DeviceId]] = {}
        for name in ids:
            if (instance := whole(name)) in cards:
                groups.setdefault(cards[instance], []).append(name)
        return groups

    def unadvertised(self, pool: Pool) -> Sequence[str]:
        """Return why instances are not advertised, as sentences."""
        profiles = sorted({_profile(gpu) for _, gpu in _mig_devices(pool)})
        if self.config.strategy == "mixed":
            missing = [name for name in profiles if first_match(self.config.names, name) is None]
            return [
                f"instances of profile {name} are not advertised: `profiles` has no resource for it" for name in missing
            ]
        why = _why_not_uniform(pool, profiles)
        return [f"no instance is advertised: strategy 'single' needs {why}"] if why else []

    def resource_of(self, profile: str, pool: Pool) -> str | None:
        """Return the resource under which instances of a profile are advertised; None if they are not."""
        if self.config.strategy == "mixed":
            return first_match(self.config.names, profile)
        return None if self.unadvertised(pool) else self.config.resource

    def units(self, member: PoolMember) -> int:
        """Return as how many devices the instances of a card are advertised."""
        return sum(self.config.replicas_of(one.profile) for one in member.card.instances)

    def _ids(self, gpu: access.GpuDevice) -> Sequence[DeviceId]:
        """Return the ids of an instance."""
        replicas = self.config.replicas_of(_profile(gpu))
        if replicas == 1:
            return [DeviceId(gpu.uuid)]
        return [replica_id(Uuid(gpu.uuid), number) for number in range(replicas)]

    def _why_none(self, pool: Pool) -> str:
        if not pool.members:
            return "none of its cards is in MIG mode"
        return "; ".join(self.unadvertised(pool)) or "the cards have no instance of its profiles"


def _why_not_uniform(pool: Pool, profiles: Sequence[str]) -> str:
    """Return what is missing for the strategy `single`, as NVIDIA defines it; empty where nothing is.

    Its cards are all in MIG mode, each has instances, all of one profile (NVIDIA, "MIG Support in Kubernetes").
    """
    if pool.members and pool.undivided:
        return (
            f"all its cards in MIG mode, and {', '.join(pool.undivided)} is not: switch it on there, or choose by "
            "`cards` which cards the entry has"
        )
    empty = [member.card.uuid for member in pool.members if not member.card.instances]
    if profiles and empty:
        return f"instances on each of its cards, and {', '.join(empty)} has none"
    return f"one profile, there are {', '.join(profiles)}" if len(profiles) > 1 else ""


def _by_instance(ids: Iterable[DeviceId]) -> Mapping[str, list[DeviceId]]:
    """Group replicas by the instance that they are of."""
    groups: dict[str, list[DeviceId]] = {}
    for name in ids:
        groups.setdefault(whole(name), []).append(name)
    return groups


def _mig_devices(pool: Pool) -> Iterator[tuple[PoolMember, access.GpuDevice]]:
    for member in pool.members:
        for instance in member.card.instances:
            yield member, access.GpuDevice(member.card, instance)


def _profile(gpu: access.GpuDevice) -> str:
    return gpu.instance.profile if gpu.instance is not None else ""
