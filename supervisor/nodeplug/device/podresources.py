"""Who holds which device, from kubelet's podresources API, and the release that the device-plugin API lacks.

Owns: the one poller of the node, the holders seen, and `device_released` for holders that are gone.
Refuses: an allocation table of its own: what is kept on disk is only "seen and not yet told", so that plugins still
hear of a release that came while the daemon was down.

Kubelet frees ids lazily and a poll comes later still, so plugins may be told of a release after the ids were granted
again.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import NotReady, PluginError, TryAgain
from nodeplug.contract.journal import write_durably
from nodeplug.contract.values import DeviceId, DeviceReleased, Holding, ResourceName
from nodeplug.device.checkpoint import LedgerEntry, Unlisted, read_ledger
from nodeplug.device.holders import ClaimUsers, Holder, Holdings, by_resource, joined
from nodeplug.hosting.call import Call
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.pb import podresources_v1_pb2 as pb
from nodeplug.pb import podresources_v1_pb2_grpc as pb_grpc
from nodeplug.process.lane import Lane, Unanswered

LOG: Final = logging.getLogger(__name__)
_VERSION: Final = 1
_STATE_LIMIT: Final = 64 << 20
"""Bytes of the file of holders: a node with every unit of a thousand resources held stays far below that."""
_DEADLINE: Final = 10.0
_LONGEST_PAUSE: Final = 120.0
SETTLE: Final = 0.5
"""Seconds between a grant and the look that should find it; many grants in that time share one look."""
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # one entry per device: a busy node exceeds gRPC's default of 4 MiB
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class ListedPods:
    """One answer of List: how many pods it names, the holdings of those with devices, and who uses which claim.

    What a claim has is not read: kubelet lists all devices of it for each container, some twice, and no amounts.
    """

    pods: int
    holdings: Holdings
    users: ClaimUsers = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _KubeletFiles:
    """What lies in kubelet's folders.

    Attributes:
        identity: of the podresources socket; None when it cannot be seen.
        ledger: kubelet's own.
        alive: the UIDs of the pods that have a folder (below kubelet's `--root-dir`); None when that cannot be seen.
    """

    identity: tuple[int, ...] | None
    ledger: list[LedgerEntry]
    alive: Collection[str] | None


def decode_list(response: pb.ListPodResourcesResponse) -> ListedPods:
    """Read a List: kubelet sends one entry per id and NUMA node; these are joined here."""
    holdings: dict[tuple[ResourceName, Holder], set[DeviceId]] = {}
    users: dict[tuple[str, str], set[Holder]] = {}
    for pod in response.pod_resources:
        for container in pod.containers:
            holder = Holder(pod.namespace, pod.name, container.name)
            for entry in container.devices:
                ids = holdings.setdefault((ResourceName(entry.resource_name), holder), set())
                ids.update(DeviceId(name) for name in entry.device_ids)
            for claim in container.dynamic_resources:
                users.setdefault((claim.claim_namespace, claim.claim_name), set()).add(holder)
    return ListedPods(
        len(response.pod_resources),
        {key: frozenset(ids) for key, ids in holdings.items() if ids},
        {claim: frozenset(of) for claim, of in users.items()},
    )


async def ask(path: Path) -> ListedPods:
    """Ask kubelet who holds what.

    Raises:
        TryAgain: kubelet is away, or its rate limit (shared by all clients of the node) refused the call.
    """
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}", _OPTIONS) as channel:
            stub = pb_grpc.PodResourcesListerStub(channel)
            return decode_list(await stub.List(pb.ListPodResourcesRequest(), timeout=_DEADLINE))
    except grpc.aio.AioRpcError as error:
        raise TryAgain(f"podresources on {path}: {error.code().name}: {error.details()}") from error


def released(seen: Holdings, present: Holdings) -> Sequence[DeviceReleased]:
    """Compare two looks: what containers held and no longer hold, one value per container and resource."""
    gone = {key: seen[key] - present.get(key, frozenset()) for key in sorted(seen)}
    return [
        DeviceReleased(resource=resource, ids=tuple(sorted(ids)), **asdict(holder))
        for (resource, holder), ids in gone.items()
        if ids
    ]


def without(holdings: Holdings, told: Iterable[DeviceReleased]) -> Holdings:
    """Return holdings without the releases that plugins were told of."""
    left = dict(holdings)
    for value in told:
        key = (value.resource, Holder(value.namespace, value.pod, value.container))
        left[key] = left.get(key, frozenset()) - frozenset(value.ids)
    return {key: ids for key, ids in left.items() if ids}


def encode_state(holdings: Holdings) -> bytes:
    """Write holdings for the disk."""
    entries = [
        {"resource": resource, **asdict(holder), "ids": sorted(ids)}
        for (resource, holder), ids in sorted(holdings.items())
    ]
    return json.dumps({"version": _VERSION, "holders": entries}).encode()


def decode_state(data: bytes) -> Holdings:
    """Read holdings from the disk; raise ValueError if the file is damaged or of another version."""
    try:
        document = json.loads(data)
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r}")
        return {
            (ResourceName(entry["resource"]), Holder(entry["namespace"], entry["pod"], entry["container"])): frozenset(
                map(DeviceId, entry["ids"])
            )
            for entry in document["holders"]
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


@dataclass(slots=True)
class PodResources:
    """The node's poller.

    Attributes:
        socket: podresources; it may be absent.
        state: the file of what was seen; its folder exists.
        routes: the device routes as they are now; holders of other resources are only remembered.
        runner: calls `device_released`.
        interval: seconds between two looks.
        unsynced_grace: seconds for which an answer that names no pod at all, or comes from a kubelet that was
            restarted, is not believed. A kubelet that just started knows no pods yet, or only those of its manifest
            folder while the API server is away, and would seem to have released everything else.
        checkpoint: kubelet's own ledger, for the containers that podresources leaves out; None: not read.
        present: the holdings of the last answer.
        users: the containers that use each claim, by the last answers; see `users_of`.
        error: why there is no answer at present; empty when there is.
    """

    socket: Path
    state: Path
    routes: Callable[[], Sequence[Route]]
    runner: Runner
    interval: float = 10.0
    unsynced_grace: float = 60.0
    checkpoint: Path | None = None
    present: Holdings = field(default_factory=dict)
    users: ClaimUsers = field(default_factory=dict)
    error: str = ""
    _seen: Holdings = field(default_factory=dict)
    _begun: float = -math.inf
    _missing_since: dict[DeviceReleased, float] = field(default_factory=dict)
    _kubelet: tuple[int, ...] | None = None
    _restarted: float = -math.inf
    _failures: int = 0
    _answered: bool = False
    _unsynced: bool = False
    _unlisted: Unlisted = field(default_factory=Unlisted)
    _beyond: Holdings = field(default_factory=dict)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _written: Holdings = field(default_factory=dict)
    _disk: Lane = field(default_factory=lambda: Lane("the file of device holders"))
    _kubelet_files: Lane = field(default_factory=lambda: Lane("kubelet's folder"))

    def soon(self) -> None:
        """Look soon: devices were granted a moment ago, and kubelet will have written down to whom."""
        self._asked.set()

    def holders(self) -> Mapping[ResourceName, Mapping[DeviceId, Holder]]:
        """Return who holds each id, as far as is known; see `unconfirmed`."""
        return by_resource(self._known())

    def untold(self, resource: ResourceName) -> frozenset[DeviceId]:
        """Return the ids of a resource that containers hold, or that a plugin has not heard of since they do not."""
        return frozenset(by_resource(self._seen).get(resource, {}))

    def unconfirmed(self) -> Mapping[ResourceName, frozenset[DeviceId]]:
        """Return the ids whose holders are only known from the past: kubelet is away, or does not know all pods yet."""
        silent = bool(self.error) or not self._answered
        sure = {} if silent else by_resource(joined(self.present, self._beyond))
        known = by_resource(self._known())
        left = {name: frozenset(ids.keys() - sure.get(name, {}).keys()) for name, ids in known.items()}
        return {name: ids for name, ids in left.items() if ids}

    def _known(self) -> Holdings:
        """Return who holds what: a kubelet that just started knows fewer holders than there are."""
        unsure = bool(self.error) or not self._answered or self._unsynced
        return joined(joined(self.present, self._seen) if unsure else self.present, self._beyond)

    def unknown_since(self, moment: float) -> str:
        """Return why it is not known who holds devices since a moment of the monotonic clock; empty if it is."""
        return "" if self._begun >= moment else self.error or "kubelet has not been asked since"

    def holdings(self, resource: ResourceName) -> Sequence[Holding]:
        """Return who holds devices of a resource, as of the last answer; NotReady without one. Safe in any thread."""
        if self.error or not self._answered:
            why = self.error or "kubelet has not been asked yet"
            raise NotReady(f"who holds {resource} is unknown at present: {why}")
        return [
            Holding(resource=resource, ids=tuple(sorted(ids)), **asdict(holder))
            for (name, holder), ids in sorted(self._known().items())
            if name == resource
        ]

    def users_of(self, namespace: str, claim: str) -> Sequence[tuple[str, str]]:
        """Return the pods and containers that use a claim, as far as kubelet has told. Safe in any thread.

        Init containers are not among them. Of a claim that was deleted and made anew with the same name, those of the
        former one are told until the next look.
        """
        return [(one.pod, one.container) for one in sorted(self.users.get((namespace, claim), ()))]

    async def run(self) -> None:
        """Look until cancelled. Never fails on its own."""
        await self._recall()
        try:
            while True:
                self._asked.clear()  # before the look: what is asked during it needs another one
                try:
                    await self.look()
                except Exception:
                    LOG.exception("a look at podresources failed")
                pause = self.interval * 2.0 ** min(self._failures, 10)
                await self._pause(min(pause, max(_LONGEST_PAUSE, self.interval)))
        finally:
            await self._remember(self._seen)  # the end may have come while the last look was being written

    async def _recall(self) -> None:
        """Read what was seen before this start. Without it, plugins would never hear of what was released meanwhile."""
        told = False
        while True:
            try:
                self._seen = self._written = await self._disk.run(self._load)
            except Unanswered as error:
                if not told:
                    LOG.warning("kubelet has not been asked yet who holds devices: %s", error)
                told = True
                await asyncio.sleep(self.interval)
            else:
                return

    async def _pause(self, seconds: float) -> None:
        if self._failures or seconds <= SETTLE:  # a rate limit asks for a slower pace
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds - SETTLE):
                await self._asked.wait()
        await asyncio.sleep(SETTLE)

    async def look(self) -> None:
        """Ask once, remember, and tell plugins what was released. Without a resource there is nothing to ask."""
        if not self.routes() and not self._seen:
            return
        begun = time.monotonic()
        try:
            answer = await ask(self.socket)
        except TryAgain as error:
            self._failed(error.message)
            return
        self._failures = 0
        with suppress(Unanswered):  # what was known of kubelet's files stays known
            kubelet = await self._kubelet_files.run(self._read_kubelet)
            self._notice_restart(kubelet.identity)
            self._beyond = self._unlisted.take(kubelet.ledger, answer.holdings, kubelet.alive)
        self._unsynced = not answer.pods or time.monotonic() - self._restarted < self.unsynced_grace
        self.present = answer.holdings
        self.users = {**self.users, **answer.users} if self._unsynced else answer.users
        self._answered, self.error, self._begun = True, "", begun
        served = {route.claim.name: route for route in self.routes()}
        wanted = {key: ids for key, ids in answer.holdings.items() if key[0] in served}
        await self._remember(joined(self._seen, wanted))
        await self._remember(without(self._seen, await self._tell(self._believed(answer), served)))

    def _failed(self, reason: str) -> None:
        # Only a rate limit asks for a slower pace; a kubelet that is away may be back at the next look.
        self._failures = self._failures + 1 if "RESOURCE_EXHAUSTED" in reason else 0
        if not self.error:
            LOG.warning("who holds devices is unknown at present: %s", reason)
        self.error = reason

    def _notice_restart(self, identity: tuple[int, ...] | None) -> None:
        if identity is None:
            return
        if self._kubelet not in {None, identity}:
            self._restarted = time.monotonic()
        self._kubelet = identity

    def _believed(self, answer: ListedPods) -> Sequence[DeviceReleased]:
        """Return what is missing from this answer and was already missing from the one before.

        Once is not enough: a kubelet that just started lists only the pods that it has heard of so far.
        """
        now = time.monotonic()
        missing = released(self._seen, answer.holdings)
        self._missing_since = {value: self._missing_since.get(value, now) for value in missing}
        grace = self.unsynced_grace if self._unsynced else 0.0
        return [value for value in missing if self._missing_since[value] < now - grace]

    async def _tell(self, values: Sequence[DeviceReleased], served: Mapping[str, Route]) -> Sequence[DeviceReleased]:
        """Tell plugins, all resources at once; return what they need not be told again."""
        by_resource: dict[str, list[DeviceReleased]] = {}
        for value in values:
            by_resource.setdefault(value.resource, []).append(value)
        results = await asyncio.gather(
            *(self._tell_one_plugin(served[name], of) for name, of in by_resource.items() if name in served)
        )
        return [value for told in results for value in told]

    async def _tell_one_plugin(self, route: Route, values: Sequence[DeviceReleased]) -> Sequence[DeviceReleased]:
        if "device_released" not in route.hooks:
            return values
        told = []
        for value in values:
            call = Call("DeviceReleased", str(route.claim), key=f"{value.resource}:released")
            try:
                await self.runner.call(route, "device_released", call, {"request": value})
            except PluginError as error:
                LOG.warning("a release of %s will be reported again: %s (request %s)", value.resource, error, call.id)
                break
            told.append(value)
        return told

    async def _remember(self, holdings: Holdings) -> None:
        self._seen = holdings
        if holdings == self._written:
            return
        try:
            await self._disk.run(lambda: write_durably(self.state, encode_state(holdings)))
            self._written = holdings
        except PluginError as error:
            LOG.warning("a release during a restart of the daemon would be missed: %s", error)

    def _read_kubelet(self) -> _KubeletFiles:
        identity: tuple[int, ...] | None = None
        with suppress(OSError):
            found = self.socket.stat()
            identity = found.st_dev, found.st_ino, found.st_ctime_ns
        if self.checkpoint is None:
            return _KubeletFiles(identity, [], None)
        try:
            alive = frozenset(one.name for one in (self.socket.parent.parent / "pods").iterdir())
        except OSError:
            alive = None
        return _KubeletFiles(identity, read_ledger(self.checkpoint), alive)

    def _load(self) -> Holdings:
        try:
            return decode_state(read_bounded(self.state, _STATE_LIMIT))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            LOG.warning("%s is set aside; releases before this start are not reported: %s", self.state, error)
            with suppress(OSError):
                self.state.rename(self.state.with_suffix(".damaged"))
            return {}
