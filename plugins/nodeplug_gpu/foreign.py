"""Devices of our resources that another device plugin has given to containers which still run.

Kubelet remembers ids, whoever listed them, and goes on reporting them once the resource is ours: what such a container
uses of a card must not be sold again.
Owns: which ids cannot be ours, which card they mean, and for how long a card waits for them.
Refuses: whole cards and instances, whose ids are the same here (`allocations` knows them), and to guess: gpushare's ids
name a card, but not the one that its container has.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nodeplug import DeviceId, Holding
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Memory, Mig, Replicas, Resource, resource_names
from nodeplug_gpu.ids import replica_number, whole

_REPLICA: Final = re.compile(r"(.+)::[0-9]+")
"""Of a card or an instance, as NVIDIA's plugin names replicas (k8s-device-plugin, internal/rm)."""


class _Holder(NamedTuple):
    pod: str
    name: DeviceId
    seen: float


@dataclass(slots=True)
class ForeignDevices:
    """What other plugins have given, as long as it may be held.

    Attributes:
        grace: seconds without a holder after which there is none.
        clock: seconds of one that never goes back.
    """

    grace: float
    clock: Callable[[], float]
    _holders: dict[tuple[str, Uuid | None], _Holder] = field(default_factory=dict)

    def note(
        self, entries: Iterable[Resource], holdings: Mapping[str, Sequence[Holding]], cards: Iterable[Card]
    ) -> None:
        """Take note of what kubelet reports.

        Args:
            entries: of the configuration.
            holdings: by resource; empty while kubelet does not answer.
            cards: of the machine.
        """
        cards = tuple(cards)
        owners = {uuid: card.uuid for card in cards for uuid in (card.uuid, *(one.uuid for one in card.instances))}
        profiles = {one.uuid: one.profile for card in cards for one in card.instances}
        now = self.clock()
        self._holders = {place: one for place, one in self._holders.items() if now - one.seen <= self.grace}
        for entry in entries:
            names = [entry.resource] if isinstance(entry, Memory) else resource_names(entry)
            for holding in (one for name in names for one in holdings.get(name, ())):
                for name in holding.ids:
                    if (named := _foreign(entry, name, profiles)) is not None:
                        place = entry.resource, owners.get(Uuid(named))
                        self._holders[place] = _Holder(f"{holding.namespace}/{holding.pod}", name, now)

    def reason(self, resource: str, uuid: Uuid) -> str:
        """Return why a card must not be allocated, by an entry's main resource; empty when it may."""
        if (one := self._holders.get((resource, uuid))) is not None:
            return f"pod {one.pod} has it from another device plugin ({one.name}); it is free once that pod has ended"
        if (one := self._holders.get((resource, None))) is not None:
            return (
                f"pod {one.pod} has {resource} from another device plugin ({one.name}), which does not tell of which "
                "card; all are free once the last such pod has ended: drain the node"
            )
        return ""


def _foreign(entry: Resource, name: DeviceId, profiles: Mapping[Uuid, str]) -> str | None:
    """Return the UUID that an id means which this entry cannot have listed, empty where it tells none; else None."""
    if isinstance(entry, Mig) and (profile := profiles.get(Uuid(whole(name)))) is not None:
        return None if _lists(entry.replicas_of(profile), replica_number(name)) else whole(name)
    if (replica := _REPLICA.fullmatch(name)) is not None:
        return replica[1]
    if isinstance(entry, Memory | Replicas):
        return name if name.startswith(("GPU-", "MIG-")) else None
    return None


def _lists(replicas: int, number: int | None) -> bool:
    """Whether an instance that is so many devices has one of a number; None is the instance itself."""
    return replicas == 1 if number is None else number < replicas != 1
