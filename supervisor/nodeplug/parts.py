"""What the daemon consists of, and which part knows which.

Owns: the making of every part, once, when another one or the daemon first asks for it.
Refuses: start and stop (`daemon`), and everything that the parts do. Only parts that do not know each other may be made
in any order, so none asks for one that asks for it: what goes both ways is a method that is called later.
"""

import asyncio
from collections.abc import Collection, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from nodeplug import first_lists
from nodeplug.cluster.section import Publishing, publishing_of
from nodeplug.cni.admission import Admission
from nodeplug.cni.attachments import Attachments
from nodeplug.cni.delegate import Delegation
from nodeplug.cni.delegates import Delegates
from nodeplug.cni.reconciliation import Reconciliation
from nodeplug.cni.service import CniService
from nodeplug.cni.spool import Spool
from nodeplug.config import Reading, node_name, read
from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import Journal, read_boot_id
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.contract.values import DeviceId, ResourceName
from nodeplug.csi import drivers as csi
from nodeplug.device.checkpoint import CHECKPOINT
from nodeplug.device.kubelet import KubeletFolders
from nodeplug.device.last_known import LastKnown
from nodeplug.device.podresources import PodResources
from nodeplug.device.resources import Resources
from nodeplug.dra.section import DynamicResources
from nodeplug.exec.server import ExecServer
from nodeplug.extender.section import Extending, listener_of
from nodeplug.flex.service import FlexService
from nodeplug.handover import Handover
from nodeplug.hosting.call import Call
from nodeplug.hosting.last_good import LastGood
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.own_folders import OwnFolders
from nodeplug.hosting.plugin_users import PluginUsers
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.reload import Reloader
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.served_devices import BothFronts
from nodeplug.hosting.slot import Route
from nodeplug.hosting.supervision import Supervision
from nodeplug.hosts import CLAIMS, EXTENDER, PROVISIONER, VOLUMES, Hosts
from nodeplug.install.keeper import Keeper
from nodeplug.networks.section import NetworksOfCluster, networks_of
from nodeplug.node_labels import NodeLabels
from nodeplug.observe.metrics import Metrics, outcome_of
from nodeplug.observe.overview import Overview
from nodeplug.observe.plugin_metrics import PluginMetrics
from nodeplug.observe.recorder import Recorder
from nodeplug.observe.reports import Reports
from nodeplug.observe.state_disk import StateDisk
from nodeplug.process.succession import Predecessor
from nodeplug.provisioner.section import Provisioning, provisioner_of
from nodeplug.release import own_version
from nodeplug.volumes.service import Volumes
from nodeplug.worker.cgroups import Cgroups

_GRANTED: Final = frozenset({"Allocate", "NodePrepareResources"})
"""Verbs after which kubelet soon has something to tell of who holds what."""


