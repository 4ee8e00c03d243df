"""Devices of our resources that another device plugin has given to containers which still run.

Kubelet remembers ids, whoever listed them, and goes on reporting them once the resource is ours: what such a container
uses of a card must not be sold again.
Owns: which ids are not of their entry, which card they mean, whichever entry has it now, and for how long it waits.
Refuses: what is not on the machine (`allocations` knows that of our own cards), and to guess: gpushare's ids name a
card, but not the one that its container has.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nodeplug import DeviceId, Holding
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Memory, Mig, Replicas, Resource, resource_names
from nodeplug_gpu.holders import holder_of
from nodeplug_gpu.ids import replica_number, whole

_GPUSHARE: Final = "-_-"
"""Between a UUID and a number; the UUID is not the one of the container's card (gpushare-device-plugin, nvidia.go)."""


class _Holder(NamedTuple):
    who: str
    name: DeviceId
    seen: float


def _in_words(holding: Holding) -> str:
    """Return `pod namespace/name`, or `claim namespace/name`: the devices of a claim may be those of other settings."""
    who = holder_of(holding)
    return who.pod_in_words if who.claim else f"pod {who.pod_in_words}"


@dataclass(slots=True)
class ForeignDevices:
    """What other plugins have given, as long as it may be held.

    Attributes:
        grace: seconds without a holder after which there is none.
        clock: seconds of one that never goes back.
    """

    grace: float
    clock: Callable[[], float]
    _by_card: dict[Uuid, _Holder] = field(default_factory=dict)
    _by_resource: dict[str, _Holder] = field(default_factory=dict)

    def note(
        self,
        entries: Iterable[Resource],
        holdings: Mapping[str, Sequence[Holding]],
        cards: Sequence[Card],
        assigned: Mapping[str, Sequence[Card]],
    ) -> None:
        """Take note of what kubelet reports. Without cards nothing can be said of any: what was noted stays.

        Args:
            entries: of the configuration.
            holdings: by resource; empty while kubelet does not answer.
            cards: of the machine.
            assigned: those of each entry, by its main resource.
        """
        if not cards:
            return
        now, machine = self.clock(), _Machine.of(cards)
        self._by_card = {uuid: one for uuid, one in self._by_card.items() if now - one.seen <= self.grace}
        self._by_resource = {name: one for name, one in self._by_resource.items() if now - one.seen <= self.grace}
        for entry in entries:
            mine = {card.uuid for card in assigned.get(entry.resource, ())}
            names = [entry.resource] if isinstance(entry, Memory) else resource_names(entry)
            for holding in (one for name in names for one in holdings.get(name, ())):
                for name in holding.ids:
                    holder = _Holder(_in_words(holding), name, now)
                    if (owner := machine.owner(name)) is not None:
                        if not machine.lists(entry, mine, name):
                            self._by_card[owner] = holder
                    elif machine.hides_its_card(name):
                        self._by_resource[entry.resource] = holder

    def reason(self, resource: str, uuid: Uuid) -> str:
        """Return why a card must not be allocated, by an entry's main resource; empty when it may."""
        if (one := self._by_card.get(uuid)) is not None:
            return f"{one.who} has it from another device plugin ({one.name}); it is free once that has ended"
        if (one := self._by_resource.get(resource)) is not None:
            return (
                f"{one.who} has {resource} from another device plugin ({one.name}), which does not tell of which "
                "card; all are free once the last such pod has ended: drain the node"
            )
        return ""


@dataclass(frozen=True, slots=True)
class _Machine:
    """The cards that there are.

    Attributes:
        owners: the card of each UUID, its own and those of its instances.
        profiles: of each instance.
    """

    owners: Mapping[str, Uuid]
    profiles: Mapping[str, str]

    @classmethod
    def of(cls, cards: Sequence[Card]) -> "_Machine":
        owners = {str(uuid): card.uuid for card in cards for uuid in (card.uuid, *(one.uuid for one in card.instances))}
        return cls(owners, {str(one.uuid): one.profile for card in cards for one in card.instances})

    def owner(self, name: DeviceId) -> Uuid | None:
        """Return the card that an id names, whole or as a replica; None for ids of units, and of what is not here."""
        return self.owners.get(whole(name))

    def hides_its_card(self, name: DeviceId) -> bool:
        """Whether an id is one of those that name a card, but not that of their container, as gpushare's and HAMi's."""
        return name.startswith("GPU-") and (_GPUSHARE in name or name.rpartition("-")[0] in self.owners)

    def lists(self, entry: Resource, mine: Collection[Uuid], name: DeviceId) -> bool:
        """Whether an entry lists this very id, with the cards that it has."""
        if isinstance(entry, Memory | Replicas) or self.owners[whole(name)] not in mine:
            return False
        number, profile = replica_number(name), self.profiles.get(whole(name))
        if profile is None:
            return name in self.owners and (not isinstance(entry, Mig) or entry.strategy == "none")
        if not isinstance(entry, Mig) or entry.strategy == "none":
            return False
        replicas = entry.replicas_of(profile)
        return replicas == 1 if number is None else number < replicas != 1
