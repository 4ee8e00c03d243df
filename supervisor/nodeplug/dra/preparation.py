"""What kubelet asks for claims: NodePrepareResources and NodeUnprepareResources.

Owns: the order of the steps. Preparing: ids are chosen and written down, the plugin grants, the grant is written down,
then the spec. Unpreparing: the spec goes, the end is written down, kubelet hears of success, and then the plugin is
told; its ids are free only when it has heard of it.
Refuses: gRPC (`server`), objects of the API but the claim (`slices`), and to hold up a pod's end for a plugin.

The same claim gets the same ids for ever, whoever asks, and however often: kubelet repeats what was not answered, and a
restarted one prepares anew for a new sandbox.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from nodeplug.contract.errors import NotFound, NotReady, PluginError, TryAgain
from nodeplug.contract.journal import Journal
from nodeplug.contract.values import Device, DeviceAllocate, DeviceId, DeviceReleased, Grant, ResourceName
from nodeplug.dra import cdi, claims
from nodeplug.dra.claims import ClaimReference, PreparedDevice
from nodeplug.dra.ledger import Ledger, requests_of
from nodeplug.dra.names import CALLS
from nodeplug.dra.records import ClaimRecord, Held, key_of
from nodeplug.dra.values import Allocation, Pool
from nodeplug.hosting.call import Call
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.kubeapi.resources import Object
from nodeplug.process.aside import aside

LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Preparation:
    """Of the claims of one driver. Event loop only.

    Attributes:
        driver: its name.
        section: whose devices it has.
        pools: those that are listed, by name.
        claim: gets a claim from the API server.
        elsewhere: the ids of a resource that containers hold which kubelet's device plugins got.
        listed: waits for the first list of a pool, by name, if that is pending.
        settled: waits until it is known what these are since claims may have the resource; raises NotReady.
        freed: is called when a claim has given ids of a resource back.
        awaited: whether the section has a plugin that is not loaded at present.
        ended: is called when there is an end of which the plugin has to hear, see `release`.
        ledger: of the node.
        journal: has the records.
        specs: the folder of CDI specs.
    """

    driver: str
    section: str
    pools: Callable[[], Mapping[str, Pool]]
    claim: Callable[[ClaimReference], Awaitable[Object]]
    elsewhere: Callable[[ResourceName], Collection[DeviceId]]
    listed: Callable[[str], Awaitable[None]]
    settled: Callable[[ResourceName], Awaitable[None]]
    freed: Callable[[ResourceName], None]
    awaited: Callable[[], bool]
    ended: Callable[[], None]
    registry: Registry
    runner: Runner
    ledger: Ledger
    journal: Journal
    specs: cdi.SpecFolder
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _warned: set[str] = field(default_factory=set)
    _unheard: dict[str, str] = field(default_factory=dict)

    async def prepare(self, call: Call, wanted: ClaimReference) -> list[PreparedDevice]:
        """Prepare a claim, and return its devices.

        Raises:
            PluginError: it cannot be prepared now; kubelet tries again.
        """
        call.about = str(wanted)
        async with self._lock(wanted.uid):
            allocation = claims.read(await self.claim(wanted), wanted, self.driver)
            record = await self._recorded(call, allocation)
            grants = await self._granted(call, record, allocation)
            record = record.to("prepared", grants)
            await self._write(record)
            await aside(lambda: self.specs.write(record), f"CDI spec of {wanted}")
            return self._answer(record)

    async def unprepare(self, call: Call, wanted: ClaimReference) -> None:
        """End the preparation of a claim; succeed if there is none.

        Raises:
            PluginError: the end can neither be written down nor told to the plugin.
        """
        call.about = str(wanted)
        async with self._lock(wanted.uid):
            record = self.ledger.records.get(key_of(self.section, wanted.uid))
            await aside(lambda: self.specs.remove(wanted.uid), f"CDI spec of {wanted}")
            if record is None:  # nor on the disk: a write may have ended after its prepare was given up
                key = key_of(self.section, wanted.uid)
                await aside(lambda: self.journal.remove(key), f"record of {wanted}")
                return
            if record.phase == "released":
                return
            try:
                await self._write(record.to("released"))
            except PluginError:  # a full disk: what the plugin hears of now need not be written
                await self._release(call, record)
            else:
                self.ended()

    async def release(self) -> None:
        """Tell the plugin of every claim that has ended; what it does not hear is told again at the next turn."""
        for one in self.ledger.of(self.section):
            if one.phase != "released":
                continue
            call = Call("DeviceReleased", f"{CALLS}{self.driver}", key=self.key_of(one.claim.uid), about=str(one.claim))
            async with self._lock(one.claim.uid):
                record = self.ledger.records.get(one.key)
                if record is None or record.phase != "released":  # it was prepared again while this one had to wait
                    continue
                try:
                    await self._release(call, record)
                except PluginError as error:
                    if self._unheard.get(record.key) != error.message:
                        LOG.warning("the end of claim %s is told again: %s (request %s)", record.claim, error, call.id)
                    self._unheard[record.key] = error.message

    async def restore(self) -> None:
        """Have every prepared claim's spec where the runtime looks, and no other.

        A claim that somebody is at just now is left to them: its plugin may take its time, and others need theirs.

        Raises:
            PluginError: the folder cannot be written.
        """
        present = await aside(self.specs.present, f"CDI specs of {self.driver}")
        locks = {uid: self._lock(uid) for uid in {*present, *(one.claim.uid for one in self.ledger.of(self.section))}}
        async with AsyncExitStack() as held:
            free = [uid for uid, lock in locks.items() if not lock.locked()]
            for uid in free:  # without a pause, since nobody has them: what is decided now holds until it is done
                await held.enter_async_context(locks[uid])
            records = {one.claim.uid: one for one in self.ledger.of(self.section)}
            prepared = [records[uid] for uid in free if uid in records and records[uid].phase == "prepared"]
            ended = {*free} & present - {one.claim.uid for one in prepared}
            await aside(lambda: self.specs.restore(prepared, ended), f"CDI specs of {self.driver}")

    def key_of(self, uid: str) -> str:
        """Return the key of every call about a claim: a release waits for an allocation that is overdue."""
        return f"{self.driver}:{uid}"

    def _lock(self, uid: str) -> asyncio.Lock:
        """Return the lock of a claim, which goes with the last who waits for it."""
        return self._locks.setdefault(uid, asyncio.Lock())

    async def _recorded(self, call: Call, allocation: Allocation) -> ClaimRecord:
        """Return the record of a claim; a new one is written before anybody is asked."""
        record = self.ledger.records.get(key_of(self.section, allocation.uid))
        if record is not None and (
            record.phase == "released" or tuple(held.share for held in record.held) != allocation.shares
        ):
            # Allocated anew since: what it had goes first, and its plugin hears of it.
            await self._release(call, record)
            record = None
        if record is not None:
            return record
        for name in {share.pool for share in allocation.shares}:
            await self.listed(name)
        pools = self.pools()
        for resource in {pools[share.pool].resource for share in allocation.shares if share.pool in pools}:
            await self.settled(resource)
        reference = ClaimReference(allocation.uid, allocation.namespace, allocation.name)
        record = ClaimRecord(reference, self.section, "preparing", tuple(self._chosen(allocation)))
        self.ledger.note(record)  # at once: another claim chooses while this one is being written
        try:
            await self._write(record)
        except PluginError:
            self.ledger.forget(record.key)
            raise
        return record

    def _chosen(self, allocation: Allocation) -> list[Held]:
        chosen: list[Held] = []
        pools = self.pools()
        for share in allocation.shares:
            pool = pools.get(share.pool)
            if pool is None:
                raise NotReady(f"pool {share.pool} is not listed: its plugin does not run, or no longer offers it")
            if pool.away:
                raise NotReady(f"pool {share.pool} cannot serve: {pool.away}")
            device = next((one for one in pool.devices if one.name == share.device), None)
            if device is None:
                raise NotFound(f"device {share.device} of pool {share.pool} is gone")
            mine = [name for held in chosen if held.resource == device.resource for name in held.ids]
            elsewhere = self.elsewhere(device.resource)
            ids = self.ledger.choose(device, share, elsewhere, mine)
            self.ledger.check_overlap(pool, device, share, elsewhere, chosen)
            chosen.append(Held(share, device.resource, ids, None if share.admin else device.counters))
        return chosen

    async def _granted(self, call: Call, record: ClaimRecord, allocation: Allocation) -> dict[str, Grant]:
        """Ask the plugin for each request, and merge what it grants: several specs would overwrite each other."""
        granted: dict[str, list[Grant]] = {}
        listed = {
            (pool.resource, one.id): one
            for pool in self.pools().values()
            for device in pool.devices
            for one in device.devices
        }
        for request, resource, ids in requests_of(record, observing=True):
            gone = [name for name in ids if (resource, name) not in listed]
            if gone:
                raise NotFound(f"device {gone[0]!r} of {resource}, which claim {record.claim} has, is not listed now")
            value = DeviceAllocate(
                resource=resource,
                ids=ids,
                devices=tuple(listed[resource, name] for name in ids),
                claim=record.claim_for(request),
                config=claims.parameters_for(allocation, request),
            )
            granted.setdefault(request, []).append(await self._ask(call, value))
        merged = {request: Grant.merged(grants) for request, grants in granted.items()}
        for complaint in cdi.complaints(merged):
            if complaint not in self._warned:
                self._warned.add(complaint)
                LOG.warning("driver %s cannot pass on %s", self.driver, complaint)
        return merged

    async def _ask(self, call: Call, value: DeviceAllocate) -> Grant:
        route = self.registry.route("device", value.resource)
        grant: Grant | None = None
        if "device_allocate" in route.hooks:
            grant = await self.runner.call(route, "device_allocate", call, {"request": value})
        return _own(value.devices) if grant is None else grant

    async def _release(self, call: Call, record: ClaimRecord) -> None:
        """Tell the plugin that a claim has ended, and forget it; of what was observed alone nothing is released.

        Raises:
            PluginError: the plugin could not be told.
        """
        for request, resource, ids in requests_of(record):
            try:
                route = self.registry.route("device", resource)
            except NotFound:
                if self.awaited():
                    raise TryAgain(
                        f"the plugin of section {self.section} is not loaded, and has to hear of it"
                    ) from None
                continue  # no plugin has it: none has to hear of it
            if "device_released" in route.hooks:
                claim = record.claim_for(request)
                value = DeviceReleased(
                    resource=resource, ids=ids, namespace=claim.namespace, pod="", container="", claim=claim
                )
                await self.runner.call(route, "device_released", call, {"request": value})
        await aside(lambda: self.journal.remove(record.key), f"record of {record.claim}")
        self.ledger.forget(record.key)
        self._unheard.pop(record.key, None)
        for resource in {held.resource for held in record.held}:
            self.freed(resource)

    async def _write(self, record: ClaimRecord) -> None:
        writing = partial(self.journal.write, record.key, phase=record.phase, data=record.data)
        await aside(writing, f"record of {record.claim}")
        self.ledger.note(record)

    def _answer(self, record: ClaimRecord) -> list[PreparedDevice]:
        return [
            PreparedDevice(
                request=held.share.request,
                pool=held.share.pool,
                device=held.share.device,
                cdi=cdi.names_of(self.driver, record, held.share.request),
                share_id=held.share.share_id,
            )
            for held in record.held
        ]


def _own(devices: Collection[Device]) -> Grant:
    return Grant.merged([one.grant for one in devices])