class Parts:
    """The parts of one daemon. Event loop only.

    Args:
        config_path: the main configuration file.
        root: the value of `--root`.
        reading: of the configuration.
        first: already serves what kubelet was told last.
        predecessor: whose place is to be taken.
        wrong: why the configuration in the file is not the one that is in force; empty if it is.
        take_over: see `serving.serve`.
    """

    def __init__(
        self,
        config_path: Path,
        root: Path | None,
        reading: Reading,
        first: Resources | None = None,
        predecessor: Predecessor | None = None,
        wrong: str = "",
        *,
        take_over: bool = False,
    ) -> None:
        self.config_path, self.root, self.reading, self.predecessor = config_path, root, reading, predecessor
        self.configuration = reading.configuration
        self.supervisor = self.configuration.supervisor
        self.paths, self.node, self.boot_id = self.supervisor.paths, node_name(self.supervisor), read_boot_id()
        self.stop = asyncio.Event()
        self._first, self._wrong, self._take_over = first, wrong, take_over

    # --- plugins

    @cached_property
    def registry(self) -> Registry:
        """Who claims what."""
        return Registry()

    @cached_property
    def runner(self) -> Runner:
        """Who calls plugins."""
        return Runner(self._finished)

    @cached_property
    def folders(self) -> OwnFolders:
        """Those of sections."""
        return OwnFolders(self.paths)

    @cached_property
    def hosts(self) -> Hosts:
        """What plugins are given."""
        return Hosts(
            node=self.node,
            boot_id=self.boot_id,
            paths=self.paths,
            disk=self.disk,
            folders=self.folders,
            registry=self.registry,
            resources=self.resources,
            podresources=self.podresources,
            claims=self.claims,
            delegation=Delegation(
                self.registry,
                Delegates(self.attachments),
                visiting=self.runner.visiting,
                in_flight=self.runner.in_flight,
            ),
            cgroups=Cgroups(self.supervisor.cgroups, self.supervisor.program_cgroup),
            users=PluginUsers(self.paths, self.supervisor.plugin_user),
            networks=self.networks.door_of,
            scheduling=self._scheduling,
        )

    def _scheduling(self) -> ClusterScheduling:
        """Return the cluster as scheduler extenders see it. A method, not a value: `extender` is made after `hosts`."""
        return self.extender.scheduling()

    @cached_property
    def lifecycle(self) -> Lifecycle:
        """How plugins come and go."""
        return Lifecycle(
            self.registry,
            self.runner,
            self.hosts.make,
            BothFronts((self.resources, self.claims)),
            self.reading.places.tell,
            self.folders.give,
            self.hosts.users.privileges,
            cgroups=self.hosts.cgroups,
        )

    @cached_property
    def supervision(self) -> Supervision:
        """Who looks after those that run."""
        return Supervision(self.lifecycle)

    @cached_property
    def reloader(self) -> Reloader:
        """Who brings a changed configuration into force."""
        return Reloader(
            self.reading,
            read=lambda before: read(self.config_path, self.root, before),
            lifecycle=self.lifecycle,
            install=self.keeper.install,
            count=self.metrics.reload,
            error=self._wrong,
        )

    @cached_property
    def last_good(self) -> LastGood:
        """The configuration that was in force last."""
        return LastGood(self.paths.state, self.lifecycle, self.reloader)

    @cached_property
    def keeper(self) -> Keeper:
        """Who keeps entrypoints where they belong."""
        return Keeper(self.registry, self.supervisor, self.reading.folder)

    # --- kubelet and runtimes

    def device_routes(self) -> Sequence[Route]:
        """Return the way to every resource that kubelet's device plugins serve."""
        routes = self.registry.routes("device")
        return [one for one in routes if one.slot.instance.section.serve == "device-plugin"]

    @cached_property
    def claims(self) -> DynamicResources:
        """The devices that are allocated by claims."""
        return DynamicResources(
            self.configuration,
            self.registry,
            self.runner,
            self.node,
            Journal(self.paths.journal / CLAIMS, self.boot_id, self.disk.removals),
            self._held,
            self.podresources,
            self._freed,
        )

    def _held(self, resource: ResourceName) -> Collection[DeviceId]:
        """Return what of a resource containers hold, or held until lately, and their plugin has not heard of it."""
        return self.podresources.holders().get(resource, {}).keys() | self.podresources.untold(resource)

    def _freed(self, resource: ResourceName) -> None:
        """List a resource again of which a claim has had something; it has the front of kubelet's plugins by now."""
        self.resources.refresh(resource)

    @cached_property
    def resources(self) -> Resources:
        """The device plugins that kubelet sees."""
        return self._first or Resources(
            self.runner,
            KubeletFolders(
                self.paths.device_plugins, self.paths.plugins_registry, succeeding=self.predecessor is not None
            ),
            self.device_routes,
            self.supervisor.device_registration,
            self.supervisor.device_poll,
            LastKnown(first_lists.folder(self.paths.run), self.boot_id),
            self.claims.withheld,
        )

    @cached_property
    def podresources(self) -> PodResources:
        """Who holds which device."""
        return PodResources(
            self.paths.podresources_socket,
            self.paths.state / "holders.json",
            partial(self.registry.routes, "device"),
            self.runner,
            self.supervisor.podresources_poll,
            checkpoint=self.paths.device_plugins / CHECKPOINT,
        )

    @cached_property
    def attachments(self) -> Attachments:
        """Of containers to networks."""
        return Attachments(self.paths.attachments)

    @cached_property
    def spool(self) -> Spool:
        """DELs that came while no daemon ran."""
        return Spool(self.paths.spool, boot_id=self.boot_id)

    @cached_property
    def cni(self) -> CniService:
        """The front of CNI."""
        admission = Admission(self.supervisor.cni_concurrency, self.supervisor.cni_waiting)
        return CniService(self.registry, self.runner, self.attachments, self.spool, admission)

    @cached_property
    def reconciliation(self) -> Reconciliation:
        """Who frees what runtimes have forgotten."""
        return self.cni.reconciliation(self.paths.cni_caches, self.paths.cni_bin, self.supervisor.cni_reconcile)

    @cached_property
    def volumes(self) -> Volumes:
        """Volumes, whichever front asks."""
        return Volumes(self.runner, self.hosts.journal(VOLUMES), self.paths.run / "staging")

    @cached_property
    def flex(self) -> FlexService:
        """The front of FlexVolume."""
        return FlexService(self.registry, self.runner, self.volumes)

    @cached_property
    def csi(self) -> csi.CsiDrivers:
        """The front of CSI."""
        return csi.CsiDrivers(
            self.registry,
            self.runner,
            self.volumes,
            self.paths.plugins_registry,
            self.paths.state / "csi-drivers.json",
            self.node,
            self.supervisor.csi,
        )

    # --- the cluster

    @cached_property
    def provisioner(self) -> Provisioning:
        """Volumes for claims."""
        return provisioner_of(self.configuration, self.csi, self.node, self.hosts.journal(PROVISIONER))

    @cached_property
    def extender(self) -> Extending:
        """Where kube-scheduler comes in."""
        return listener_of(self.configuration, self.registry, self.runner, self.hosts.sockets.of(EXTENDER))

    @cached_property
    def networks(self) -> NetworksOfCluster:
        """Networks as objects."""
        return networks_of(self.configuration, self.registry, self.node, self.paths)

    @cached_property
    def publishing(self) -> Publishing:
        """What the node says in the cluster's objects."""
        return publishing_of(
            self.configuration, self.registry, self.runner, self.node, lambda: self.overview.readiness[1]
        )

    @cached_property
    def labels(self) -> NodeLabels:
        """Those of the Node, by which sections choose nodes."""
        return NodeLabels(lambda: self.reloader.reading.configuration, self.reloader.notice)

    # --- what is told

    @cached_property
    def disk(self) -> StateDisk:
        """Whether the disk with the daemon's state answers."""
        return StateDisk(self.paths.state)

    @cached_property
    def notes(self) -> first_lists.Notes:
        """What the next daemon needs before it has read its configuration."""
        return first_lists.Notes(self.reading, self.root, self.boot_id)

    @cached_property
    def metrics(self) -> Metrics:
        """Of the daemon."""
        return Metrics(own_version())

    @cached_property
    def recorder(self) -> Recorder:
        """The calls of late."""
        return Recorder()

    @cached_property
    def reports(self) -> Reports:
        """What plugins say of themselves."""
        return Reports(self.registry.slots, self.runner, PluginMetrics(self.metrics.registry).take)

    @cached_property
    def overview(self) -> Overview:
        """The status of all."""
        return Overview(
            node=self.node,
            labels=self.labels,
            paths=self.paths,
            registry=self.registry,
            reserve=self.runner.reserve,
            resources=self.resources,
            podresources=self.podresources,
            csi=self.csi,
            claims=self.claims,
            provisioner=self.provisioner,
            extender=self.extender,
            networks=self.networks,
            publishing=self.publishing,
            attachments=self.attachments,
            ledger=self.volumes.ledger,
            spool=self.spool,
            recorder=self.recorder,
            reloader=self.reloader,
            keeper=self.keeper,
            disk=self.disk,
        )

    def handover(self, server: ExecServer) -> Handover:
        """Make the way to a successor, which gets this server's socket."""
        command = ["serve", "--config", str(self.config_path)]
        command += ["--root", str(self.root)] if self.root is not None else []
        command += ["--take-over"] * self._take_over
        return Handover(
            command,
            server,
            self.registry,
            self.resources,
            self.claims,
            self.volumes,
            self.extender,
            self.hosts.sockets,
            self.stop,
            stands_by=self._take_over,
        )

    def _finished(self, call: Call, error: PluginError | None) -> None:
        """Tell all whom it concerns of the end of a call."""
        outcome = outcome_of(error)
        self.metrics.finished(call, outcome)
        self.recorder.add(call, outcome, error.message if error is not None else "")
        self.publishing.finished(call, error)
        if call.verb in _GRANTED and error is None:
            self.podresources.soon()
