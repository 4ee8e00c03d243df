"""Units of a card's memory; every container is on one card.

Owns: the units of each card, the choice of the card, the check that a container's units are of one, and the
environment that images for gpushare read.
Refuses: to enforce the limits (MPS and the overuse watch do), and NUMA topology: kubelet would take units of a NUMA
node without asking which card they belong to.

The ids that kubelet allocates are the only record of who has how much of which card. Nothing else is counted.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    Part,
    ResourceName,
)
from nodeplug_gpu import access
from nodeplug_gpu.budget import LatelyHeld, ListedUnits, share_out
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Memory
from nodeplug_gpu.ids import CardKey, by_card, card_key, unit_id, whole_of
from nodeplug_gpu.mps.client import client
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.placement import single_card
from nodeplug_gpu.pool import Pool, PoolMember
from nodeplug_gpu.properties import MEMORY, card_attributes
from nodeplug_gpu.sharing.replicas import check_numbers, units_by_card
from nodeplug_gpu.sharing.told import ToldUnits

_COUNT: Final = "count"
MAX_UNITS: Final = 32_000
"""Of one resource: with ids of 14 characters and all of them unhealthy, the list has 0.93 MB; the daemon sends 1 MiB at
most, so that other messages that carry every id stay below kubelet's limit of 4 MiB."""


def promised(config: Memory, memory: int) -> int:
    """Return the bytes that are advertised of a card with so many."""
    return int(max(memory - config.reserve, 0) * config.oversubscribe)


