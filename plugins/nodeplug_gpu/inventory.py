"""Everything that is known about the node's cards at one moment.

Owns: one immutable value, and what kubelet is told from it: the devices of a resource, or why there are none.
Refuses: to learn anything (the shop makes a new one at each look).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeplug import Device, DeviceId, NotFound, NotReady, ResourceName
from nodeplug_gpu import ledger
from nodeplug_gpu.cards import Snapshot, Uuid
from nodeplug_gpu.health import Condition
from nodeplug_gpu.ids import by_card, card_key
from nodeplug_gpu.pool import Entry, Pool, PoolMember
from nodeplug_gpu.sharing import Sharing

GONE: Final = "it was there and is gone"
FEWER: Final = "its card is divided into fewer units now"


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything that is known at one moment.

    Attributes:
        snapshot: the driver's last look.
        pools: by the entry's main resource.
        conditions: by card.
        uses: who holds what, of all entries.
        unknown: why it is not known who holds what; empty when it is.
        sharings: how each entry sells, by its main resource; missing while its unit is not known.
        orphaned: ids that containers hold and that are no longer sold, by resource; listed as unhealthy.
        faults: why a card is not sold although the configuration chooses it.
        section_conflicts: which other section sells a card that the configuration chooses.
        held: cards that containers hold, however they were sold, or were granted a moment ago.
        waiting: why a card is not sold yet that another section has sold and gave up.
        former: why a card is not sold yet that may still be held as it was sold before.
    """

    snapshot: Snapshot = field(default_factory=Snapshot)
    pools: Mapping[str, Pool] = field(default_factory=dict)
    conditions: Mapping[Uuid, Condition] = field(default_factory=dict)
    allocations: tuple[ledger.Allocation, ...] = ()
    allocations_unknown: str = ""
    sharings: Mapping[str, Sharing] = field(default_factory=dict)
    orphaned: Mapping[str, tuple[DeviceId, ...]] = field(default_factory=dict)
    entry_conflicts: Mapping[Uuid, str] = field(default_factory=dict)
    section_conflicts: Mapping[Uuid, str] = field(default_factory=dict)
    allocated: frozenset[Uuid] = frozenset()
    reserved: Mapping[Uuid, str] = field(default_factory=dict)
    draining: Mapping[Uuid, str] = field(default_factory=dict)

    @property
    def config_error(self) -> str:
        """Why the section's configuration cannot be right on this machine, as one text; empty when it can."""
        return "; ".join(self.entry_conflicts.values())

    @property
    def conflict(self) -> str:
        """All that is wrong with the configurations on this machine, as one text; empty when nothing is."""
        return "; ".join((*self.entry_conflicts.values(), *self.section_conflicts.values()))

    def members_of(self, resource: str) -> Sequence[PoolMember]:
        """Return the members of an entry, by its main resource."""
        return self.pools.get(resource, Pool()).members

    def devices(self, entry: Entry, resource: ResourceName) -> Sequence[Device]:
        """List the devices of one of an entry's resources.

        Raises:
            NotFound: this node has nothing for it.
            NotReady: the driver has not answered yet; what was listed before is as good as ever.
        """
        orphaned = [
            Device(name, healthy=False, reason=self._why_gone(name)) for name in self.orphaned.get(resource, ())
        ]
        try:
            sharing, pool = self.advertised(entry, resource)
            return [*sharing.devices(resource, pool), *orphaned]
        except NotFound:
            if orphaned:
                return orphaned
            raise

    def _why_gone(self, name: DeviceId) -> str:
        """Return why a unit that somebody holds is not sold; its card may be as well as ever."""
        here = {card_key(card.uuid) for card in self.snapshot.cards} if self.snapshot.state == "running" else set()
        return FEWER if here & by_card([name]).keys() else GONE

    def advertised(self, entry: Entry, resource: ResourceName) -> tuple[Sharing, Pool]:
        """Return how an entry sells, and what.

        Raises:
            NotFound: this node has no card for it.
            NotReady: that is not known yet.
        """
        if self.snapshot.state == "starting":
            raise NotReady(f"the devices of {resource} are not known yet: the driver has not answered")
        sharing, pool = self.sharings.get(entry.resource), self.pools.get(entry.resource, Pool())
        if sharing is None or not pool.members:
            why = (
                self.snapshot.reason
                if self.snapshot.state != "running"
                else self.conflict or "; ".join(self.reserved.values()) or "no card is for it"
            )
            raise NotFound(f"there is nothing to offer as {resource}: {why}")
        return sharing, pool
