"""What each plugin is given: its `Host`, with a journal and folders of its own.

Owns: which room answers what a plugin asks of its host.
Refuses: to answer it, and to know when plugins come and go (`nodeplug.hosting`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from nodeplug.cni.attachments import Attachments
from nodeplug.cni.delegate import Delegation
from nodeplug.cni.survivors import survivors
from nodeplug.config.models import Paths
from nodeplug.contract.cluster import ClusterNetworks
from nodeplug.contract.host import FormerSection, Host
from nodeplug.contract.journal import Entry, Journal, file_name
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.contract.values import CniRecord, Holding, ResourceName
from nodeplug.device.podresources import PodResources
from nodeplug.device.resources import Resources
from nodeplug.dra.section import DynamicResources
from nodeplug.hosting import rights
from nodeplug.hosting.kept_sockets import SocketsBySection
from nodeplug.hosting.own_folders import OwnFolders
from nodeplug.hosting.plugin_users import PluginUsers
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.rights import Permits
from nodeplug.loading.discovery import place_of
from nodeplug.observe.state_disk import StateDisk
from nodeplug.process import across
from nodeplug.worker.answering import ANSWERS, UNANSWERED
from nodeplug.worker.cgroups import Cgroups
from nodeplug.worker.programs import Programs

_Name = TypeVar("_Name", bound=str)
VOLUMES: Final = "flexvolume"
"""The name of the journal in which the host itself notes volumes."""
PROVISIONER: Final = "csi-provisioner"
"""The name of the one in which it notes those that it creates for claims."""
CLAIMS: Final = "resource-claims"
"""The name of the one in which it notes what claims of devices have."""
EXCLUSIVE: Final = "exclusive-claims"
"""The folder of the state in which it notes which section had which exclusive claim."""
EXTENDER: Final = "[extender]"
"""The name under which the socket of scheduler extenders is kept for the next daemon."""


@dataclass
class Hosts:
    """Makes hosts. Created on the event loop; `make` and `journal` belong to any thread."""

    node: str
    boot_id: str
    paths: Paths
    disk: StateDisk
    folders: OwnFolders
    registry: Registry
    resources: Resources
    podresources: PodResources
    claims: DynamicResources
    delegation: Delegation
    cgroups: Cgroups
    users: PluginUsers
    networks: Callable[[str], ClusterNetworks]
    scheduling: Callable[[], ClusterScheduling]
    sockets: SocketsBySection = field(default_factory=SocketsBySection)

    def __post_init__(self) -> None:
        rights.verify(ANSWERS.keys() | UNANSWERED)
        self._loop = asyncio.get_running_loop()

    def make(self, plugin: str) -> Host:
        """Make the host of a section's plugin, in the thread that loads it; raise PluginError if it gets no folders."""
        state, run = self.folders.make_for(plugin)
        log = logging.LoggerAdapter(logging.getLogger(f"nodeplug.plugin.{plugin}"), {"plugin": plugin})
        permits = Permits(plugin, self.registry, self.delegation.in_flight)
        ask = permits.checked
        return Host(
            plugin=plugin,
            node_name=self.node,
            boot_id=self.boot_id,
            log=log,
            journal=self.journal(plugin),
            state_dir=state,
            run_dir=run,
            _refresh=ask("refresh", lambda resource: self._pass_on(partial(self._list_again, permits), resource)),
            _delegate=ask("delegate", self.delegation),
            _holders=ask("holders", self._holdings),
            _former=ask("former_sections", lambda: self._former_sections(plugin)),
            cgroups=Programs(self.cgroups, plugin),
            _refresh_health=ask("refresh_health", lambda: self._pass_on(self.registry.want_health, plugin)),
            sockets=self.sockets.of(plugin),
            _attachments=ask("attachments", lambda: self._attachments(plugin)),
            networks=permits.checked_member("networks", self.networks(plugin)),
            scheduling=permits.checked_member("scheduling", self.scheduling()),
            _refresh_cluster=ask(
                "refresh_cluster", lambda: self._pass_on(lambda _: self.registry.cluster_news.set(), plugin)
            ),
        )

    async def keep(self) -> None:
        """Keep the folders of sections, and their sockets; close those of sections that are gone."""
        if not self.registry.ended:  # otherwise the next daemon may be given them
            self.sockets.forget_others([EXTENDER, *self.registry.slots])
        await self.folders.keep(self.registry.slots)

    def journal(self, name: str) -> Journal:
        """Return the journal of a section, or of the daemon's own."""
        return self._journal(file_name(name))

    def _journal(self, folder: str) -> Journal:
        return Journal(self.paths.journal / folder, self.boot_id, self.disk.removals)

    def _list_again(self, permits: Permits, resource: ResourceName) -> None:
        """Have whichever front serves a resource list it again, if it is one of the section's."""
        if resource in permits.serves("device"):
            self.resources.refresh(resource)
            self.claims.refresh(resource)

    def _holdings(self, resource: ResourceName) -> list[Holding]:
        """Return who holds what of a resource, by containers and by claims; in a plugin's thread."""
        return [
            *self.podresources.holdings(resource),
            *self.claims.holdings(resource, self.podresources.users_of),
        ]

    def _attachments(self, asking: str) -> list[CniRecord]:
        """Look, in a plugin's thread, for attachments of what the section claims."""
        instance = self.registry.plugins.get(asking)
        claims = {claim.name for claim in instance.claims if claim.kind == "cni"} if instance is not None else ()
        attachments = Attachments(self.paths.attachments)
        found = [one for records in (attachments, attachments.delegated) for one in survivors(records, claims)]
        return [record for _, record in sorted(found, key=lambda one: one[0])]

    def _former_sections(self, asking: str) -> list[FormerSection]:
        """Return the former sections that had the same exclusive claim and `uses`. Runs in a plugin's thread."""
        instance = self.registry.plugins.get(asking)
        if instance is None:
            return []
        claims = {claim.name for claim in instance.claims if claim.kind == "exclusive"}
        known = Journal(self.paths.state / EXCLUSIVE, self.boot_id, self.disk.removals)
        before = {file_name(entry.key): entry for entry in known.entries()}
        mine = {"uses": instance.uses, "claims": sorted(claims)}
        if (entry := before.get(file_name(asking))) is None or entry.data != mine:
            known.write(asking, phase="registered", data=mine)
        state, run = self.paths.state / "plugins", self.paths.run / "plugins"
        others = self.folders.others([asking, VOLUMES, PROVISIONER, CLAIMS, *self.registry.plugins])
        bundled = not instance.section.python and place_of(instance.uses).bundled

        def is_alike(entry: Entry | None) -> bool:
            if entry is None:  # of a daemon that made no notes
                return bundled
            return entry.data.get("uses") == instance.uses and not claims.isdisjoint(entry.data.get("claims", ()))

        return [
            FormerSection(self._journal(one), state / one, run / one) for one in others if is_alike(before.get(one))
        ]

    def _pass_on(self, request: Callable[[_Name], None], name: _Name) -> None:
        """Pass a request from a plugin's thread to the loop."""
        across.tell(self._loop, lambda: request(name))
