"""What containers hold, as kubelet tells it, before any way of sharing makes sense of it.

Owns: which card an id belongs to, whatever kind of thing the id was when it was granted.
Refuses: to be asked what is free (kubelet's offer says that), and foreign ids: those of no card that was ever sold.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nodeplug import DeviceId, Holding, Host, NotReady
from nodeplug_gpu.allocations import AllocationRecord
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.ids import card_key


@dataclass(frozen=True, slots=True)
class Held:
    """Who holds what.

    Attributes:
        holdings: by resource, as kubelet told last; empty while it does not.
        unknown: why it is not known who holds what; empty when it is.
        holders: by resource and card: one of the containers, for people.
        ids: by resource: everything held that belongs to a card, with the card.
    """

    holdings: Mapping[str, tuple[Holding, ...]] = field(default_factory=dict)
    unknown: str = ""
    holders: Mapping[tuple[str, Uuid], str] = field(default_factory=dict)
    ids: Mapping[str, Mapping[DeviceId, Uuid]] = field(default_factory=dict)

    def of(self, resource: str, card: Uuid) -> Sequence[DeviceId]:
        """Return what is held of a resource and belongs to a card."""
        return [name for name, owner in self.ids.get(resource, {}).items() if owner == card]


def ask(host: Host, resources: Iterable[str], sold: Iterable[AllocationRecord]) -> Held:
    """Ask who holds what of resources.

    Args:
        host: the daemon.
        resources: names, also such as are no longer offered.
        sold: every card that was sold.
    """
    try:
        holdings = {name: tuple(host.holders(name)) for name in resources}
    except NotReady as error:
        return Held(unknown=error.message)
    owners = _owners(sold)
    holders: dict[tuple[str, Uuid], str] = {}
    ids: dict[str, dict[DeviceId, Uuid]] = {}
    for name, told in holdings.items():
        for holding in told:
            for device in holding.ids:
                card = owners.get(device) or owners.get(device.partition("-")[0])
                if card is not None:
                    ids.setdefault(name, {})[device] = card
                    holders.setdefault((name, card), f"{holding.namespace}/{holding.pod}")
    return Held(holdings, "", holders, ids)


def _owners(sold: Iterable[AllocationRecord]) -> Mapping[str, Uuid]:
    """Return cards by everything that an id can begin with or be: its UUID, its key, an instance's UUID."""
    owners: dict[str, Uuid] = {}
    for one in sold:
        card = one.card
        owners |= {card.uuid: card.uuid, card_key(card.uuid): card.uuid}
        owners |= dict.fromkeys((*one.past, *(instance.uuid for instance in card.instances)), card.uuid)
    return owners
