"""What a plugin is given: one `Host` each, at construction.

Owns: the plugin's log, journal, folders, and the few requests a plugin may make of the daemon.
Refuses: the daemon's internals. Every member may be used from any thread of the plugin.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast, overload

from nodeplug.contract.cgroups import ProgramCgroups
from nodeplug.contract.cluster import ClusterNetworks
from nodeplug.contract.errors import NotReady
from nodeplug.contract.journal import Journal
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.contract.sockets import KeptSockets
from nodeplug.contract.values import (
    CniAdd,
    CniCheck,
    CniDel,
    CniGc,
    CniRecord,
    CniRequest,
    CniResult,
    CniStatus,
    Holding,
    ResourceName,
)

__all__ = ["FormerSection", "Host"]


class Delegate(Protocol):
    """Run another CNI plugin on behalf of a request."""

    def __call__(self, request: CniRequest, plugin_type: str, config: Mapping[str, Any]) -> CniResult | None:
        """Return the delegate's result for ADD, None otherwise."""


@dataclass(frozen=True, slots=True)
class FormerSection:
    """What a section that has no plugin now has left on this node; an older version may have written it.

    Attributes:
        journal: its records.
        state_dir: as `Host.state_dir`; may not exist.
        run_dir: as `Host.run_dir`; may not exist.
    """

    journal: Journal
    state_dir: Path
    run_dir: Path


def _unknown(resource: ResourceName) -> Sequence[Holding]:
    raise NotReady(f"who holds {resource} is unknown here: kubelet is not asked")


@dataclass(frozen=True, slots=True)
class Host:
    """The daemon, as one plugin sees it.

    Attributes:
        plugin: the plugin's section name in the configuration.
        node_name: the node's name in the cluster.
        boot_id: changes with each boot of the machine; another one means that no container survived.
        log: goes to the daemon's log, with plugin and request id.
        journal: intents that must survive `kill -9`.
        state_dir: the plugin's own folder that survives a reboot; exists.
        run_dir: the plugin's own folder that does not; exists.
        cgroups: of programs that it starts for containers.
        sockets: that stay open while the plugin, or the daemon, is exchanged.
        serves_claims: the section's devices are allocated by claims (DRA), not by kubelet's device plugins.
        networks: what the cluster says of networks, and is told.
        scheduling: the cluster's nodes, and pods on their way to them, for scheduler extenders.
    """

    plugin: str
    node_name: str
    boot_id: str
    log: logging.LoggerAdapter[logging.Logger]
    journal: Journal
    state_dir: Path
    run_dir: Path
    _refresh: Callable[[ResourceName], None]
    _delegate: Delegate
    _holders: Callable[[ResourceName], Sequence[Holding]] = _unknown
    _former: Callable[[], Sequence[FormerSection]] = tuple
    cgroups: ProgramCgroups = field(default_factory=ProgramCgroups)
    _refresh_health: Callable[[], None] = lambda: None
    sockets: KeptSockets = field(default_factory=KeptSockets)
    _attachments: Callable[[], Sequence[CniRecord]] = tuple
    networks: ClusterNetworks = field(default_factory=ClusterNetworks)
    _refresh_cluster: Callable[[], None] = lambda: None
    scheduling: ClusterScheduling = field(default_factory=ClusterScheduling)
    serves_claims: bool = False

    def refresh_health(self) -> None:
        """Ask for `health` now instead of at its next turn. Returns at once; many requests become one call."""
        self._refresh_health()

    def refresh_cluster(self) -> None:
        """Ask for `cluster_report` now instead of at its next turn. Returns at once; many requests become one call."""
        self._refresh_cluster()

    def refresh(self, resource: str) -> None:
        """Ask for a new `device_list` of one resource. Returns at once; many requests become one listing."""
        self._refresh(ResourceName(resource))

    def holders(self, resource: str) -> Sequence[Holding]:
        """Return who holds devices of a resource, as kubelet last reported (podresources List). Returns at once.

        For a plugin that serves devices.

        One value per container, in the order of their names. Init containers, which List leaves out, come from its
        checkpoint, some by their pod's UID in namespace "?". Kubelet reports some seconds after a container gets its
        devices, and after it is gone: decide about free devices by what kubelet offers, never by this.
        What claims have (DRA) is known at once, from the daemon's own records: one value per request of a claim and
        container that uses the claim, in no order. Which containers those are is kubelet's word, and comes later.

        Raises:
            NotReady: kubelet has not reported since the daemon started, or no longer does; the message says why.
        """
        return self._holders(ResourceName(resource))

    def attachments(self) -> Sequence[CniRecord]:
        """Return the attachments that this section's plugin made in this boot and that have not ended, oldest first.

        For `start`: what a plugin kept in memory of its attachments is gone with the daemon, and comes back by this.
        Those that another plugin of the daemon asked for (`delegate`) are among them, as if a runtime had.
        An ADD is recorded when its hook has returned. One is left out while the kernel does not say that its namespace
        is still what CNI_NETNS shows (before Linux 5.14, never). May block: it reads a file for each.
        """
        return self._attachments()

    def former_sections(self) -> Sequence[FormerSection]:
        """Return what sections with the same exclusive claim and the same `uses` have left that have no plugin now.

        For a plugin with an `ExclusiveClaim`: nobody but the section that has the claim uses what the former ones had,
        so it goes on with that, whatever it is called now. Ask in `start`: before, one of them may still serve. Take
        only what is surely your own: write it to your journal first, then remove it there. May block.

        Raises:
            NotReady: the section has no exclusive claim.
            OSError: a folder of the daemon's cannot be read.
        """
        return self._former()

    @overload
    def delegate(self, request: CniAdd, plugin_type: str, config: Mapping[str, Any] | None = None) -> CniResult: ...

    @overload
    def delegate(
        self,
        request: CniDel | CniCheck | CniGc | CniStatus,
        plugin_type: str,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...

    def delegate(
        self, request: CniRequest, plugin_type: str, config: Mapping[str, Any] | None = None
    ) -> CniResult | None:
        """Run another CNI plugin with the verb of `request` (specification, section 4: Plugin Delegation).

        A plugin that this daemon serves is called here; any other is executed from CNI_PATH with the complete
        configuration, and its stderr is passed on.

        Args:
            request: the request that the hook is serving, whose verb and environment are repeated; with another verb,
                `ifname`, `args` or `prev_result`, where the plugin needs that. An ADD may call DEL and CHECK, a GC the
                DEL of an attachment that has ended. `path`, the namespaces and `container_id` must stay.
            plugin_type: the delegate's name, such as `ipam.type`.
            config: what the delegate gets on stdin; the request's own configuration by default.

        Returns:
            The delegate's result for ADD, None for every other verb.

        Raises:
            DelegateFailed: the delegate returned an error; its code is kept.
            NotFound: there is no such executable on CNI_PATH.
            InvalidRequest: the section is not serving the request, or it has what must stay changed.
            NotReady: the section serves no CNI plugin.
        """
        result = self._delegate(request, plugin_type, request.config if config is None else config)
        return cast("CniResult", result) if isinstance(request, CniAdd) else None
