"""Who holds what of which card.

Owns: the join of what kubelet tells (ids by container) with the cards.
Refuses: to be asked whether something is free: kubelet's offer says that, this is for people, metrics and limits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodeplug import DeviceId, Holding, ResourceName
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.config import Kind
from nodeplug_gpu.pool import Pool
from nodeplug_gpu.sharing import Sharing
from nodeplug_gpu.sharing.memory import MemorySharing


@dataclass(frozen=True, slots=True, order=True)
class Container:
    """A container, as podresources names it."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one container holds of one card.

    Attributes:
        ids: units, replicas, instances or the card itself.
        promised: bytes that it may use; None where nothing is promised (whole cards, replicas, instances).
        former: how the card was sold when it got it, where the resource is offered no more; None where it is.
    """

    who: Container
    resource: ResourceName
    card: Uuid
    ids: tuple[DeviceId, ...]
    allocated_bytes: int | None = None
    former: Kind | None = None


def former_uses(
    holdings: Iterable[Holding], cards: Mapping[DeviceId, Uuid], sharing: Kind, unit: int | None
) -> Sequence[Allocation]:
    """Return what containers hold by a name that is offered no more.

    Args:
        holdings: of that resource.
        cards: by id, of what belongs to one.
        sharing: how it was sold.
        unit: bytes of a unit, where it was sold by units.
    """
    found = []
    for holding in holdings:
        who = Container(holding.namespace, holding.pod, holding.container)
        for card in sorted({cards[name] for name in holding.ids if name in cards}):
            ids = tuple(name for name in holding.ids if cards.get(name) == card)
            found.append(Allocation(who, holding.resource, card, ids, len(ids) * unit if unit else None, sharing))
    return found


def uses(holdings: Iterable[Holding], sharing: Sharing, pool: Pool) -> Sequence[Allocation]:
    """Return what containers hold of one entry's cards; ids that belong to no card of it are left out."""
    found = []
    for holding in holdings:
        who = Container(holding.namespace, holding.pod, holding.container)
        for card, ids in sharing.by_card(holding.ids, pool).items():
            promised = len(ids) * sharing.unit if isinstance(sharing, MemorySharing) else None
            found.append(Allocation(who, holding.resource, card, tuple(ids), promised))
    return found


def by_card(all_uses: Iterable[Allocation]) -> Mapping[Uuid, Sequence[Allocation]]:
    """Group by card."""
    groups: dict[Uuid, list[Allocation]] = {}
    for use in all_uses:
        groups.setdefault(use.card, []).append(use)
    return groups
