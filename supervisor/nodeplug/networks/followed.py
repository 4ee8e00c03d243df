"""Networks as objects: what this node follows of the cluster, and what it makes of it.

Owns: one client of the API server, the collections that are followed, and beginning anew after a failure.
Refuses: what the objects mean (`objects`), files (`conflists`, `definitions`), and what plugins are told (`door`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodeplug.config import NetworksSection, Paths
from nodeplug.contract.cluster import ClusterNetworks
from nodeplug.contract.errors import PluginError
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.followed import Followed
from nodeplug.kubeapi.resources import NETWORK_ATTACHMENT_DEFINITIONS, NETWORKS, NODES, PODS, Object
from nodeplug.networks import objects
from nodeplug.networks.conflists import Conflists
from nodeplug.networks.definitions import Definitions
from nodeplug.networks.door import Door, SectionDoor
from nodeplug.networks.publishing import Publishing
from nodeplug.networks.reports import Reports
from nodeplug.process.aside import aside
from nodeplug.process.lane import Lane

LOG: Final = logging.getLogger(__name__)
_AFTER_FAILURE: Final = 5.0
_SETTLING: Final = 0.5
"""Seconds in which changes of definitions are collected before they are written."""
_SHARE: Final = 50.0
"""Times as long as a write took until the next one begins: ten thousand definitions are not written for each change."""


class Networks:
    """The networks of this node. Event loop only, but for its door.

    Args:
        section: of the configuration.
        node: its name in the cluster.
        paths: of this node.
        claims: what this daemon serves.
    """

    def __init__(
        self, section: NetworksSection, node: str, paths: Paths, claims: Callable[[], Collection[str]]
    ) -> None:
        folder = paths.state / "networks"
        self.section, self.node, self.paths, self.claims = section, node, paths, claims
        self.definitions = Definitions(folder / "definitions.json")
        self.conflists = Conflists(folder / "conflists")
        self.door = Door(node, section.patience, section.paths, self.definitions, self.conflists)
        self.reports = Reports(node, self.door.followed)
        self.door.reported = self.reports.add
        self.trouble = ""
        self._session: _Session | None = None

    def door_of(self, section: str) -> ClusterNetworks:
        """Return what the plugin of a section is given. Any thread."""
        return SectionDoor(self.door, section)

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        await aside(self._recover, "networks: read what was known last")
        while True:
            try:
                access = await aside(lambda: find(self.section.kubeconfig), "networks: find the API server")
                async with Client(Credentials(access)) as client:
                    self.trouble, self.door.client = "", client
                    self._session = _Session(self, client)
                    await self._session.run()
            except PluginError as error:
                if error.message != self.trouble:
                    LOG.warning("networks of the cluster are not known: %s", error.message)
                self.trouble = error.message
            except ExceptionGroup:
                LOG.exception("what follows networks of the cluster failed; it begins anew")
                self.trouble = "it failed, and begins anew; the daemon's log has the traceback"
            finally:
                self.door.client, self.door.pods = None, lambda _: None
                self.door.trouble = self.trouble or self.door.trouble
            await asyncio.sleep(_AFTER_FAILURE)

    def _recover(self) -> None:
        """Read the definitions, so that no pod waits for a long file; remove what a killed daemon was writing."""
        for folder in (self.paths.state / "networks", self.conflists.folder):
            for left in folder.glob(".*.tmp"):
                with suppress(OSError):
                    left.unlink()
        self.definitions.find("", "")

    def status(self) -> list[Mapping[str, str]]:
        """Say what it cannot do at present, and why; nothing if all is well."""
        session = self._session
        rows = {"API server": self.trouble} if self.trouble else {}
        if session is not None:
            rows |= session.troubles
        if self.reports.trouble:
            rows["status of pods"] = self.reports.trouble
        return [{"about": about, "problem": problem} for about, problem in rows.items()]


@dataclass(slots=True)
class _Session:
    """One client's time."""

    owner: Networks
    client: Client
    disk: str = ""
    pods: Followed = field(init=False)
    definitions: Followed = field(init=False)
    networks: Followed = field(init=False)
    nodes: Followed = field(init=False)
    _publishing: Publishing = field(init=False)
    _defined: asyncio.Event = field(default_factory=asyncio.Event)
    _published: asyncio.Event = field(default_factory=asyncio.Event)
    _writing: Lane = field(default_factory=lambda: Lane("the disk with the networks of the cluster", 10.0))

    def __post_init__(self) -> None:
        client, owner = self.client, self.owner
        here, this = f"spec.nodeName={owner.node}", f"metadata.name={owner.node}"
        self.pods = Followed(client, PODS, lambda _: True, kept=objects.slim_pod, fields=here)
        self.definitions = Followed(
            client,
            NETWORK_ATTACHMENT_DEFINITIONS,
            lambda _: True,
            self._defined,
            kept=objects.slim_definition,
            optional=True,
        )
        self.networks = Followed(client, NETWORKS, lambda _: True, self._published, optional=True)
        self.nodes = Followed(client, NODES, lambda _: True, self._published, kept=objects.slim_node, fields=this)
        folders = (owner.paths.cni_conf, owner.paths.cni_bin)
        self._publishing = Publishing(
            client,
            owner.node,
            self.networks,
            self.nodes,
            owner.conflists,
            owner.claims,
            folders,
            lambda: owner.door.used,
            self._published,
            owner.section.paths,
        )

    @property
    def troubles(self) -> Mapping[str, str]:
        """What is not known or done, and why."""
        followed = {"pods": self.pods, "definitions": self.definitions}
        if self.owner.section.objects:
            followed |= {"networks": self.networks, "node": self.nodes}
        rows = {about: text for about, one in followed.items() if (text := one.trouble or one.absent)}
        rows |= {"cache of definitions": self.disk} if self.disk else {}
        return rows | {f"network {name}": text for name, text in self._publishing.problems.items()}

    async def run(self) -> None:
        """Follow and publish, for ever."""
        door = self.owner.door
        door.pods, door.changed = self._pod, self._published.set
        work = [self.pods.follow(), self.definitions.follow(), self._keep(), self.owner.reports.run(self.client)]
        if self.owner.section.objects:
            work += [self.networks.follow(), self.nodes.follow(), self._publishing.run()]
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)

    def _pod(self, key: str) -> Object | None:
        return self.pods.objects.get(key)

    async def _keep(self) -> None:
        """Know the definitions that are followed, and write them when they have changed."""
        pause = _SETTLING
        while True:
            await self._defined.wait()
            self._defined.clear()
            self.owner.definitions.follow(lambda: self.definitions.objects)
            await asyncio.sleep(pause)
            if self._defined.is_set() and pause == _SETTLING:
                continue  # there are more of them
            self._defined.clear()
            begun = time.monotonic()
            await self._write()
            pause = max(_SETTLING, (time.monotonic() - begun) * _SHARE)

    async def _write(self) -> None:
        try:
            known = dict(self.definitions.objects)
            await self._writing.run(lambda: self.owner.definitions.write(known))
            self.disk = ""
        except (PluginError, OSError) as error:
            if not self.disk:
                LOG.warning("the networks of the cluster are not kept for the next start: %s", error)
            self.disk = str(error)
            with suppress(RuntimeError):
                asyncio.get_running_loop().call_later(_AFTER_FAILURE, self._defined.set)
