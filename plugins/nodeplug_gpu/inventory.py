"""Everything that is known about the node's cards at one moment.

Owns: one immutable value, and what is listed to kubelet from it: the devices of a resource, or why there are none.
Refuses: updates (the tracker makes a new one at each).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeplug import Device, DeviceId, NotFound, NotReady, ResourceName
from nodeplug_gpu.allocations import Allocation
from nodeplug_gpu.cards import Snapshot, Uuid
from nodeplug_gpu.config import Resource
from nodeplug_gpu.health import GONE, Condition
from nodeplug_gpu.ids import by_card, card_key
from nodeplug_gpu.pool import Pool, PoolMember
from nodeplug_gpu.sharing import Sharing

FEWER: Final = "its card has fewer units now"


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything that is known at one moment.

    Attributes:
        snapshot: the driver's latest.
        pools: by the entry's main resource.
        conditions: by card, and by MIG instance.
        allocations: of all entries.
        allocations_unknown: why allocations are not known; empty when they are.
        sharings: how each entry shares its cards, by its main resource; missing while its unit is not known.
        orphaned: ids that containers hold and that are no longer advertised, by resource; listed as unhealthy.
        conflicts: why a card is not advertised although the configuration chooses it.
        allocated: cards that containers hold, however they were shared, or were allocated a moment ago.
        draining: why a card that may still be allocated in another way is not allocatable yet.
        unindexed: why a card is not chosen by the index that NVML gives it.
    """

    snapshot: Snapshot = field(default_factory=Snapshot)
    pools: Mapping[str, Pool] = field(default_factory=dict)
    conditions: Mapping[Uuid, Condition] = field(default_factory=dict)
    allocations: tuple[Allocation, ...] = ()
    allocations_unknown: str = ""
    sharings: Mapping[str, Sharing] = field(default_factory=dict)
    orphaned: Mapping[str, tuple[DeviceId, ...]] = field(default_factory=dict)
    conflicts: Mapping[Uuid, str] = field(default_factory=dict)
    allocated: frozenset[Uuid] = frozenset()
    draining: Mapping[Uuid, str] = field(default_factory=dict)
    unindexed: Mapping[Uuid, str] = field(default_factory=dict)

    @property
    def conflict(self) -> str:
        """Why the section's configuration cannot be right on this machine, as one text; empty when it can."""
        return "; ".join(self.conflicts.values())

    def members_of(self, resource: str) -> Sequence[PoolMember]:
        """Return the pool of an entry, by its main resource."""
        return self.pools.get(resource, Pool()).members

    def devices(self, entry: Resource, resource: ResourceName) -> Sequence[Device]:
        """List the devices of one of an entry's resources.

        Raises:
            NotFound: this node has nothing for it.
            NotReady: the driver has not answered yet; what was listed before is still valid.
        """
        names = self.orphaned.get(resource, ())
        try:
            sharing, pool = self.advertised(entry, resource)
            listed = sharing.devices(resource, pool)
        except NotFound:
            if not names:
                raise
            listed = ()
        return [*listed, *self._orphans(entry, names, listed)] if names else listed

    def _orphans(self, entry: Resource, names: Sequence[DeviceId], listed: Sequence[Device]) -> Iterator[Device]:
        """Yield what containers hold and is no longer advertised: a part has the properties of those that are."""
        sharing = self.sharings.get(entry.resource)
        known = {one.part.of: one.attributes for one in listed if one.part is not None}
        for name in names:
            part = sharing.part(name) if sharing is not None else None
            attributes = known.get(part.of, {}) if part is not None else {}
            yield Device(name, healthy=False, reason=self._orphan_reason(name), attributes=attributes, part=part)

    def _orphan_reason(self, name: DeviceId) -> str:
        """Return why an id that a container holds is no longer advertised; its card may be healthy."""
        here = {card_key(card.uuid) for card in self.snapshot.cards} if self.snapshot.state == "running" else set()
        return FEWER if here & by_card([name]).keys() else GONE

    def advertised(self, entry: Resource, resource: ResourceName) -> tuple[Sharing, Pool]:
        """Return how an entry shares its cards, and which.

        Raises:
            NotFound: this node has no card for it.
            NotReady: that is not known yet.
        """
        if self.snapshot.state == "starting":
            raise NotReady(f"the devices of {resource} are not known yet: the driver has not answered")
        sharing, pool = self.sharings.get(entry.resource), self.pools.get(entry.resource, Pool())
        if sharing is None or not pool.members:
            raise NotFound(f"there is no device to advertise as {resource}: {self._why_none(pool)}")
        return sharing, pool

    def _why_none(self, pool: Pool) -> str:
        if self.snapshot.state != "running":
            return self.snapshot.reason
        reasons = [f"{member.card.uuid}: {member.reason}" for member in pool.members if member.reason]
        return self.conflict or "; ".join(reasons) or "no card is assigned to it"
