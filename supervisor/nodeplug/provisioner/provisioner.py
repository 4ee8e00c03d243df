"""Claims of the cluster get volumes of this node's drivers, which grow and go with them.

Owns: what is to be done, from what the API server says now and from a record of what was begun; each step may be
repeated, so that a daemon that was killed between any two of them finishes what it finds.
Refuses: to do it (`steps`), what the objects say (`objects`), and claims of other nodes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from nodeplug.config import ProvisionerSection
from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import Journal
from nodeplug.csi.driver import Driver
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.followed import Followed
from nodeplug.kubeapi.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES, Object, key_of
from nodeplug.process.aside import aside
from nodeplug.process.lane import Lane
from nodeplug.provisioner import objects
from nodeplug.provisioner.capacity import Capacity
from nodeplug.provisioner.steps import Steps
from nodeplug.provisioner.work import Work

LOG: Final = logging.getLogger(__name__)
_TICK: Final = 30.0
"""Seconds after which everything is looked at again, whatever was told."""
_AFTER_FAILURE: Final = 10.0


@dataclass(slots=True)
class Provisioner:
    """The provisioner of this node. Event loop only.

    Attributes:
        drivers: the CSI drivers that are served now, by name.
        node: its name in the cluster.
        journal: what was begun.
        section: of the configuration.
        trouble: why it does nothing at present.
    """

    drivers: Callable[[], Mapping[str, Driver]]
    node: str
    journal: Journal
    section: ProvisionerSection
    trouble: str = ""
    _session: "_Session | None" = None

    async def run(self) -> None:
        """Provision until cancelled."""
        while True:
            try:
                access = await aside(lambda: find(self.section.kubeconfig), "provisioner: find the API server")
                async with Client(Credentials(access)) as client:
                    self.trouble = ""
                    self._session = _Session(self, client)
                    await self._session.run()
                continue  # other drivers are served now
            except PluginError as error:
                if error.message != self.trouble:
                    LOG.warning("the provisioner does nothing: %s", error.message)
                self.trouble = error.message
            except ExceptionGroup:
                LOG.exception("the provisioner failed; it begins anew")
                self.trouble = "it failed, and begins anew; the daemon's log has the traceback"
            await asyncio.sleep(_AFTER_FAILURE)

    def status(self) -> list[Mapping[str, str]]:
        """Say what it cannot do at present, and why; nothing if all is well."""
        session = self._session
        trouble = self.trouble or (session.trouble if session is not None else "")
        rows = {"API server": trouble} if trouble else {}
        rows |= {"records": session.disk} if session is not None and session.disk else {}
        rows |= session.problems if session is not None else {}
        return [{"about": about, "problem": problem} for about, problem in rows.items()]


@dataclass(slots=True)
class _Session:
    """One client's time."""

    owner: Provisioner
    client: Client
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    """Is set when there may be more or less room, or another class to tell it for."""
    _records: Lane = field(default_factory=lambda: Lane("the disk with the records of the provisioner"))
    disk: str = ""
    _work: Work | None = None
    claims: Followed = field(init=False)
    volumes: Followed = field(init=False)
    classes: Followed = field(init=False)
    _steps: Steps = field(init=False)

    def __post_init__(self) -> None:
        self._steps = Steps(self.client, self.owner.node, self.owner.journal, self._records)
        drivers, node = self.owner.drivers, self.owner.node
        self.claims = Followed(
            self.client,
            PERSISTENT_VOLUME_CLAIMS,
            lambda claim: objects.driver_of(claim) in drivers(),
            self._changed,
        )
        self.volumes = Followed(
            self.client,
            PERSISTENT_VOLUMES,
            lambda volume: objects.made_here(volume, node) or objects.is_on_no_node(volume, self._everywhere()),
            self._changed,
        )
        self.classes = Followed(self.client, STORAGE_CLASSES, lambda _: True, self._changed, self._room)

    def _everywhere(self) -> frozenset[str]:
        """Return the drivers whose volumes are on no node."""
        return frozenset(name for name, one in self.owner.drivers().items() if not one.topology)

    @property
    def trouble(self) -> str:
        """Why nothing new is known."""
        return next(filter(None, (one.trouble for one in (self.claims, self.volumes, self.classes))), "")

    @property
    def problems(self) -> Mapping[str, str]:
        """What fails, by what it is about."""
        return self._work.problems if self._work is not None else {}

    async def run(self) -> None:
        """Provision until the drivers are others: then all claims are listed anew."""
        names = frozenset(self.owner.drivers())
        owner = self.owner
        async with asyncio.TaskGroup() as group:
            self._work = Work(group, self._changed, self._room)
            capacity = Capacity(
                self.client, owner.drivers, owner.node, owner.section.namespace, self.classes, self._room
            )
            tasks = [group.create_task(one.follow()) for one in (self.claims, self.volumes, self.classes)]
            tasks.append(group.create_task(capacity.keep(owner.section.capacity_poll)))
            while frozenset(owner.drivers()) == names:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TICK):
                        await self._changed.wait()
                self._changed.clear()
                if self.claims.known and self.volumes.known and self.classes.known:
                    await self._decide(self._work)
            for task in tasks:
                task.cancel()

    # --- what is to be done

    async def _decide(self, work: Work) -> None:
        due = {one.key: one for one in [*self._due(), *await self._left()]}
        work.forget_others(set(due))
        for one in due.values():
            work.begin(one.key, one.step, partial(self._failed, one))

    async def _failed(self, due: "_Due", error: PluginError) -> None:
        if due.about is not None:
            await self._steps.tell(due.about, due.reason, error.message)

    def _due(self) -> "Iterator[_Due]":
        drivers, node = self.owner.drivers(), self.owner.node
        for key, claim in self.claims.objects.items():
            driver = drivers.get(objects.driver_of(claim))
            is_made = objects.volume_name(claim) in self.volumes.objects  # the binder has the next word
            if driver is not None and objects.is_wanted(claim, node) and not is_made:
                storage_class = self.classes.objects.get(str(claim["spec"].get("storageClassName")))
                step = partial(self._steps.create, claim, storage_class, driver)
                yield _Due(f"claim {key}", step, claim, "ProvisioningFailed")
        for name, volume in self.volumes.objects.items():
            driver = drivers.get(objects.annotation(volume, objects.MADE_BY))
            if driver is None:
                continue
            if objects.is_held_for_nothing(volume):
                yield _Due(f"object of {name}", partial(self._steps.keep, volume))
            if objects.is_to_be_deleted(volume):
                step = partial(self._steps.delete, volume, driver)
                yield _Due(f"volume {name}", step, volume, "VolumeFailedDelete")
                continue
            found = self._claim_of(volume)
            if found is not None and (objects.growth(found, volume) or not objects.is_told(found, volume)):
                step = partial(self._steps.grow, found, volume, driver)
                yield _Due(f"size of {key_of(found)}", step, found, "VolumeResizeFailed")

    def _claim_of(self, volume: Object) -> Object | None:
        reference = volume["spec"].get("claimRef") or {}
        found = self.claims.objects.get(f"{reference.get('namespace')}/{reference.get('name')}")
        return found if found is not None and found["metadata"]["uid"] == reference.get("uid") else None

    async def _left(self) -> "list[_Due]":
        """Return what `_begun` finds; a disk that does not answer keeps nobody from growing and deleting."""
        try:
            found = await self._begun()
        except (PluginError, OSError) as error:
            if not self.disk:
                LOG.warning("what the provisioner has begun is not known: %s", error)
            self.disk = f"what it has begun is not known: {error}"
            return []
        self.disk = ""
        return found

    async def _begun(self) -> "list[_Due]":
        """Return what to do about volumes that were begun for claims that are gone, or sent to another node."""
        drivers, found = self.owner.drivers(), []
        for entry in await self._records.run(self.owner.journal.entries):
            claim = self.claims.objects.get(f"{entry.data['namespace']}/{entry.data['claim']}")
            mine = claim is not None and claim["metadata"]["uid"] == entry.data["uid"]
            driver = drivers.get(str(entry.data["driver"]))
            if driver is None or (mine and claim is not None and objects.is_wanted(claim, self.owner.node)):
                continue
            found.append(_Due(f"begun {entry.key}", partial(self._steps.abandon, entry, driver)))
        return found


@dataclass(frozen=True, slots=True)
class _Due:
    """Something that is to be done, and whom a failure is told."""

    key: str
    step: Callable[[], Awaitable[None]]
    about: Object | None = None
    reason: str = ""
