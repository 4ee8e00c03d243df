"""Who has which id, by claims: the last line of defence against giving one away twice.

Owns: the records in memory, and the choice of ids for a share.
Refuses: the disk (`preparation` writes before it notes), and plugins.

The scheduler has chosen the device and the amount already. It may be wrong here: a pod that was deleted by force frees
its claim in the API before this node has heard of it, and the next pod's claim comes first.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from nodeplug.contract.errors import Exhausted, InvalidRequest, NotReady
from nodeplug.contract.values import Counters, DeviceId, Holding, ResourceName
from nodeplug.dra.names import attribute_name
from nodeplug.dra.records import ClaimRecord, Held
from nodeplug.dra.values import Pool, PoolDevice, Share

_PLUGINS_CONTAINERS: Final = "containers that got it by kubelet's device plugins"
Users = Callable[[str, str], Sequence[tuple[str, str]]]
"""Returns the pods and containers that use a claim, by its namespace and name, as far as kubelet has told."""


@dataclass(slots=True)
class Ledger:
    """All records of this node. Event loop only; `holdings` is for any thread.

    Attributes:
        records: by key, see `ClaimRecord.key`.
    """

    records: dict[str, ClaimRecord] = field(default_factory=dict)

    def note(self, record: ClaimRecord) -> None:
        """Take a record in, or its next phase."""
        self.records = {**self.records, record.key: record}

    def forget(self, key: str) -> None:
        """Drop a record: its ids are free."""
        self.records = {other: record for other, record in self.records.items() if other != key}

    def of(self, section: str) -> list[ClaimRecord]:
        """Return the records of a section."""
        return [one for one in self.records.values() if one.section == section]

    def taken(self, resource: ResourceName) -> Mapping[DeviceId, ClaimRecord]:
        """Return which ids of a resource are taken, and by whom; shares for observation take none."""
        return {
            name: record
            for record in self.records.values()
            for held in record.held
            if held.resource == resource and not held.share.admin
            for name in held.ids
        }

    def holdings(self, resource: ResourceName, users: Users) -> list[Holding]:
        """Return who holds what of a resource, as a plugin is told: one value for each container that uses a claim.

        A claim whose containers are not known has one without names. One that is not prepared has no container yet, and
        what a share is for observation alone, somebody else holds.
        """
        return [
            Holding(
                resource=resource,
                ids=ids,
                namespace=record.claim.namespace,
                pod=pod,
                container=container,
                claim=record.claim_for(request),
            )
            for record in self.records.values()
            if record.phase == "prepared"
            for request, of, ids in requests_of(record)
            if of == resource
            for pod, container in users(record.claim.namespace, record.claim.name) or [("", "")]
        ]

    def choose(
        self, device: PoolDevice, share: Share, elsewhere: Collection[DeviceId], more: Collection[DeviceId] = ()
    ) -> tuple[DeviceId, ...]:
        """Choose the ids for a share of a device: the first free ones, in the plugin's order.

        Args:
            device: as the plugin lists it now.
            share: what the scheduler allocated.
            elsewhere: ids that containers hold which kubelet's device plugins got.
            more: ids that the same claim has got for other shares.

        Raises:
            NotReady: the device cannot serve, or is still held by somebody.
            Exhausted: too little of it is free.
            InvalidRequest: the amount is none of this device.
        """
        if share.admin:
            return tuple(one.id for one in device.devices)
        if device.reason:
            raise NotReady(f"device {share.device} of pool {share.pool} cannot serve: {device.reason}")
        taken = self.taken(device.resource)
        usable = [one.id for one in device.usable if one.id not in more]
        free = [name for name in usable if name not in taken and name not in elsewhere]
        wanted = parts_of(device, share)
        if len(free) >= wanted:
            return tuple(free[:wanted])
        holders = sorted({_who(taken[name]) for name in usable if name in taken})
        if any(name in elsewhere for name in usable):
            holders.append(_PLUGINS_CONTAINERS)
        who = f"; held by {', '.join(holders)}" if holders else ""
        what = f"{len(free)} free of {len(device.devices)} parts, {wanted} wanted" if device.shared else "it is taken"
        raise Exhausted(f"device {share.device} of pool {share.pool}: {what}{who}; it is tried again")

    def check_overlap(
        self,
        pool: Pool,
        device: PoolDevice,
        share: Share,
        elsewhere: Collection[DeviceId],
        mine: Sequence[Held] = (),
    ) -> None:
        """Check that those who hold devices that overlap one leave enough of each counter that it consumes.

        Args:
            pool: of the device, as it is listed now.
            device: the device.
            share: what the scheduler allocated.
            elsewhere: ids that containers hold which kubelet's device plugins got.
            mine: what the same claim has got for other shares.

        Raises:
            Exhausted: they do not.
        """
        if share.admin or device.counters is None:
            return
        others = self._overlapping(pool, device, elsewhere, mine)
        for name, wanted in device.counters.consumed.items():
            consumers = [(counters.consumed.get(name, 0), whose) for counters, whose in others]
            available = device.counters.available[name]
            if 0 < wanted > (left := available - sum(amount for amount, _ in consumers)):
                holders = sorted({one for amount, whose in consumers if amount for one in whose})
                who = f"; held by {', '.join(holders)}" if holders else ""
                raise Exhausted(
                    f"device {share.device} of pool {share.pool}: {max(left, 0)} free of {available} of {name} of "
                    f"{device.counters.of!r}, {wanted} wanted{who}; it is tried again"
                )

    def _overlapping(
        self, pool: Pool, device: PoolDevice, elsewhere: Collection[DeviceId], mine: Sequence[Held]
    ) -> list[tuple[Counters, set[str]]]:
        """Return what each other device consumes that somebody holds, and who they are, in the counter set of one."""
        listed = {one.name: one.counters for one in pool.devices}
        held = [(one, _who(record)) for record in self.records.values() for one in record.held]
        found: dict[str, tuple[Counters, set[str]]] = {}
        for one, who in [*held, *((one, "the claim itself") for one in mine)]:
            name = one.share.device
            # It may be listed no more, and is held all the same.
            counters = listed.get(name) or _as_counted_now(one.counters, device.counters)
            if one.resource == device.resource and not one.share.admin and counters is not None:
                found.setdefault(name, (counters, set()))[1].add(who)
        for other in pool.devices:
            if other.counters is not None and any(one.id in elsewhere for one in other.devices):
                found.setdefault(other.name, (other.counters, set()))[1].add(_PLUGINS_CONTAINERS)
        found.pop(device.name, None)  # whoever had the first part of it has consumed its counters
        of = device.counters and device.counters.of
        return [(counters, who) for counters, who in found.values() if counters.of == of]


def _as_counted_now(recorded: Counters | None, now: Counters | None) -> Counters | None:
    """Return what a device that is listed no more consumes; all of its set where that is counted otherwise by now."""
    if recorded is None or now is None or recorded.of != now.of or recorded.available == now.available:
        return recorded
    return replace(now, consumed=now.available)


def parts_of(device: PoolDevice, share: Share) -> int:
    """Return how many ids of a device make up a share; all of them where the share names no amount.

    Raises:
        InvalidRequest: it names a capacity that the device does not have in parts.
    """
    if not device.shared or not share.consumed:
        return len(device.devices)
    amounts = {attribute_name(name): amount for name, amount in device.amount.items()}
    unknown = share.consumed.keys() - amounts.keys()
    if unknown:
        raise InvalidRequest(
            f"device {share.device} of pool {share.pool} has no {min(unknown)!r} that could be shared; it has "
            f"{', '.join(sorted(amounts))}"
        )
    return max(-(-amount // amounts[name]) for name, amount in share.consumed.items())


def _who(record: ClaimRecord) -> str:
    ended = " (ended, its plugin has not heard of it yet)" if record.phase == "released" else ""
    return f"claim {record.claim}{ended}"


def requests_of(
    record: ClaimRecord, *, observing: bool = False
) -> Iterator[tuple[str, ResourceName, tuple[DeviceId, ...]]]:
    """Yield the ids of each request of a claim, by resource; of requests for observation if they are wanted."""
    merged: dict[tuple[str, ResourceName], list[DeviceId]] = {}
    for held in record.held:
        if observing or not held.share.admin:
            merged.setdefault((held.share.request, held.resource), []).extend(held.ids)
    return ((request, resource, tuple(dict.fromkeys(ids))) for (request, resource), ids in merged.items())
