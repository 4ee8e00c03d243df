"""The drivers of this node: one for each section that serves by Dynamic Resource Allocation, and for what is left.

Owns: which drivers there are, the ledger of all their claims, and the connection to the API server.
Refuses: to forget a claim: a driver whose section is gone stays until kubelet has unprepared what it prepared, since no
pod can end without.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc.aio

from nodeplug.config import DraSection, Paths
from nodeplug.contract.errors import NotReady, PluginError, TryAgain
from nodeplug.contract.journal import Journal, file_name
from nodeplug.contract.values import DeviceId, ResourceName
from nodeplug.dra import cdi, names, server
from nodeplug.dra.claims import ClaimReference
from nodeplug.dra.driver import Driver, WhoHolds
from nodeplug.dra.ledger import Ledger
from nodeplug.dra.preparation import Preparation
from nodeplug.dra.publication import Publication
from nodeplug.dra.records import read_record, sections_of
from nodeplug.dra.served import Served
from nodeplug.dra.values import Pool
from nodeplug.hosting.front import Front
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.resources import RESOURCE_CLAIMS, Object
from nodeplug.process.aside import aside
from nodeplug.process.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOG: Final = logging.getLogger(__name__)
_AGAIN: Final = 10.0
"""Seconds between two tries to find the API server."""
_PAUSE: Final = 0.05
FIRST_LOOK: Final = 5.0
"""Longest time in seconds that a request waits for the kubeconfig to be read after the start of the daemon."""
_LAST_REQUESTS: Final = 2.0
"""Seconds in which requests that have begun are to end, when the daemon ends."""
_REPEATED: Final = frozenset({server.PREPARE, server.UNPREPARE})


class Drivers:
    """All drivers of this node. Event loop only.

    Args:
        registry: who claims what.
        runner: calls plugins.
        paths: of the node.
        node: its name.
        section: `[dra]`.
        kubeconfig: how to reach the API server; None as `credentials.find` does without.
        cdi_dir: where specs are written, `root` included.
        poll: seconds between two listings of a resource.
        journal: has the records of claims.
        elsewhere: the ids of a resource that containers hold which kubelet's device plugins got.
        who_holds: knows them.
        freed: is called when a claim has given ids of a resource back.
    """

    def __init__(
        self,
        registry: Registry,
        runner: Runner,
        paths: Paths,
        node: str,
        section: DraSection,
        kubeconfig: "Path | None",
        cdi_dir: "Path",
        poll: float,
        journal: Journal,
        elsewhere: "Callable[[ResourceName], Collection[DeviceId]]",
        who_holds: WhoHolds,
        freed: "Callable[[ResourceName], None]",
    ) -> None:
        self.ledger = Ledger()
        self._registry, self._runner, self._paths, self._node = registry, runner, paths, node
        self._section, self._kubeconfig, self._cdi, self._poll = section, kubeconfig, cdi_dir, poll
        self._journal, self._elsewhere, self._freed = journal, elsewhere, freed
        self._who_holds = who_holds
        self._drivers: dict[str, Driver] = {}
        self._expected: set[str] = set()
        self._unreadable: list[Path] = []
        self._front = Front(runner, repeated=_REPEATED)
        self._lane = Lane("kubelet's folders of DRA sockets")
        self._client: Client | None = None
        self._trouble = "the API server has not been asked yet"
        self._has_looked = asyncio.Event()
        self._ended = False
        self._turn = server.Turn()
        self.publication = Publication(node, section.taint, self._wanted)

    # --- the life cycle

    async def announce(self, sections: Collection[str], seconds: float) -> None:
        """Have kubelet know every driver beside the daemon that still serves them; it asks this one from then on.

        Its requests wait for the first `keep`: what claims have is the other daemon's until then.

        Args:
            sections: that serve claims; those whose claims are left get a driver, too.
            seconds: for kubelet, which looks into the folder every second.
        """
        for section in sections:
            self.expect(section)
        for section in sorted(await aside(partial(sections_of, self._journal.folder), "records of claims")):
            self._driver(section)
        until = time.monotonic() + seconds
        served = [driver.served for driver in self._drivers.values()]
        for one in served:
            with suppress(PluginError):  # `keep` tries again, and says so
                await one.keep()
        while time.monotonic() < until and not all(one.registered for one in served):  # noqa: ASYNC110 - for seconds, once
            await asyncio.sleep(_PAUSE)

    async def recover(self) -> None:
        """Read the records of claims; whoever has some gets a driver, section or not."""
        folder = self._journal.folder
        for entry in await aside(self._journal.entries, "records of claims"):
            try:
                self.ledger.note(read_record(entry))
            except ValueError as error:
                self._unreadable.append(folder / f"{file_name(entry.key)}.json")
                LOG.error("%s cannot be read: %s", self._unreadable[-1], error)
        self._unreadable += await aside(lambda: sorted(folder.glob("*.damaged")), "damaged records of claims")
        for section in sorted({record.section for record in self.ledger.records.values()}):
            self._driver(section)

    def serve(self, plugin: str, routes: Collection[Route]) -> None:
        """Have a driver list what a section claims; none of it if the section serves it otherwise."""
        self._expected.discard(plugin)
        if routes or plugin in self._drivers:
            self._driver(plugin).serve([*routes])

    def expect(self, section: str) -> None:
        """Have a driver for a section whose plugin is about to be loaded; its slices stay as they are until then."""
        self._expected.add(section)
        self._driver(section)

    def hold(self, plugin: str) -> None:
        """See `ServedDevices.hold`."""
        if plugin in self._drivers:
            self._drivers[plugin].hold()

    def withdraw(self, plugin: str, why: str) -> None:
        """See `ServedDevices.withdraw`."""
        if plugin in self._drivers:
            self._drivers[plugin].withdraw(why)

    def unlist(self, plugin: str) -> None:
        """List nothing of a section any more: it is gone, or serves otherwise."""
        self._expected.discard(plugin)
        if plugin in self._drivers:
            self._drivers[plugin].unlist()

    def refresh(self, resource: ResourceName) -> None:
        """Ask for another list of a resource."""
        for driver in self._drivers.values():
            driver.refresh(resource)

    def _driver(self, section: str) -> Driver:
        if section in self._drivers:
            return self._drivers[section]
        name = names.driver_name(section)
        preparation, news = self._preparation(section, name), server.News()

        def services(added: grpc.aio.Server) -> None:
            server.serve(preparation, self._drivers[section], news, self._front, self._turn, added)

        kubelet = self._paths.plugins_registry.parent
        served = Served(name, kubelet / "plugins", self._paths.plugins_registry, self._lane, services)
        changed = self.publication.news.set
        self._drivers[section] = Driver(
            section=section,
            name=name,
            node=self._node,
            preparation=preparation,
            served=served,
            news=news,
            runner=self._runner,
            poll=self._poll,
            order=self._section.order,
            changed=changed,
            who_holds=self._who_holds,
        )
        LOG.info("section %s serves its devices by the DRA driver %s", section, name)
        return self._drivers[section]

    def _preparation(self, section: str, driver: str) -> Preparation:
        return Preparation(
            driver=driver,
            section=section,
            pools=partial(self._pools, section),
            claim=self._claim,
            elsewhere=self._elsewhere,
            listed=partial(self._listed, section),
            settled=partial(self._settled, section),
            freed=self._freed,
            awaited=partial(self._awaited, section),
            ended=partial(self._release, section),
            registry=self._registry,
            runner=self._runner,
            ledger=self.ledger,
            journal=self._journal,
            specs=cdi.SpecFolder(self._cdi, driver),
        )

    async def _listed(self, section: str, pool: str) -> None:
        await self._drivers[section].listed(pool)

    async def _settled(self, section: str, resource: ResourceName) -> None:
        if self._unreadable:
            raise NotReady(
                f"{self._unreadable[0]} cannot be read, and nobody knows what its claim holds: when the pods of that "
                "claim have ended, remove the file and restart nodeplug"
            )
        await self._drivers[section].settled(resource)

    def _release(self, section: str) -> None:
        self._drivers[section].release()

    def _pools(self, section: str) -> Mapping[str, Pool]:
        return self._drivers[section].by_name()

    # --- what is asked of it

    @property
    def asked(self) -> int:
        """How many requests of kubelet are not answered."""
        return len(self._turn.under_way)

    def withheld(self, resource: ResourceName) -> Mapping[DeviceId, str]:
        """Return which ids claims have, each with the reason why nobody else may."""
        return {name: f"held by claim {one.claim}" for name, one in self.ledger.taken(resource).items()}

    async def keep(self) -> None:
        """Serve every driver, and drop those that nobody needs any more."""
        self._turn.comes.set()
        for section, driver in list(self._drivers.items()):
            if self._ended:
                return
            if not self._serves(section) and not self.ledger.of(section):
                del self._drivers[section]
                await driver.end()
                LOG.info("the DRA driver %s is withdrawn: no section has it, and no claim", driver.name)
                self.publication.news.set()
                continue
            try:
                await driver.keep()
            except Exception as error:  # one driver's trouble is no other's
                if driver.problem != str(error):
                    LOG.exception("the DRA driver %s could not be looked after", driver.name)
                driver.problem = str(error)

    async def _claim(self, wanted: ClaimReference) -> Object:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK):
                await self._has_looked.wait()
        if self._client is None:
            raise TryAgain(f"claim {wanted} cannot be read: {self._trouble}")
        return await self._client.get(RESOURCE_CLAIMS, wanted.name, wanted.namespace)

    async def run(self) -> None:
        """Reach the API server, and publish until cancelled."""
        while True:
            try:
                access = await aside(partial(find, self._kubeconfig), "DRA: find the API server")
                async with Client(Credentials(access)) as self._client:
                    self._has_looked.set()
                    await self.publication.run(self._client)
            except PluginError as error:
                if error.message != self._trouble:
                    LOG.warning("DRA: %s", error.message)
                self._trouble = self.publication.trouble = error.message
            except Exception:
                LOG.exception("DRA: publishing slices failed; it begins anew")
            finally:
                self._client = None
            self._has_looked.set()
            await asyncio.sleep(_AGAIN)

    def _wanted(self) -> Mapping[str, Mapping[str, Any] | None]:
        if self._ended:  # what is published stays for the next daemon
            return dict.fromkeys((one.name for one in self._drivers.values()), None)
        return {one.name: one.wanted if self._serves(section) else {} for section, one in self._drivers.items()}

    def _awaited(self, section: str) -> bool:
        """Whether a section has a plugin that is not loaded at present."""
        slot = self._registry.slots.get(section)
        return section in self._expected if slot is None else slot.loaded is None

    def _serves(self, section: str) -> bool:
        """Whether a section serves claims, or did so when the daemon started and has not been loaded yet."""
        slot = self._registry.slots.get(section)
        return section in self._expected if slot is None else slot.instance.section.serve == "dra"

    async def end(self) -> None:
        """Stop serving; slices and claims stay for the next daemon, which reads the records when all is written."""
        self._ended = True
        if self._turn.comes.is_set():
            self._turn.comes.clear()  # nothing more begins
            if self._turn.under_way:
                await asyncio.wait(set(self._turn.under_way), timeout=_LAST_REQUESTS)
        await asyncio.gather(*(driver.end() for driver in self._drivers.values()))

    def status(self) -> list[dict[str, Any]]:
        """Describe every driver."""
        return [one.status(self.publication.trouble_of(one.name)) for one in self._drivers.values()]
