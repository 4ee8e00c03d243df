"""What is done for one claim or one volume of the cluster: created, grown, deleted, or given up.

Owns: the order of the calls to the driver and to the API server; each may be repeated after a kill between any two.
Refuses: to decide what is to be done, and when (`provisioner`).
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar, cast
from weakref import WeakValueDictionary

from nodeplug.contract.errors import (
    AlreadyExists,
    Exhausted,
    InUse,
    InvalidRequest,
    NotFound,
    NotReady,
    NotSupported,
    PluginError,
)
from nodeplug.contract.journal import Entry, Journal
from nodeplug.contract.values import ProvisionedVolume, VolumeClaim, VolumeCreate, VolumeDelete, VolumeId
from nodeplug.csi.driver import Driver
from nodeplug.fields import write_quantity
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.refusals import Conflict
from nodeplug.kubeapi.resources import (
    EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    Object,
    Resource,
    key_of,
)
from nodeplug.process.lane import Lane
from nodeplug.provisioner import objects
from nodeplug.volumes import provisioning
from nodeplug.volumes.compose import Steps as VolumeSteps

LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")
_SNAPSHOTS: Final = Resource("snapshot.storage.k8s.io", "v1", "volumesnapshots", "VolumeSnapshot", namespaced=True)
_CONTENTS: Final = Resource("snapshot.storage.k8s.io", "v1", "volumesnapshotcontents", "VolumeSnapshotContent")


class _Unseen(Exhausted):
    """There is no room, and the driver cannot say whether a volume that was begun is there."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps, on the event loop.

    Attributes:
        client: asks the API server.
        node: this one.
        journal: what was begun; used through `records`.
        records: the lane to its disk.
    """

    client: Client
    node: str
    journal: Journal
    records: Lane
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    # --- creating

    async def create(self, claim: Object, storage_class: Object | None, driver: Driver) -> None:
        """Create a claim's volume, and the object that binds it.

        Raises:
            PluginError: it cannot be; one for which there is no room is sent to another node instead.
        """
        if storage_class is None or storage_class.get("provisioner") != driver.name:
            raise InvalidRequest(f"there is no StorageClass {claim['spec'].get('storageClassName')!r} of {driver.name}")
        source, snapshot = await self._source(claim, driver)
        volume = cast("VolumeClaim", driver.serving.claim)
        wanted = objects.creation(claim, storage_class, volume, source, snapshot)
        async with self._alone(wanted.name):
            await self._create(claim, storage_class, driver, wanted)

    async def _create(self, claim: Object, storage_class: Object, driver: Driver, wanted: VolumeCreate) -> None:
        begun = await self.records.run(lambda: self.journal.read(wanted.name))
        policy = str(storage_class.get("reclaimPolicy") or "Delete")
        handle = str(begun.data.get("handle", "")) if begun is not None else ""
        await self._record(wanted, claim, driver, policy, handle)
        try:
            made = await _make(driver, wanted, "provision", key_of(claim), begun=begun is not None)
        except (Exhausted, NotFound) as error:
            if isinstance(error, NotFound) is not _is_beside_its_source(wanted, driver):
                raise
            # First the record: whoever finds one for a claim that is wanted elsewhere deletes its volume.
            if not isinstance(error, _Unseen):
                await self.records.run(lambda: self.journal.remove(wanted.name))
            await self._send_away(claim)
            raise type(error)(f"{error.message}; another node is chosen") from error
        if made.volume_id != handle:
            await self._record(wanted, claim, driver, policy, made.volume_id)
        topology = made.topology or ((driver.topology,) if driver.topology else ())
        written = objects.persistent_volume(claim, storage_class, made, driver.name, topology, self.node)
        try:
            await self.client.create(PERSISTENT_VOLUMES, written)
        except AlreadyExists:
            found = await self.client.get(PERSISTENT_VOLUMES, wanted.name)
            same = (found["spec"].get("csi") or {}).get("volumeHandle") == made.volume_id
            if not same or objects.is_elsewhere(found, driver.topology):
                raise
        await self.records.run(lambda: self.journal.remove(wanted.name))
        LOG.info("claim %s has volume %s of %s", key_of(claim), made.volume_id, driver.name)
        await self.tell(claim, "ProvisioningSucceeded", f"volume {wanted.name} is made", warning=False)

    async def _source(self, claim: Object, driver: Driver) -> tuple[str, str]:
        """Return the volume and the snapshot that a claim wants the contents of."""
        asked = claim["spec"].get("dataSource") or claim["spec"].get("dataSourceRef")
        if not asked:
            return "", ""
        namespace, name = claim["metadata"]["namespace"], asked["name"]
        if (asked.get("namespace") or namespace) != namespace:
            raise InvalidRequest(f"the claim wants the contents of {asked['namespace']}/{name}, of another namespace")
        if asked["kind"] == "PersistentVolumeClaim" and not asked.get("apiGroup"):
            found = await self.client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)
            volume = await self.client.get(PERSISTENT_VOLUMES, str(found["spec"].get("volumeName") or "not-bound-yet"))
            # A claim may name any volume; only the volume's own word says whose it is.
            if (volume["spec"].get("claimRef") or {}).get("uid") != found["metadata"]["uid"]:
                raise InvalidRequest(f"claim {name!r}, whose contents are wanted, is not bound to a volume")
            csi = volume["spec"].get("csi") or {}
            handle, other = csi.get("volumeHandle"), csi.get("driver")
        elif asked["kind"] == "VolumeSnapshot":
            found = await self.client.get(_SNAPSHOTS, name, namespace)
            content = (found.get("status") or {}).get("boundVolumeSnapshotContentName") or "not-bound-yet"
            bound = await self.client.get(_CONTENTS, str(content))
            if (bound["spec"].get("volumeSnapshotRef") or {}).get("uid") != found["metadata"]["uid"]:
                raise InvalidRequest(f"snapshot {name!r}, whose contents are wanted, is not bound to its content")
            handle, other = (bound.get("status") or {}).get("snapshotHandle"), bound["spec"].get("driver")
        else:
            raise InvalidRequest(
                f"the claim's dataSource is a {asked['kind']}; known: PersistentVolumeClaim, VolumeSnapshot"
            )
        if other != driver.name or not handle:
            raise InvalidRequest(f"{asked['kind']} {name!r} is of driver {other!r}; {driver.name} cannot copy it")
        return (handle, "") if asked["kind"] == "PersistentVolumeClaim" else ("", handle)

    async def _send_away(self, claim: Object) -> None:
        """Let the scheduler choose another node: this one is full."""
        metadata = claim["metadata"]
        patch = {"resourceVersion": metadata["resourceVersion"], "annotations": {objects.SELECTED: None}}
        await self.client.patch(PERSISTENT_VOLUME_CLAIMS, metadata["name"], {"metadata": patch}, metadata["namespace"])

    # --- what was begun

    async def _record(self, wanted: VolumeCreate, claim: Object, driver: Driver, policy: str, handle: str) -> None:
        """Note that a volume is about to be there, for whoever finds it without its claim.

        With a handle it is there, and its object may be.
        """
        metadata = claim["metadata"]
        data = {
            "driver": driver.name,
            "namespace": metadata["namespace"],
            "claim": metadata["name"],
            "uid": metadata["uid"],
            "reclaim_policy": policy,
            "handle": handle,
        }
        phase = "made" if handle else "creating"
        request = {
            "name": wanted.name,
            "size": wanted.size,
            "limit": wanted.limit,
            "block": wanted.block,
            "fs_type": wanted.fs_type,
            "parameters": dict(wanted.parameters),
            "source": wanted.source,
            "snapshot": wanted.snapshot,
            "access_modes": list(wanted.access_modes),
        }
        await self.records.run(lambda: self.journal.write(wanted.name, phase=phase, data=data, request=request))

    async def abandon(self, entry: Entry, driver: Driver) -> None:
        """Delete a volume that was begun for a claim that is gone, or that has been sent to another node."""
        async with self._alone(entry.key):
            if await self._is_nobodys(entry, driver, str(entry.data.get("handle", ""))):
                await self._end(entry, driver)

    async def _end(self, entry: Entry, driver: Driver) -> None:
        name = entry.key
        handle = str(entry.data.get("handle", ""))
        if handle and entry.data.get("reclaim_policy") == "Retain":
            raise PluginError(
                f"volume {handle} of {driver.name} is to be kept (reclaimPolicy Retain), and its claim and its object "
                f"are gone: write a PersistentVolume for it, or delete it and its record in {self.journal.folder}"
            )
        handle = handle or await self._find_again(entry, driver)
        if not await self._is_nobodys(entry, driver, handle):
            return
        gone = VolumeDelete(driver=driver.claim, volume_id=VolumeId(handle or name))
        try:
            await _work(driver, "abandon", name, lambda steps: provisioning.delete(steps, gone))
        except (InvalidRequest, NotFound, NotSupported) as error:
            if handle:
                raise
            LOG.info("volume %s of %s was never made: %s", name, driver.name, error.message)
        else:
            LOG.info("volume %s of %s is deleted: its claim is gone", gone.volume_id, driver.name)
        await self.records.run(lambda: self.journal.remove(name))

    async def _find_again(self, entry: Entry, driver: Driver) -> str:
        """Return the id of a volume that was begun; empty if nobody knows it.

        A copy, too, is asked for again: nobody but the driver knows the id of one that it had made when the daemon was
        killed. One that it had not made is made in vain, and deleted.
        """
        name, request = entry.key, entry.request
        wanted = VolumeCreate(driver=driver.claim, **{**request, "access_modes": tuple(request["access_modes"])})
        try:
            # Its id is what a creation answers: the same volume, by its name.
            return (await _make(driver, wanted, "find again", name, begun=True)).volume_id
        except (AlreadyExists, _Unseen):
            raise
        except (InvalidRequest, NotFound, Exhausted, InUse) as error:
            # What is refused now may have been made all the same, as with a configuration that allowed it.
            LOG.info("volume %s of %s would not be made now: %s", name, driver.name, error.message)
            return ""

    async def _is_nobodys(self, entry: Entry, driver: Driver, handle: str) -> bool:
        """Ask the API server itself whether a volume that was begun has neither a claim here nor an object.

        An object may have another name, as of an administrator who has taken over the data; one of another node has a
        volume of the same name there.
        """
        data = entry.data
        with suppress(NotFound):
            claim = await self.client.get(PERSISTENT_VOLUME_CLAIMS, str(data["claim"]), str(data["namespace"]))
            if claim["metadata"]["uid"] == data["uid"] and objects.is_wanted(claim, self.node):
                return False
        if not await self._has_object(entry.key, driver, handle or entry.key):
            return True
        await self.records.run(lambda: self.journal.remove(entry.key))
        return False

    async def _has_object(self, name: str, driver: Driver, handle: str) -> bool:
        with suppress(NotFound):
            found = await self.client.get(PERSISTENT_VOLUMES, name)
            if not objects.is_elsewhere(found, driver.topology):
                return True
        known = (await self.client.list(PERSISTENT_VOLUMES)).objects
        here = (one for one in known if not objects.is_elsewhere(one, driver.topology))
        return any(objects.has_volume(one, name, driver.name, handle) for one in here)

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """Let one step at a time work on the volume of a name: a creation, or the end of what was begun."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            yield

    # --- growing and deleting

    async def grow(self, claim: Object, volume: Object, driver: Driver) -> None:
        """Grow a claim's volume, and leave its filesystem to kubelet."""
        handle = VolumeId(volume["spec"]["csi"]["volumeHandle"])
        size = objects.growth(claim, volume)
        if size:
            refused = objects.is_refused(claim, size)
            if not refused:
                await self._mark(claim, objects.resizing(claim, size, "ControllerResizeInProgress"))
            try:
                about = key_of(claim)
                grown = await _work(driver, "grow", about, lambda steps: provisioning.expand(steps, handle, size, 0))
            except (InvalidRequest, NotFound):
                if not refused:
                    await self._mark(claim, objects.resizing(claim, size, "ControllerResizeInfeasible"))
                raise
            amount = str(write_quantity(grown))
            volume = await self.client.patch(
                PERSISTENT_VOLUMES, volume["metadata"]["name"], {"spec": {"capacity": {"storage": amount}}}
            )
        await self._mark(claim, objects.resizing(claim, objects.size_of(volume), "NodeResizePending"))
        LOG.info("volume %s of claim %s has %s", handle, key_of(claim), volume["spec"]["capacity"]["storage"])

    async def _mark(self, claim: Object, status: Object) -> None:
        metadata = claim["metadata"]
        await self.client.patch(PERSISTENT_VOLUME_CLAIMS, metadata["name"], status, metadata["namespace"], "status")

    async def delete(self, volume: Object, driver: Driver) -> None:
        """Delete a volume that nobody wants any more, and then its object."""
        name, uid = volume["metadata"]["name"], volume["metadata"]["uid"]
        try:
            found = await self.client.get(PERSISTENT_VOLUMES, name)  # it may have waited, and be kept by now
        except NotFound:
            return
        if found["metadata"]["uid"] != uid or not objects.is_to_be_deleted(found):
            return
        handle = VolumeId(found["spec"]["csi"]["volumeHandle"])
        request = VolumeDelete(driver=driver.claim, volume_id=handle)
        await _work(driver, "delete", name, lambda steps: provisioning.delete(steps, request))
        LOG.info("volume %s of %s is deleted", handle, driver.name)
        with suppress(NotFound):
            if not found["metadata"].get("deletionTimestamp"):
                await self.client.delete(PERSISTENT_VOLUMES, name, uid=uid)
            await let_go(self.client, name, uid)

    async def keep(self, volume: Object) -> None:
        """Let go of the object of a volume that is not to be deleted with it."""
        with suppress(NotFound):
            await let_go(self.client, volume["metadata"]["name"], volume["metadata"]["uid"])

    # --- telling

    async def tell(self, about: Object | None, reason: str, text: str, *, warning: bool = True) -> None:
        """Tell whoever looks at an object; nothing depends on it."""
        if about is None:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        number = secrets.token_hex(8)
        written = objects.event(about, reason, text, self.node, warning=warning, now=now, number=number)
        with suppress(PluginError):
            await self.client.create(EVENTS, written, written["metadata"]["namespace"])


