"""The `Host` for a unit test of a plugin: its calls are recorded, or answered by the test.

Owns: the folders and the journal, in a folder of the test, and the plugin's calls to the daemon.
Refuses: the daemon: nothing is served and no hook is called. `ScratchNode` and the fixtures are for that.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeplug.contract.cluster import ClusterNetworks
from nodeplug.contract.errors import NotFound
from nodeplug.contract.host import Delegate, FormerSection, Host
from nodeplug.contract.journal import Journal
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.contract.sockets import KeptSockets
from nodeplug.contract.values import CniRecord, CniRequest, CniResult, Holding, ResourceName


@dataclass(frozen=True, slots=True)
class Delegated:
    """One `host.delegate(...)`.

    Attributes:
        request: the request that the plugin serves.
        plugin_type: which plugin was to run, such as `ipam.type`.
        config: what that plugin gets on stdin.
    """

    request: CniRequest
    plugin_type: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordingHost(Host):
    """A `Host` that records its calls.

    Attributes:
        refreshed: the resources of each `host.refresh(...)`, in order.
        delegated: each `host.delegate(...)`, in order.
        health_refreshed: a moment for each `host.refresh_health()`, as of time.monotonic(3).
        cluster_refreshed: the same for `host.refresh_cluster()`.
    """

    refreshed: list[ResourceName] = field(default_factory=list)
    delegated: list[Delegated] = field(default_factory=list)
    health_refreshed: list[float] = field(default_factory=list)
    cluster_refreshed: list[float] = field(default_factory=list)


def host(
    folder: Path,
    *,
    plugin: str = "plugin",
    node_name: str = "node-1",
    boot_id: str = "boot-1",
    refresh: Callable[[ResourceName], None] | None = None,
    delegate: Delegate | None = None,
    holders: Sequence[Holding] | Callable[[ResourceName], Sequence[Holding]] = (),
    former: Sequence[Host] = (),
    refresh_health: Callable[[], None] | None = None,
    sockets: KeptSockets | None = None,
    attachments: Callable[[], Sequence[CniRecord]] | None = None,
    networks: ClusterNetworks | None = None,
    refresh_cluster: Callable[[], None] | None = None,
    scheduling: ClusterScheduling | None = None,
    serves_claims: bool = False,
) -> RecordingHost:
    """Build what the daemon gives to a plugin, for a test that constructs the plugin itself.

        plugin = Fuse(Fuse.Config(), host(tmp_path))

    Args:
        folder: an existing one, such as pytest's `tmp_path`; `state`, `run` and `journal` are created in it. The
            same one again acts as a restart of the daemon.
        plugin: the section name; the log is `nodeplug.plugin.<section name>`.
        node_name: the node's name in the cluster.
        boot_id: another one in the same folder acts as a reboot: records of the journal are stale.
        refresh: called for each `host.refresh(resource)` as well, in the plugin's thread.
        delegate: answers `host.delegate(...)`; by default there is no other plugin, which is NotFound.
        holders: who holds devices, of all resources; or a function that answers for one resource, or raises. By default
            no container holds any.
        former: what sections of other names had, for `host.former_sections()`.
        refresh_health: called for each `host.refresh_health()` as well, in the plugin's thread.
        sockets: those of an earlier host, as where only the plugin was exchanged; by default nothing is kept yet.
        attachments: answers `host.attachments()`; by default there are none.
        networks: answers `host.networks`; by default nothing is known of a cluster.
        refresh_cluster: called for each `host.refresh_cluster()` as well, in the plugin's thread.
        scheduling: answers `host.scheduling`; by default no cluster is followed.
        serves_claims: for a section with `serve = "dra"`.

    Raises:
        OSError: the folder cannot be written.
    """
    refreshed: list[ResourceName] = []
    delegated: list[Delegated] = []

    def record_refresh(resource: ResourceName) -> None:
        refreshed.append(resource)
        if refresh is not None:
            refresh(resource)

    health_refreshed: list[float] = []
    cluster_refreshed: list[float] = []

    def record_delegate(request: CniRequest, plugin_type: str, config: Mapping[str, Any]) -> CniResult | None:
        delegated.append(Delegated(request, plugin_type, config))
        if delegate is None:
            raise NotFound(f"this test has no plugin {plugin_type!r}; give host() a delegate that answers for it")
        return delegate(request, plugin_type, config)

    def known_holders(resource: ResourceName) -> Sequence[Holding]:
        return holders(resource) if callable(holders) else [one for one in holders if one.resource == resource]

    state, run = folder / "state", folder / "run"
    for made in (state, run):
        made.mkdir(exist_ok=True)
    return RecordingHost(
        plugin=plugin,
        node_name=node_name,
        boot_id=boot_id,
        log=logging.LoggerAdapter(logging.getLogger(f"nodeplug.plugin.{plugin}"), {"plugin": plugin}),
        journal=Journal(folder / "journal", boot_id),
        state_dir=state,
        run_dir=run,
        _refresh=record_refresh,
        _delegate=record_delegate,
        _holders=known_holders,
        _former=lambda: [FormerSection(one.journal, one.state_dir, one.run_dir) for one in former],
        _refresh_health=_recording(health_refreshed, refresh_health),
        sockets=KeptSockets() if sockets is None else sockets,
        _attachments=tuple if attachments is None else attachments,
        networks=ClusterNetworks() if networks is None else networks,
        scheduling=ClusterScheduling() if scheduling is None else scheduling,
        serves_claims=serves_claims,
        _refresh_cluster=_recording(cluster_refreshed, refresh_cluster),
        refreshed=refreshed,
        delegated=delegated,
        health_refreshed=health_refreshed,
        cluster_refreshed=cluster_refreshed,
    )


def _recording(moments: list[float], also: Callable[[], None] | None) -> Callable[[], None]:
    """Return what notes the moment of each call of it, and calls something else as well."""

    def record() -> None:
        moments.append(time.monotonic())
        if also is not None:
            also()

    return record
