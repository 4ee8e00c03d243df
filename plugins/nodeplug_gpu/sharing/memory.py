"""Units of a card's memory; every container is on one card.

Owns: the units of each card, the choice of the card, the check that a container's units are of one, and the
environment that images for gpushare read.
Refuses: to enforce what was promised (MPS and the overuse watch do), and NUMA topology: kubelet would take the units of
a node without asking which card they are of.

The ids that kubelet hands out are the truth about who has how much of which card. Nothing is kept here beside them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeplug import (
    Device,
    DeviceAllocate,
    DeviceId,
    DevicePrefer,
    Exhausted,
    Grant,
    InvalidRequest,
    NotFound,
    ResourceName,
)
from nodeplug_gpu import access
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.config import Memory
from nodeplug_gpu.ids import CardKey, by_card, card_key, unit_id
from nodeplug_gpu.mps.client import client
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.placement import on_one_card
from nodeplug_gpu.pool import Offer, Stock
from nodeplug_gpu.sharing.replicas import check_numbers, units_by_card

_COUNT: Final = "count"
MOST_UNITS: Final = 32_000
"""Of one resource: with ids of 14 characters and nothing healthy, these are 0.93 MB; the daemon sends 1 MiB at most,
so that kubelet's limit of 4 MiB holds for what else carries every id."""


def unit_for(config: Memory, cards: Collection[int]) -> int:
    """Return the size of a unit in bytes: the configured one, or the smallest multiple that keeps the list short.

    Args:
        config: the entry.
        cards: bytes of each card.
    """
    units = [max(memory - config.reserve, 0) // config.unit for memory in cards]
    # floor(n / t) <= m is n // (m + 1) < t; together, each card may lose a part of a unit.
    times = max(
        1, max(units, default=0) // (config.max_units_per_card + 1) + 1, sum(units) // (MOST_UNITS + len(units))
    )
    while sum(count // times for count in units) > MOST_UNITS:
        times += 1
    return config.unit * times


@dataclass(slots=True)
class MemorySharing:
    """Sells memory by the unit.

    Attributes:
        config: the entry.
        paths: where device nodes are.
        unit: bytes of a unit, at least the configured size.
    """

    config: Memory
    paths: access.NodePaths
    unit: int
    _free: Mapping[CardKey, int] = field(default_factory=dict)
    _listed: tuple[Stock, Sequence[Device]] = (Stock(), ())

    def units(self, offer: Offer) -> int:
        """Return how many units a card has."""
        return max(offer.card.memory - self.config.reserve, 0) // self.unit

    def devices(self, resource: ResourceName, stock: Stock) -> Sequence[Device]:
        """List every unit of every card; for the counting resource, every card.

        Raises:
            NotFound: no card has room for a single unit.
        """
        if resource == self.config.count_resource:
            return [
                Device(DeviceId(f"{_COUNT}-{card_key(offer.card.uuid)}"), offer.healthy, offer.reason)
                for offer in stock.offers
            ]
        known, units = self._listed
        if known != stock:
            units = self._units(resource, stock)
            self._listed = (stock, units)
        return units

    def _units(self, resource: ResourceName, stock: Stock) -> Sequence[Device]:
        units = [
            offer.device(unit_id(card_key(offer.card.uuid), number))
            for offer in stock.offers
            for number in range(self.units(offer))
        ]
        if stock.offers and not units:
            largest = max(offer.card.memory for offer in stock.offers)
            raise NotFound(
                f"a unit of {resource} is {self.unit >> 20} MiB, and the largest card has {largest >> 20} MiB, of "
                f"which {self.config.reserve >> 20} MiB are reserved: choose a smaller unit or reserve"
            )
        return units

    def prefer(self, request: DevicePrefer, stock: Stock) -> Sequence[DeviceId] | None:
        """Choose units of one card."""
        del stock
        if request.resource == self.config.count_resource:
            return None
        self._free = {card: len(names) for card, names in by_card(request.available).items()}
        return on_one_card(request, self.config.policy)

    def allocate(self, request: DeviceAllocate, stock: Stock) -> Grant:
        """Grant one card, with what the container may use of it.

        Raises:
            Exhausted: the units are of several cards, which means that no single one had enough.
            InvalidRequest: the counting resource was asked for.
            NotFound, NotReady: the units, or their card, are not there any more, or not well.
        """
        if request.resource == self.config.count_resource:
            raise InvalidRequest(
                f"{request.resource} only tells how many cards there are; ask for {self.config.resource} instead"
            )
        offers = {card_key(offer.card.uuid): offer for offer in stock.offers}
        chosen = by_card(request.ids)
        if len(chosen) > 1:
            raise Exhausted(self._no_card_fits(len(request.ids), offers))
        offer = offers.get(next(iter(chosen), CardKey("")))
        if offer is None:
            raise NotFound(f"{', '.join(request.ids[:1]) or 'no id'} names no card of {request.resource}")
        offer.usable()
        check_numbers(request, self.units(offer))
        common = access.grant(self.config.access, [access.Part(offer.card)], self.paths)
        return Grant.merged(
            [common, Grant(env=self.environment(len(request.ids), offer)), self._limits(request, offer)]
        )

    def _limits(self, request: DeviceAllocate, offer: Offer) -> Grant:
        if self.config.mps is None:
            return Grant()
        folders = Folders.of(self.paths.run, offer.card.uuid)
        units, whole = len(request.ids), self.units(offer)
        return client(folders, offer.card, units * self.unit, units / whole, threads=self.config.mps.thread_percentage)

    def environment(self, units: int, offer: Offer) -> Mapping[str, str]:
        """Return the variables of gpushare as its plugin has them: `_IDX` the minor, `_POD` of this container."""
        return {
            "ALIYUN_COM_GPU_MEM_IDX": str(offer.card.minor),
            "ALIYUN_COM_GPU_MEM_POD": str(units),
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
            "ALIYUN_COM_GPU_MEM_DEV": str(self.units(offer)),
            "NODEPLUG_GPU_MEMORY_BYTES": str(units * self.unit),
            "NODEPLUG_GPU_UUID": offer.card.uuid,
        }

    def by_card(self, ids: Iterable[DeviceId], stock: Stock) -> Mapping[Uuid, Sequence[DeviceId]]:
        """The id begins with the card's key."""
        return units_by_card(ids, stock)

    def _no_card_fits(self, wanted: int, offers: Mapping[CardKey, Offer]) -> str:
        free = {card: count for card, count in self._free.items() if card in offers}
        largest = max(free, key=lambda card: free[card], default=None)
        if largest is None or free[largest] >= wanted:
            # Kubelet did not ask which units to take, or took others: it says nothing about what is free.
            return f"{wanted} units of {self.config.resource} wanted on one card, kubelet chose units of several"
        return (
            f"{wanted} units of {self.config.resource} wanted on one card, the largest free card has {free[largest]}: "
            f"{offers[largest].card.uuid}"
        )