def unit_for(config: Memory, cards: Collection[int]) -> int:
    """Return the size of a unit in bytes: the configured one, or the smallest multiple that keeps the list short.

    Args:
        config: the entry.
        cards: bytes of each card.
    """
    units = [promised(config, memory) // config.unit for memory in cards]
    # floor(n / t) <= m is n // (m + 1) < t; together, each card may lose a part of a unit.
    times = max(1, max(units, default=0) // (config.max_units_per_card + 1) + 1, sum(units) // (MAX_UNITS + len(units)))
    while sum(count // times for count in units) > MAX_UNITS:
        times += 1
    return config.unit * times


@dataclass(slots=True)
class MemorySharing:
    """Advertises memory by the unit.

    Attributes:
        config: the entry.
        paths: where device nodes are.
        unit: bytes of a unit, at least the configured size.
        told: what is free by what the cluster was told last.
    """

    config: Memory
    paths: access.NodePaths
    unit: int
    told: ToldUnits = field(default_factory=ToldUnits, compare=False)
    _free: Mapping[CardKey, int] = field(default_factory=dict)
    _listed: tuple[Pool, Sequence[Device]] = (Pool(), ())

    def units(self, member: PoolMember) -> int:
        """Return how many units a card has."""
        return self.units_of(member.card)

    def units_of(self, card: Card) -> int:
        """Return how many units a card has."""
        return promised(self.config, card.memory) // self.unit

    def advertised(self, member: PoolMember) -> int:
        """Return how many of them are listed."""
        return self.units(member) if member.listed is None else len(member.listed)

    def fitted(self, members: Sequence[PoolMember], held: LatelyHeld) -> Sequence[PoolMember]:
        """Return the members of a pool with what of each is listed: all units, or as many as fit into one list.

        Until it is known which units are held, all are: the daemon sends those of its last list, and these are in it.

        Args:
            members: of the pool.
            held: what is advertised in any case.
        """
        units = {member.card.uuid: self.units(member) for member in members}
        if sum(units.values()) + len(held.ids()) <= MAX_UNITS:
            return members
        cards = {card_key(uuid): uuid for uuid in units}
        numbers: dict[Uuid, set[int]] = {uuid: set() for uuid in units}
        others = 0  # ids of units that a card no longer has are listed, too
        for name in held.ids():
            key, _, number = name.partition("-")
            uuid = cards.get(CardKey(key))
            if uuid is not None and number.isascii() and number.isdecimal() and int(number) < units[uuid]:
                numbers[uuid].add(int(number))
            else:
                others += 1
        if sum(units.values()) + others <= MAX_UNITS:
            return members
        if held.known:
            shares = share_out(units, numbers, MAX_UNITS - others)
        else:
            shares = {uuid: ListedUnits(min(count, 2 * MAX_UNITS)) for uuid, count in units.items()}
        return [replace(member, listed=shares[member.card.uuid]) for member in members]

    def unlisted(self, pool: Pool) -> str:
        """Return why not all units are advertised, as a sentence; empty where they are."""
        every = sum(self.units(member) for member in pool.members)
        left = every - sum(self.advertised(member) for member in pool.members)
        if not left:
            return ""
        return (
            f"{left} of {every} units are free and not advertised: a list has at most {MAX_UNITS}, and units keep "
            "their size while one is held; they become larger a minute after the last release"
        )

    def devices(self, resource: ResourceName, pool: Pool) -> Sequence[Device]:
        """List every unit of every card; for the counting resource, every card.

        A card counts in whatever state: gpushare counts those that are there, and its programs share out the node's
        units among so many. Nothing is allocated of it.

        Raises:
            NotFound: no card has room for a single unit.
        """
        if resource == self.config.count_resource:
            return [Device(DeviceId(f"{_COUNT}-{card_key(member.card.uuid)}")) for member in pool.members]
        known, units = self._listed
        if known != pool:
            units = self._units(resource, pool)
            self._listed = (pool, units)
        return units

    def _units(self, resource: ResourceName, pool: Pool) -> Sequence[Device]:
        units = [device for member in pool.members for device in self._units_of(member, pool.driver_version)]
        if pool.members and not units:
            if not any(member.card.memory for member in pool.members):
                raise NotFound("; ".join(f"{member.card.uuid}: {member.reason}" for member in pool.members))
            largest = max(member.card.memory for member in pool.members)
            raise NotFound(
                f"a unit of {resource} is {self.unit >> 20} MiB, and the largest card has {largest >> 20} MiB, of "
                f"which {self.config.reserve >> 20} MiB are reserved: choose a smaller unit or reserve"
            )
        return units

    def _units_of(self, member: PoolMember, driver_version: str) -> Sequence[Device]:
        part, attributes = (
            self.part(unit_id(card_key(member.card.uuid), 0)),
            card_attributes(member.card, driver_version),
        )
        return [member.device(name, part, attributes) for name in self.unit_ids(member)]

    def part(self, name: DeviceId) -> Part:
        """Return what an id is a share of: a card, by its key."""
        return Part(whole_of(name), {MEMORY: self.unit})

    def unit_ids(self, member: PoolMember) -> Sequence[DeviceId]:
        """Return the ids of a card's units, as far as they are listed."""
        key = card_key(member.card.uuid)
        numbers = range(self.units(member)) if member.listed is None else member.listed.numbers()
        return [unit_id(key, number) for number in numbers]

    def prefer(self, request: DevicePrefer, pool: Pool) -> Sequence[DeviceId] | None:
        """Choose units of one card, of those that were free when the cluster was told, if one has enough of them.

        Whoever places pods knows of no others: one that has become free since would lead to another card than they
        expect, where the later containers of the pod might find too little.
        """
        del pool
        if request.resource == self.config.count_resource:
            return None
        self._free = {card: len(names) for card, names in by_card(request.available).items()}
        must = frozenset(request.must_include)
        chosen: list[DeviceId] = []
        for known in self.told.free([one for one in request.available if one not in must]):
            asked = replace(request, available=(*request.must_include, *known))
            chosen = single_card(asked, self.config.policy)
            if len(chosen) >= request.size:
                break
        return chosen

    def allocate(self, request: DeviceAllocate, pool: Pool) -> Grant:
        """Allocate units of one card.

        Raises:
            Exhausted: the units are of several cards, which means that no single one had enough.
            InvalidRequest: the counting resource was asked for.
            NotFound, NotReady: the units, or their card, are no longer present, or not healthy.
        """
        if request.resource == self.config.count_resource:
            raise InvalidRequest(f"{request.resource} only counts the cards; request {self.config.resource} instead")
        members = {card_key(member.card.uuid): member for member in pool.members}
        chosen = by_card(request.ids)
        if len(chosen) > 1 and request.claim is not None:
            raise InvalidRequest(
                f"request {request.claim.request} of claim {request.claim.namespace}/{request.claim.name} has units of "
                f"{len(chosen)} cards, and a container sees one card: use a claim for each container"
            )
        if len(chosen) > 1:
            raise Exhausted(self._no_card_fits(len(request.ids), members))
        member = members.get(next(iter(chosen), CardKey("")))
        if member is None:
            raise NotFound(f"{', '.join(request.ids[:1]) or 'no id'} names no card of {request.resource}")
        member.require_healthy()
        check_numbers(request, self.units(member))
        if request.claim is None:
            self.told.grant(request.ids)
        common = access.grant(self.config.access, [access.GpuDevice(member.card)], self.paths)
        return Grant.merged(
            [common, Grant(env=self.environment(len(request.ids), member)), self._limits(request, member)]
        )

    def _limits(self, request: DeviceAllocate, member: PoolMember) -> Grant:
        if self.config.mps is None:
            return Grant()
        folders = Folders.of(self.paths.run, member.card.uuid, self.paths.former)
        units, whole = len(request.ids), self.units(member)
        return client(folders, member.card, units * self.unit, units / whole, threads=self.config.mps.thread_percentage)

    def environment(self, units: int, member: PoolMember) -> Mapping[str, str]:
        """Return gpushare's variables as its plugin sets them: `_IDX` is the minor, `_POD` this container's units.

        `_DEV` is what the card has, however often it is advertised: images take the quotient as a part of its memory.
        """
        return {
            "ALIYUN_COM_GPU_MEM_IDX": str(member.card.minor),
            "ALIYUN_COM_GPU_MEM_POD": str(units),
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
            "ALIYUN_COM_GPU_MEM_DEV": str(max((member.card.memory - self.config.reserve) // self.unit, 1)),
            "NODEPLUG_GPU_MEMORY_BYTES": str(units * self.unit),
            "NODEPLUG_GPU_UUID": member.card.uuid,
        }

    def by_card(self, ids: Iterable[DeviceId], pool: Pool) -> Mapping[Uuid, Sequence[DeviceId]]:
        """The id begins with the card's key."""
        return units_by_card(ids, pool)

    def _no_card_fits(self, wanted: int, members: Mapping[CardKey, PoolMember]) -> str:
        free = {card: count for card, count in self._free.items() if card in members}
        largest = max(free, key=lambda card: free[card], default=None)
        if largest is None or free[largest] >= wanted:
            # Kubelet did not ask for a preference, or ignored it: what is free is not known here.
            return f"{wanted} units of {self.config.resource} wanted on one card, kubelet chose units of several"
        return (
            f"{wanted} units of {self.config.resource} wanted on one card, the largest free card has {free[largest]}: "
            f"{members[largest].card.uuid}"
        )
