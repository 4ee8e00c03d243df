"""The plugin itself: hooks in, the shop's inventory out.

Owns: the driver's life, the one thread that takes in what it shows, and the order in which things learn of it: kubelet
first, then everything that only follows.
Refuses: to wait for the hardware in a hook.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from nodeplug import (
    Claim,
    Device,
    DeviceAllocate,
    DeviceId,
    DevicePrefer,
    DeviceReleased,
    Grant,
    Host,
    InvalidRequest,
    Metric,
    NotReady,
    ResourceName,
    hookimpl,
)
from nodeplug_gpu import report
from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.cards import GpuEvent, Uuid, View
from nodeplug_gpu.cdi import CdiSpecs
from nodeplug_gpu.config import GpuConfig, Memory, names_of
from nodeplug_gpu.driver import Driver
from nodeplug_gpu.driver.process import NvmlDriver
from nodeplug_gpu.driver.simulated import SimulatedDriver
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.mps.cards import MpsDaemons, MpsFollower
from nodeplug_gpu.mps.daemon import STARTING
from nodeplug_gpu.overuse import OveruseWatch
from nodeplug_gpu.pool import Entry, share_out
from nodeplug_gpu.tracker import Shop

_FIRST_LOOK: Final = 5.0
"""Seconds that start waits for the driver, so that the first list is whole and a card sold twice is refused there."""
_PATIENT_LOOK: Final = 40.0
"""The same where a predecessor sold cards, whose pods may be admitted again, or where another instance still serves."""
FAULTS_FILE: Final = "simulated-faults.json"


class Follower(Protocol):
    """Something that follows the inventory: MPS, the CDI spec, the watch for overuse. Called in one thread."""

    def follow(self, inventory: Inventory) -> None:
        """Bring the node in line with what is sold and held now; repeated at every look."""
        ...

    def stop(self) -> None:
        """End threads. What running containers use stays."""
        ...


class Gpu:
    """Cards for pods."""

    Config = GpuConfig
    example: ClassVar = {
        "config": {
            "driver": "simulated",
            "simulated": [{"memory": "16Gi", "count": 2}],
            "resources": [{"sharing": "memory"}],
        }
    }

    def __init__(self, config: GpuConfig, host: Host) -> None:
        self._config = config
        self._host = host
        self._wake = threading.Event()
        self._started = self._prepared = False
        self._make()
        self._shop.reserve()

    def _make(self) -> None:
        """Make everything that a start begins with; what a failed start left behind is of no use to the next one."""
        config, host = self._config, self._host
        self._mps = MpsFollower(MpsDaemons(host, config.driver_root, self._look_again), config)
        paths = NodePaths(run=host.run_dir)
        self._cdi = CdiSpecs(config, paths, host, self._look_again)
        self._shop = Shop(config, host, paths, self._obstacle)
        self._driver = _driver(config, host)
        memory = {entry.resource: entry for entry in config.resources if isinstance(entry, Memory)}
        self._overuse = OveruseWatch(memory, host)
        self._followers: Sequence[Follower] = (self._cdi, self._mps, self._overuse)
        self._events: deque[GpuEvent] = deque(maxlen=10_000)
        self._answered = threading.Event()
        self._looked = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._patient_until = 0.0

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim every configured resource."""
        return [Claim("device", name) for entry in self._config.resources for name in names_of(entry)]

    @hookimpl
    def prepare(self) -> None:
        """Start the driver and wait for its first look, which may take long; the former instance sells the cards on.

        Raises:
            InvalidRequest: two entries choose one card.
        """
        self._prepared = True
        self._driver.start(self._shown)
        self._answered.wait(_PATIENT_LOOK)
        if faults := share_out(self._config.resources, self._driver.view.cards).faults:
            raise InvalidRequest("; ".join(faults.values()))

    @hookimpl
    def start(self) -> None:
        """Start the driver and take in its first look. May be called again after it failed.

        Raises:
            InvalidRequest: two entries choose one card.
        """
        if self._started:
            self._make()
        self._started = True
        try:
            self._shop.open()
            self._begin()
            if refusal := self._shop.inventory.refusal:
                raise InvalidRequest(refusal)
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        patience = _PATIENT_LOOK if self._shop.has_sold else _FIRST_LOOK
        # A list of a reloaded instance that failed would hold up nothing: kubelet has the one before.
        self._patient_until = 0.0 if self._prepared else time.monotonic() + patience
        self._thread = threading.Thread(target=self._run, args=(self._ended,), name="gpu:look", daemon=True)
        self._thread.start()
        self._driver.start(self._shown)
        self._wake.set()
        self._looked.wait(patience)

    @hookimpl
    def stop(self) -> None:
        """End threads and the driver; what running containers use stays."""
        for event in (self._ended, self._answered, self._looked, self._wake):
            event.set()
        self._driver.stop()
        if self._thread is not None:
            self._thread.join(2)
        for follower in self._followers:
            follower.stop()
        self._shop.close()

    @hookimpl
    def health(self) -> None:
        """Say why cards are not sold; a node without a GPU is well."""
        inventory = self._shop.inventory
        if inventory.fault:
            raise NotReady(inventory.fault)
        if inventory.view.state == "failed":
            raise NotReady(f"the GPU driver does not answer: {inventory.view.reason}")
        if self._cdi.fault:
            raise NotReady(self._cdi.fault)

    @hookimpl
    def device_list(self, resource: ResourceName) -> Sequence[Device]:
        """List the devices of a resource.

        Raises:
            NotFound: this node has no card for it.
            NotReady: the driver has not answered yet, or an MPS daemon of a card that was not listed before.
        """
        entry, inventory = self._shop.entry_of(resource), self._shop.inventory
        devices = inventory.devices(entry, resource)
        # A card that waits for its daemon is unhealthy, and a first list of such would end its pods after a boot.
        if self._mps.starting(entry, inventory) and time.monotonic() < self._patient_until:
            raise NotReady(f"the devices of {resource} are not known yet: {STARTING}")
        return devices

    @hookimpl
    def device_prefer(self, request: DevicePrefer) -> Sequence[DeviceId] | None:
        """Choose ids for a container."""
        sharing, stock = self._shop.inventory.sold(self._shop.entry_of(request.resource), request.resource)
        return sharing.prefer(request, stock)

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant:
        """Grant cards, or say with the numbers why not."""
        sharing, stock = self._shop.inventory.sold(self._shop.entry_of(request.resource), request.resource)
        grant = sharing.allocate(request, stock)
        self._shop.granted(request.resource, request.ids)
        return grant

    @hookimpl
    def device_released(self, request: DeviceReleased) -> None:
        """Look again: a card that is gone may be forgotten now, and a promise has ended."""
        del request
        self._look_again()

    @hookimpl
    def inspect(self) -> Mapping[str, Any]:
        """Tell cards, who holds what of them, and how they are."""
        return report.document(self._config, self._shop, self._overuse)

    @hookimpl
    def metrics(self) -> Sequence[Metric]:
        """Measure cards and containers."""
        return report.metrics(self._config, self._shop, self._overuse)

    def _obstacle(self, entry: Entry, uuid: Uuid) -> str:
        return self._cdi.obstacle(entry, uuid) or self._mps.obstacle(entry, uuid)

    def _look_again(self) -> None:
        self._wake.set()

    # --- the thread that looks ----------------------------------------------------------------------------------

    def _shown(self, view: View, events: Sequence[GpuEvent]) -> None:
        """Take note, in the driver's thread, that there is something to look at."""
        self._events.extend(events)
        if view.state != "starting":
            self._answered.set()
        self._wake.set()

    def _run(self, ended: threading.Event) -> None:
        while True:
            self._wake.wait(self._config.poll)
            self._wake.clear()
            if ended.is_set():
                return
            try:
                self._look()
            except Exception:
                self._host.log.exception("a look at the cards failed; the last one stays")

    def _look(self) -> None:
        events = [self._events.popleft() for _ in range(len(self._events))]
        before = self._shop.inventory
        after = self._shop.look(self._driver.view, events)
        self._tell(before, after)
        if after.refusal and not self._looked.is_set():
            self._looked.set()  # start refuses it, so nothing may follow: MPS and CDI go on as they are
            return
        for entry in self._config.resources:
            if _changed(entry, before, after):
                for name in names_of(entry):
                    self._host.refresh(name)
        for follower in self._followers:
            self._follow(follower, after)
        if after.view.state != "starting" and not self._cdi.pending(after):
            self._looked.set()

    def _follow(self, follower: Follower, inventory: Inventory) -> None:
        """Tell one of them; its failure is not the others'."""
        if self._ended.is_set():
            return
        try:
            follower.follow(inventory)
        except Exception:
            self._host.log.exception("%s could not follow", type(follower).__name__)

    def _tell(self, before: Inventory, after: Inventory) -> None:
        """Log what changed, once."""
        for uuid, condition in after.conditions.items():
            known = before.conditions.get(uuid)
            if known is not None and (known.state, known.reason) != (condition.state, condition.reason):
                level = self._host.log.info if condition.state == "healthy" else self._host.log.warning
                level("%s is %s%s", uuid, condition.state, f": {condition.reason}" if condition.reason else "")
        if (before.view.state, before.view.reason) != (after.view.state, after.view.reason):
            self._host.log.info(
                "the driver is %s%s", after.view.state, f": {after.view.reason}" if after.view.reason else ""
            )
        for name, stock in after.stocks.items():
            reasons = {offer.card.uuid: offer.reason for offer in before.stocks_of(name)}
            for offer in stock.offers:
                uuid, why = offer.card.uuid, offer.reason
                if why and why not in {reasons.get(uuid), after.conditions[uuid].reason}:
                    self._host.log.info("%s is not offered as %s: %s", uuid, name, why)
        if after.fault and after.fault != before.fault:
            self._host.log.error("a card is not sold: %s", after.fault)


def _changed(entry: Entry, before: Inventory, after: Inventory) -> bool:
    """Whether a list of an entry's devices may be another one now."""
    name = entry.resource
    return (
        before.stocks.get(name) != after.stocks.get(name)
        or before.sharings.get(name) is not after.sharings.get(name)
        or any(before.ghosts.get(one) != after.ghosts.get(one) for one in names_of(entry))
    )


def _driver(config: GpuConfig, host: Host) -> Driver:
    if config.driver == "simulated":
        return SimulatedDriver(config.simulated, config.poll, host.run_dir / FAULTS_FILE, host.log, node=host.node_name)
    return NvmlDriver(config.driver_root, config.poll, config.hang_after, host.log)
