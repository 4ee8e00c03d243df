"""One PersistentVolume takes the place of another of the same name, and the claim is Bound again.

Owns: the order of it, and going on after an interruption at any instruction: what is to be done follows from what the
cluster has. The data is not touched: with `Retain` nobody deletes it, and both objects mean the same volume.
Refuses: to begin while a pod uses the claim: kubelet would see another volume at the same place.

Measured with kube-apiserver and kube-controller-manager 1.36: a Bound volume that is deleted stays Terminating until
its finalizers are removed; its claim is Lost, and Bound again when a volume of its name with its uid in claimRef is
there.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from nodeplug.contract.errors import DeadlineExceeded, InUse, InvalidRequest, NotFound
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, Object
from nodeplug.migration.records import DONE, FIRST, SAVED, Saved, now
from nodeplug.migration.volumes import claim_of, portable

PATIENCE: Final = 60.0
"""Seconds in which the controller manager must have bound the claim again."""
EXCHANGED: Final = "nodeplug/volume-exchanged-at"
"""The annotation of a claim whose volume was exchanged: when it was last."""
_POLL: Final = 0.2
_POLICY: Final = "persistentVolumeReclaimPolicy"
_GONE: Final = ("deleting", "deleted")
_THERE: Final = ("created", "bound", DONE)
_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Exchange:
    """One volume and the two objects of it.

    Attributes:
        client: who asks.
        saved: what was there before.
        back: from CSI to FlexVolume, not the other way.
    """

    client: Client
    saved: Saved
    back: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do, as far as was written down."""
        return self.saved.did("undo-done" if self.back else DONE)

    @property
    def _source(self) -> str:
        return "flexVolume" if self.back else "csi"

    async def steps(self) -> AsyncIterator[str]:
        """Do what is left to do, and yield each step when it is done and written down.

        Raises:
            InUse: a pod uses the claim.
            InvalidRequest: the cluster has something else than either object.
            DeadlineExceeded: the claim was not bound in time; asked again, it goes on.
            PluginError: the API server refused.
        """
        found = await self._found()
        if found is None and not self._removed:
            raise InvalidRequest(
                f"PersistentVolume {self.saved.name} is gone, and none of the steps in {self.saved.folder} removed it: "
                f"it was deleted on purpose; move the folder away, or make the volume again from {SAVED} there"
            )
        if found is not None and not self._is_new(found):
            self._check(found)
            await self._check_claim()
            await refuse_in_use(self.client, found)
            if not self.saved.did(FIRST):
                yield self._done(FIRST)
            self._note_policy(found)
            kept = await self._retain(found)
            yield self._done("retained", found)
            self._check(kept)  # it may have been bound this very moment
            await refuse_in_use(self.client, kept)
            self._done("deleting")
            await self._remove(kept)
            yield self._done("deleted")
            found = None
        if found is None:
            await self._check_claim()
            found = await self.client.create(PERSISTENT_VOLUMES, self._wanted())
            yield self._done("created", found)
        await self._bound(found)
        yield self._done("bound")
        await self._restore_policy(found)
        yield self._done("done")

    def _done(self, step: str, found: Mapping[str, Any] | None = None) -> str:
        self.saved.step(self._name(step), found)
        return step

    def _name(self, step: str) -> str:
        return f"undo-{step}" if self.back else step

    @property
    def _removed(self) -> bool:
        """Whether a volume that is missing was removed by a step, and made again by none."""
        did = self.saved.did
        if any(did(f"undo-{step}") for step in _THERE):
            return False
        if any(did(f"undo-{step}") for step in _GONE):
            return True
        return any(map(did, _GONE)) and not any(map(did, _THERE))

    async def _found(self) -> Object | None:
        try:
            return await self.client.get(PERSISTENT_VOLUMES, self.saved.name)
        except NotFound:
            return None

    def _is_new(self, found: Object) -> bool:
        """Whether an object is the one that is to be there.

        Raises:
            InvalidRequest: it looks like it, and is of somebody else.
        """
        if self._source not in found["spec"] or found["metadata"].get("deletionTimestamp"):
            return False
        wanted = self.saved.before if self.back else self.saved.after
        keys = ("driver", "options") if self.back else ("driver", "volumeHandle")
        source, expected = found["spec"][self._source], wanted["spec"][self._source]
        if any(source.get(key) != expected.get(key) for key in keys) or claim_of(found) != claim_of(wanted):
            self._refuse()
        return True

    def _refuse(self) -> NoReturn:
        raise InvalidRequest(
            f"PersistentVolume {self.saved.name} is another one than {self.saved.folder} tells of: somebody has "
            "exchanged it; look at both, and move the folder away if it is of no use"
        )

    def _check(self, found: Object) -> None:
        """Refuse an object that is not the one that was saved or made of it."""
        expected = self.saved.after if self.back else self.saved.before
        name, theirs = ("csi", "driver") if self.back else ("flexVolume", "driver")
        source = found["spec"].get(name) or {}
        same = source.get(theirs) == expected["spec"][name].get(theirs)
        first = found["metadata"]["uid"] == self.saved.before["metadata"]["uid"]  # or a deletion that was interrupted
        if not (first or (self.back and same)):
            self._refuse()
        if claim_of(found) != claim_of(expected):  # what is put in its place would not be bound to its claim
            raise InvalidRequest(
                f"PersistentVolume {self.saved.name} has another claim than when it was planned: move "
                f"{self.saved.folder} to another place, and plan again"
            )

    async def _check_claim(self) -> None:
        """Refuse to make a volume for a claim that is gone: nobody would ever have it."""
        namespace, name, uid = claim_of(self.saved.before)
        if not name:
            return
        try:
            found = await self.client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)
        except NotFound:
            found = {"metadata": {}}
        if found["metadata"].get("uid") != uid:
            raise InvalidRequest(
                f"claim {namespace}/{name} is gone, or is another one by now: the volume's data is where it was; "
                f"{self.saved.folder} has both objects"
            )

    def _note_policy(self, found: Object) -> None:
        """Write down the reclaim policy as it was before ours, once: found again, it may be ours."""
        if not self.saved.did(self._name("policy")):
            self._done("policy", {"spec": {_POLICY: _policy_of(found)}})

    def _policy(self) -> str | None:
        """Return the reclaim policy that the volume had before ours; None if we never touched it."""
        forward = self.saved.found("policy") or (self.saved.before if self.saved.did("retained") else {})
        if self.back:
            found = self.saved.found("undo-policy") or self.saved.found("undo-retained")
            whole = self.saved.did(DONE)  # then Retain is somebody's wish; before, it is that of a migration cut short
            if found and (whole or _policy_of(found) != "Retain"):
                return _policy_of(found)
            if whole:
                return None
        return _policy_of(forward) if forward else None

    async def _retain(self, found: Object) -> Object:
        """Keep anybody from deleting the data; return the object as it is then."""
        if found["spec"].get(_POLICY) == "Retain" or found["metadata"].get("deletionTimestamp"):
            return found
        return await self.client.patch(PERSISTENT_VOLUMES, self.saved.name, {"spec": {_POLICY: "Retain"}})

    async def _remove(self, found: Object) -> None:
        """Delete the object, and take away what keeps a Bound volume: this very one as it was checked, no later one."""
        uid, version = found["metadata"]["uid"], found["metadata"]["resourceVersion"]
        try:
            if not found["metadata"].get("deletionTimestamp"):
                found = await self.client.delete(PERSISTENT_VOLUMES, self.saved.name, uid=uid, resource_version=version)
            if (found.get("metadata") or {}).get("finalizers"):
                only = {"op": "test", "path": "/metadata/uid", "value": uid}
                rest = {"op": "remove", "path": "/metadata/finalizers"}
                await self.client.patch(PERSISTENT_VOLUMES, self.saved.name, [only, rest])
        except NotFound:
            pass

        async def gone() -> bool:
            left = await self._found()
            return left is None or left["metadata"]["uid"] != uid

        await _until(gone, "the volume is still there although its finalizers were removed")

    def _wanted(self) -> Object:
        made = portable(self.saved.before if self.back else self.saved.after)
        made["spec"][_POLICY] = "Retain"  # until the claim is bound: nobody may delete what nobody has
        former = self.saved.found("undo-retained") if self.back else {}
        if former:  # it may have grown
            made["spec"]["capacity"] = former["spec"]["capacity"]
        return made

    async def _bound(self, found: Object) -> None:
        """Wait until volume and claim are Bound.

        The binder looks at a claim when it changes, and every 15 s; a volume that comes back changes no claim
        (pkg/controller/volume/persistentvolume, syncVolume). So the claim gets an annotation once the volume is Bound.
        """
        namespace, name, uid = claim_of(found)
        if not name:
            return

        async def volume() -> bool:
            return _phase(await self.client.get(PERSISTENT_VOLUMES, self.saved.name)) == "Bound"

        async def claim() -> bool:
            one = await self.client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)
            return _phase(one) == "Bound" and one["metadata"]["uid"] == uid

        await _until(volume, f"volume {self.saved.name} is not Bound")
        said = {"metadata": {"annotations": {EXCHANGED: now()}}}
        await self.client.patch(PERSISTENT_VOLUME_CLAIMS, name, said, namespace)
        await _until(claim, f"claim {namespace}/{name} is not Bound")

    async def _restore_policy(self, found: Object) -> None:
        policy = self._policy()
        if policy is not None and found["spec"].get(_POLICY) != policy:
            await self.client.patch(PERSISTENT_VOLUMES, self.saved.name, {"spec": {_POLICY: policy}})


