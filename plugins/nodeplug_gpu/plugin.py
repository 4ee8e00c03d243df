"""The plugin itself: it answers hooks from the inventory.

Owns: the driver's life cycle, the one thread that updates the inventory, and the order in which others learn of it:
kubelet first, then the reconcilers.
Refuses: to wait for the hardware in a hook.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from nodeplug import (
    Claim,
    ClusterReport,
    Device,
    DeviceAllocate,
    DeviceClaim,
    DeviceId,
    DeviceList,
    DevicePrefer,
    DeviceReleased,
    ExclusiveClaim,
    Exhausted,
    Grant,
    Host,
    InvalidRequest,
    Metric,
    NotReady,
    hookimpl,
)
from nodeplug_gpu import report
from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.cards import GpuEvent, Snapshot, Uuid
from nodeplug_gpu.cdi.specs import CdiSpecs
from nodeplug_gpu.claimed import for_claims
from nodeplug_gpu.cluster import ClusterView
from nodeplug_gpu.config import GpuConfig, Memory, Resource, resource_names
from nodeplug_gpu.driver import Driver
from nodeplug_gpu.driver.process import NvmlDriver
from nodeplug_gpu.driver.simulated import SimulatedDriver
from nodeplug_gpu.features import FeatureFile
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.kernel.limits import KernelLimits, asked_for
from nodeplug_gpu.metrics import metrics as measured
from nodeplug_gpu.mps.cards import MpsDaemons, MpsReconciler
from nodeplug_gpu.mps.daemon import STARTING
from nodeplug_gpu.overuse import OveruseWatch
from nodeplug_gpu.pool import assign_cards
from nodeplug_gpu.tracker import InventoryTracker

_START_TIMEOUT: Final = 5.0
"""Seconds that start waits for the driver, so that the first list is complete and a conflict is refused there."""
_RESTART_TIMEOUT: Final = 40.0
"""The same where a predecessor advertised cards, whose pods may be admitted again, or another instance still serves."""
_PENDING_POLL: Final = 1.0
"""Seconds between two updates while something was allocated that kubelet has not reported."""
CARDS: Final = ExclusiveClaim(
    "nvidia-gpus", advice="one section has the cards: put the `resources` of both into it, and remove the other"
)
FAULTS_FILE: Final = "simulated-faults.json"


class Reconciler(Protocol):
    """Something that acts on the inventory: MPS, the CDI spec, the watch for overuse. Called in one thread."""

    def reconcile(self, inventory: Inventory) -> None:
        """Bring the node in line with what is advertised and allocated now; repeated at every update."""
        ...

    def stop(self) -> None:
        """End the threads. What running containers use stays."""
        ...


class Gpu:
    """GPUs for pods."""

    Config = GpuConfig
    isolation = "thread"
    example: ClassVar = {
        "config": {
            "driver": "simulated",
            "simulated": [{"memory": "16Gi", "count": 2}],
            "resources": [{"sharing": "memory"}],
        }
    }

    def __init__(self, config: GpuConfig, host: Host) -> None:
        self._config = for_claims(config) if host.serves_claims else config
        self._host = host
        self._wake = threading.Event()
        self._started = self._prepared = False
        self._make()

    def _make(self) -> None:
        """Make what a start needs; nothing of a failed start is reused by the next one."""
        config, host = self._config, self._host
        paths = _paths(config, host)
        self._mps = MpsReconciler(MpsDaemons(host, config.driver_root, self._request_update, paths.former), config)
        self._cdi = CdiSpecs(config, paths, host, self._request_update)
        self._driver = _driver(config, host, paths)
        self._limits = KernelLimits(config, paths, host, self._driver, time.monotonic)
        self._tracker = InventoryTracker(config, host, paths, self._not_ready_reason, limited=self._limits.limits)
        memory = {entry.resource: entry for entry in config.resources if isinstance(entry, Memory)}
        self._overuse = OveruseWatch(memory, host)
        self._cluster = ClusterView(config, self._tracker, self._overuse, host.node_name)
        self._reconcilers: Sequence[Reconciler] = (
            *(self._cdi, self._mps, self._overuse, self._limits),
            FeatureFile(config, host),
        )
        self._events: deque[GpuEvent] = deque(maxlen=10_000)
        self._driver_answered = threading.Event()
        self._updated = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._start_deadline = 0.0

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the cards, and every configured resource."""
        counted = {one.count_resource for one in self._config.resources if isinstance(one, Memory)}
        names = (name for entry in self._config.resources for name in resource_names(entry))
        return [CARDS, *(DeviceClaim(name, counted=name in counted) for name in names)]

    @hookimpl
    def prepare(self) -> None:
        """Start the driver and wait for its first snapshot; meanwhile the former instance serves.

        Raises:
            InvalidRequest: two entries choose one card.
        """
        self._prepared = True
        self._driver.start(self._on_snapshot)
        self._driver_answered.wait(_RESTART_TIMEOUT)
        cards = self._driver.snapshot.cards
        if conflicts := assign_cards(self._config.resources, cards, self._tracker.indexes.peek(cards)).conflicts:
            raise InvalidRequest("; ".join(conflicts.values()))

    @hookimpl
    def start(self) -> None:
        """Start the driver and build the first inventory. May be called again after it failed.

        Raises:
            InvalidRequest: two entries choose one card.
        """
        if self._started:
            self._make()
        self._started = True
        try:
            self._tracker.paths.former[:] = [one.run_dir for one in self._host.former_sections()]
            self._tracker.allocations.load()
            self._limits.start()
            self._begin()
            if conflict := self._tracker.inventory.conflict:
                raise InvalidRequest(conflict)
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        timeout = _RESTART_TIMEOUT if self._tracker.allocations.records else _START_TIMEOUT
        # A reloaded instance need not wait for a complete list: kubelet has the previous one.
        self._start_deadline = 0.0 if self._prepared else time.monotonic() + timeout
        self._thread = threading.Thread(target=self._run, args=(self._ended,), name="gpu:update", daemon=True)
        self._thread.start()
        self._driver.start(self._on_snapshot)
        self._wake.set()
        self._updated.wait(timeout)

    @hookimpl
    def stop(self) -> None:
        """End the threads and the driver; what running containers use stays."""
        for event in (self._ended, self._driver_answered, self._updated, self._wake):
            event.set()
        self._driver.stop()
        if self._thread is not None:
            self._thread.join(2)
        for reconciler in self._reconcilers:
            reconciler.stop()

    @hookimpl
    def health(self) -> None:
        """Say why cards are not advertised; a node without a GPU is healthy."""
        inventory = self._tracker.inventory
        if inventory.conflict:
            raise NotReady(inventory.conflict)
        if inventory.snapshot.state == "failed":
            raise NotReady(f"the GPU driver does not answer: {inventory.snapshot.reason}")
        if self._cdi.fault:
            raise NotReady(self._cdi.fault)

    @hookimpl
    def device_list(self, request: DeviceList) -> Sequence[Device]:
        """List the devices of a resource.

        Raises:
            NotFound: this node has no card for it.
            NotReady: the driver, or the MPS daemon of a card that was not listed before, has not answered yet.
        """
        resource, inventory = request.resource, self._tracker.inventory
        entry = self._tracker.entry_of(resource)
        devices = inventory.devices(entry, resource)
        # A card that waits for its daemon is unhealthy; a first list of such cards would fail its pods after a boot.
        if self._mps.starting(entry, inventory) and time.monotonic() < self._start_deadline:
            raise NotReady(f"the devices of {resource} are not known yet: {STARTING}")
        return devices

    @hookimpl
    def device_prefer(self, request: DevicePrefer) -> Sequence[DeviceId] | None:
        """Choose ids for a container."""
        sharing, pool = self._tracker.inventory.advertised(self._tracker.entry_of(request.resource), request.resource)
        return sharing.prefer(request, pool)

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant:
        """Allocate cards, or say with the numbers why not."""
        entry = self._tracker.entry_of(request.resource)
        sharing, pool = self._tracker.inventory.advertised(entry, request.resource)
        try:
            grant = sharing.allocate(request, pool)
            grant = Grant.merged([grant, self._limits.grant(entry, request.ids, sharing, pool)])
        except Exhausted:
            self._tracker.refused(request.resource, len(request.ids))
            self._request_update()
            raise
        self._cdi.require(entry, grant)
        if request.claim is None:
            self._tracker.allocated(request.resource, request.ids)
        elif not request.claim.admin_access:  # a claim may be prepared again while its containers run
            fresh = self._tracker.allocations.unreported(request.resource, request.ids)
            self._tracker.allocated(request.resource, fresh)
        if self._tracker.withholds(request.resource):
            self._request_update()  # another card may have most of what is free now
        return grant

    @hookimpl
    def device_released(self, request: DeviceReleased) -> None:
        """Update the inventory: an allocation has ended, and a card that is gone may be forgotten now."""
        if request.claim is not None:  # before its ids can be granted again; kubelet's device plugins tell it late
            self._tracker.allocations.drop_pending(request.resource, request.ids)
        self._request_update()

    @hookimpl
    def inspect(self) -> Mapping[str, Any]:
        """Report the cards, their allocations and their health."""
        return report.document(self._config, self._tracker, self._overuse, self._limits)

    @hookimpl
    def metrics(self) -> Sequence[Metric]:
        """Return the metrics of cards and containers."""
        return measured(self._config, self._tracker, self._overuse)

    @hookimpl
    def cluster_report(self) -> ClusterReport:
        """Report what is free, labels, and what gpushare's tools read.

        Raises:
            NotReady: it is not known yet; what was reported before stays.
        """
        found = self._cluster.report()
        if found is None:
            raise NotReady("it is not known yet which cards are here and who holds them")
        return found

    def _not_ready_reason(self, entry: Resource, uuid: Uuid) -> str:
        reason = self._cdi.not_ready_reason(entry, uuid) or self._mps.not_ready_reason(entry, uuid)
        return reason or self._limits.not_ready_reason(entry, uuid)

    def _request_update(self) -> None:
        self._wake.set()

    # --- the thread that updates the inventory ------------------------------------------------------------------

    def _on_snapshot(self, snapshot: Snapshot, events: Sequence[GpuEvent]) -> None:
        """Note, in the driver's thread, that there is a new snapshot."""
        self._events.extend(events)
        if snapshot.state != "starting":
            self._driver_answered.set()
        self._wake.set()

    def _run(self, ended: threading.Event) -> None:
        while True:
            # Kubelet reports a grant within a second or two, and what is free is to be told then.
            pending = self._tracker.allocations.pending
            self._wake.wait(min(self._config.poll, _PENDING_POLL) if pending else self._config.poll)
            self._wake.clear()
            if ended.is_set():
                return
            try:
                self._update()
            except Exception:
                self._host.log.exception("the inventory could not be updated; the last one stays in force")

    def _update(self) -> None:
        events = [self._events.popleft() for _ in range(len(self._events))]
        before = self._tracker.inventory
        after = self._tracker.update(self._driver.snapshot, events)
        self._log_changes(before, after)
        if after.conflict and not self._updated.is_set():
            self._updated.set()  # start refuses it, so MPS and CDI stay as they are
            return
        for entry in self._config.resources:
            if _changed(entry, before, after):
                for name in resource_names(entry):
                    self._host.refresh(name)
        for reconciler in self._reconcilers:
            self._reconcile(reconciler, after)
        if self._cluster.update():
            self._host.refresh_cluster()
        if after.snapshot.state != "starting" and not self._cdi.pending(after):
            self._updated.set()

    def _reconcile(self, reconciler: Reconciler, inventory: Inventory) -> None:
        """Call one of them; its failure does not affect the others."""
        if self._ended.is_set():
            return
        try:
            reconciler.reconcile(inventory)
        except Exception:
            self._host.log.exception("%s could not reconcile", type(reconciler).__name__)

    def _log_changes(self, before: Inventory, after: Inventory) -> None:
        """Log what has changed."""
        for uuid, condition in after.conditions.items():
            known = before.conditions.get(uuid)
            if known is not None and (known.state, known.reason) != (condition.state, condition.reason):
                level = self._host.log.info if condition.state == "healthy" else self._host.log.warning
                level("%s is %s%s", uuid, condition.state, f": {condition.reason}" if condition.reason else "")
        if (before.snapshot.state, before.snapshot.reason) != (after.snapshot.state, after.snapshot.reason):
            self._host.log.info(
                "the driver is %s%s",
                after.snapshot.state,
                f": {after.snapshot.reason}" if after.snapshot.reason else "",
            )
        for name, pool in after.pools.items():
            reasons = {member.card.uuid: member.reason for member in before.members_of(name)}
            for member in pool.members:
                uuid, why = member.card.uuid, member.reason
                if why and why not in {reasons.get(uuid), after.conditions[uuid].reason}:
                    self._host.log.info("%s is not allocatable as %s: %s", uuid, name, why)
        if after.conflict and after.conflict != before.conflict:
            self._host.log.error("a card is not advertised: %s", after.conflict)


def _changed(entry: Resource, before: Inventory, after: Inventory) -> bool:
    """Whether a list of an entry's devices may have changed."""
    name = entry.resource
    return (
        before.pools.get(name) != after.pools.get(name)
        or before.sharings.get(name) is not after.sharings.get(name)
        or any(before.orphaned.get(one) != after.orphaned.get(one) for one in resource_names(entry))
    )


def _paths(config: GpuConfig, host: Host) -> NodePaths:
    node = config.node_root or Path("/")
    return NodePaths(
        dev=config.dev_root / "dev",
        run=host.run_dir,
        cdi=(node / "etc/cdi", Path("/var/run/cdi")),
        node=node,
        programs=config.node_root is not None or "KUBERNETES_SERVICE_HOST" not in os.environ,
    )


def _driver(config: GpuConfig, host: Host, paths: NodePaths) -> Driver:
    if config.driver == "simulated":
        return SimulatedDriver(config.simulated, config.poll, host.run_dir / FAULTS_FILE, host.log, node=host.node_name)
    cgroups = paths.cgroups if asked_for(config) else None
    return NvmlDriver(config.driver_root, config.poll, config.hang_after, host.log, cgroups=cgroups)