async def _work(driver: Driver, verb: str, target: str, work: Callable[[VolumeSteps], _T]) -> _T:
    """Have a driver do something; TryAgain where no plugin serves it, since NotFound is its own word of a volume."""
    _ = driver.serving
    return await driver.work(verb, work, target=target)


async def _make(driver: Driver, wanted: VolumeCreate, verb: str, target: str, *, begun: bool) -> ProvisionedVolume:
    """Have a driver make a volume.

    One that was begun before may be there, on a disk that is away: then that there is no room is taken from a driver
    alone that sees its volumes, and would have found it.

    Raises:
        PluginError: it cannot; NotReady or `_Unseen` if it cannot say whether the volume is there.
    """
    try:
        return await _work(driver, verb, target, lambda steps: provisioning.create(steps, wanted))
    except Exhausted as error:
        if not begun:
            raise
        try:
            sees = await _work(driver, "look for", target, _look)
        except NotReady as away:
            raise type(away)(
                f"{away.message}; a volume that was begun for this claim may be there: until that is known the claim "
                "is not given to another node"
            ) from error
        if not sees:
            raise _Unseen(
                f"{error.message}; whether volume {target!r} was made before is not known: its driver has no "
                "volume_list"
            ) from error
    return await _work(driver, verb, target, lambda steps: provisioning.create(steps, wanted))


def _look(steps: VolumeSteps) -> bool:
    """Whether a driver sees its volumes."""
    if not steps.composition.has("volume_list"):
        return False
    provisioning.every(steps)
    return True


def _is_beside_its_source(wanted: VolumeCreate, driver: Driver) -> bool:
    """Whether a volume can only be made on the node that has what it copies, and on no other with more room."""
    return bool(wanted.source or wanted.snapshot) and bool(driver.topology)


async def let_go(client: Client, name: str, uid: str) -> None:
    """Remove our finalizer from a volume, as often as others change it meanwhile; NotFound if it is gone."""
    while True:
        found = await client.get(PERSISTENT_VOLUMES, name)
        if found["metadata"]["uid"] != uid:
            return
        kept = [one for one in found["metadata"].get("finalizers") or () if one != objects.FINALIZER]
        patch = {"resourceVersion": found["metadata"]["resourceVersion"], "finalizers": kept or None}
        with suppress(Conflict):
            await client.patch(PERSISTENT_VOLUMES, name, {"metadata": patch})
            return