def _policy_of(found: Mapping[str, Any]) -> str:
    return str(found["spec"].get(_POLICY, "Retain"))


def _phase(found: Object) -> object:
    return (found.get("status") or {}).get("phase")


async def refuse_in_use(client: Client, volume: Mapping[str, Any]) -> None:
    """Refuse a volume whose claim a pod uses.

    Raises:
        InUse: a pod does; the message names all that do.
    """
    users = await users_of(client, volume)
    if users:
        namespace, name, _ = claim_of(volume)
        raise InUse(
            f"claim {namespace}/{name} is used by {', '.join(users)}: scale it down, wait until the pods are gone, and "
            "begin again"
        )


async def users_of(client: Client, volume: Mapping[str, Any]) -> list[str]:
    """Return the pods that use a volume's claim and have not ended."""
    namespace, name, _ = claim_of(volume)
    return users_among(await client.list(PODS, namespace), volume) if name else []


def users_among(pods: Iterable[Object], volume: Mapping[str, Any]) -> list[str]:
    """Return which of the pods of its namespace use a volume's claim and have not ended."""
    namespace, name, _ = claim_of(volume)
    return [
        f"pod {namespace}/{pod['metadata']['name']}"
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in _ENDED and _uses(pod, name)
    ]


def _uses(pod: Mapping[str, Any], claim: str) -> bool:
    return any(
        (one.get("persistentVolumeClaim") or {}).get("claimName") == claim for one in pod["spec"].get("volumes") or ()
    )


async def _until(holds: Callable[[], Awaitable[bool]], otherwise: str) -> None:
    """Wait for what the cluster does by itself."""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                if await holds():
                    return
                await asyncio.sleep(_POLL)
    except TimeoutError:
        text = f"{otherwise} after {PATIENCE:g} s; does kube-controller-manager run? Begin again to go on"
        raise DeadlineExceeded(text) from None
