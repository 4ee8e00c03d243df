"""Which limits containers have been given, and setting them when a container starts.

Owns: the limits that Allocate has named, for as long as a container may start with one; which cards can have limits;
the order of a start: known here, set, confirmed, recorded, answered.
Refuses: an amount from anybody else. A hook names a card and bytes as its CDI device does; what was never allocated is
not set, and a limit is never raised. Neither annotations nor the environment of a container are read.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug import DeviceId, Grant, Host, Journal, NotReady, PluginError
from nodeplug_gpu.access import NodePaths, annotation_key
from nodeplug_gpu.allocations import GRACE_PERIOD
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import GpuConfig, Memory, Replicas, Resource
from nodeplug_gpu.containers import Containers
from nodeplug_gpu.driver import Driver
from nodeplug_gpu.holders import Container
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.kernel import spec
from nodeplug_gpu.kernel.door import NAME, Door, Request
from nodeplug_gpu.kernel.held import FILE, Held, HeldLimits
from nodeplug_gpu.pool import Pool
from nodeplug_gpu.sharing import Sharing
from nodeplug_gpu.sharing.memory import MemorySharing

NOT_CALLED: Final = (
    "nodeplug's hook has not run: the container does not start yet, was admitted before `limits` was set, or its "
    "runtime has CDI off"
)
_PHASE: Final = "limit"
_UNKNOWN: Final = "the driver has not said yet whether it can limit memory by cgroup"
_NO_SIZE: Final = "the driver does not tell how much memory it has, so a share of it is no amount"
_DRIVER_TIMEOUT: Final = 30.0


@dataclass(slots=True)
class KernelLimits:
    """The limits of a node. `reconcile`, `start` and `stop` are called in one thread at a time, all else in any.

    Attributes:
        clock: for how long a card has had no holder.
        containers: the names of containers, by their ids.
    """

    config: GpuConfig
    paths: NodePaths
    host: Host
    driver: Driver
    clock: Callable[[], float]
    containers: Callable[[], Containers] = Containers
    held: HeldLimits = field(init=False)
    _given: set[spec.Limit] = field(default_factory=set)
    _noted: set[spec.Limit] = field(default_factory=set)
    _complaint: str = ""
    _idle_since: dict[Uuid, float] = field(default_factory=dict)
    _fault: str = ""
    _active: bool = False
    _door: Door = field(init=False)
    _noting: threading.Lock = field(default_factory=threading.Lock)
    """Around every change of `_given` with its records, so that neither overtakes the other; taken before `_lock`."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Around `_given` and the spec alone: a hook does not wait for a disk."""

    def __post_init__(self) -> None:
        self.held = HeldLimits(self.host.run_dir / FILE)
        self._door = Door(self.host.run_dir / NAME, self.limit)

    @property
    def wanted(self) -> bool:
        """Whether the configuration asks for them, or would take them."""
        return asked_for(self.config)

    def start(self) -> None:
        """Go on with what a predecessor has given, and serve hooks; nothing where there are no limits at all."""
        self._noted = set(_recorded(self.host.journal))
        former = [(one.journal, limit) for one in self.host.former_sections() for limit in _recorded(one.journal)]
        self._given = set(spec.read(spec_file(self.config))) | self._noted | {limit for _, limit in former}
        self._active = self.wanted or bool(self._given)
        if not self._active:
            return
        with self._noting:
            self._note()
        for journal, limit in former:
            if limit in self._noted:
                _forget(journal, limit)
        self.held.load([folder / FILE for folder in (*self.paths.former, self.host.run_dir)])
        self._serve()
        self._publish()

    def stop(self) -> None:
        """Stop to serve hooks; the limits of running containers stay."""
        self._door.close()

    def reconcile(self, inventory: Inventory) -> None:
        """Serve, and forget the limits of cards that have had no holder for a while, and containers that are gone."""
        if not self._active:
            return
        self._serve()
        self.held.prune()
        known = inventory.snapshot.state == "running" and not inventory.allocations_unknown
        with self._noting:
            for one in self._end(inventory) if known else ():
                self._noted.discard(one)
                _forget(self.host.journal, one)
            self._note()
        if known:
            self._publish()

    def _end(self, inventory: Inventory) -> Sequence[spec.Limit]:
        """Take out, and return, the limits of cards that have had no holder for a while."""
        now = self.clock()
        with self._lock:
            given = {card for card, _ in self._given}
            self._idle_since = {
                card: self._idle_since.get(card, now) for card in given if card not in inventory.allocated
            }
            over = {card for card, since in self._idle_since.items() if now - since > GRACE_PERIOD}
            ended = [one for one in self._given if one[0] in over]
            self._given -= set(ended)
        return ended

    def limits(self, entry: Resource, uuid: Uuid) -> bool:
        """Whether containers that are allocated a card of an entry now get a limit of it."""
        return self.wanted and _shared(entry) and not self.why_not(uuid)

    def why_not(self, uuid: Uuid) -> str:
        """Return why containers can have no limit of a card; empty when they can."""
        snapshot = self.driver.snapshot
        why = self._fault or snapshot.limits.get(uuid, _UNKNOWN)
        return why or next((_NO_SIZE for one in snapshot.cards if one.uuid == uuid and not one.memory), "")

    def not_ready_reason(self, entry: Resource, uuid: Uuid) -> str:
        """Return why a card is not allocatable: limits are required, and it can have none."""
        if self.config.limits != "kernel" or not _shared(entry) or not (why := self.why_not(uuid)):
            return ""
        return f"limits = 'kernel', and containers can have no limit of its memory: {why}"

    def grant(self, entry: Resource, ids: Sequence[DeviceId], sharing: Sharing, pool: Pool) -> Grant:
        """Return what has a container limited, each time that it starts.

        Raises:
            NotReady: it cannot be, and has to.
        """
        if not self.wanted or not _shared(entry):
            return Grant()
        names = []
        for uuid, mine in sharing.by_card(ids, pool).items():
            if why := self.not_ready_reason(entry, uuid):
                raise NotReady(f"{uuid} cannot be allocated: {why}")
            size = _size(entry, sharing, pool.of(uuid).card, len(mine))
            if size and not self.why_not(uuid):
                self._give((uuid, size))
                names.append(spec.full_name((uuid, size)))
        if names and entry.access.cdi == "annotation":
            return Grant(annotations={annotation_key(spec.KIND, names): ",".join(names)})
        return Grant(cdi=tuple(names))

    def _give(self, one: spec.Limit) -> None:
        """Have the runtime know a limit, now and after a reboot.

        Raises:
            NotReady: it cannot be written.
        """
        with self._noting:
            with self._lock:
                self._idle_since.pop(one[0], None)
                self._given.add(one)
            self._note()
        self._publish(raises=True)

    def _note(self) -> None:
        """Write what is not in the journal yet; what fails is written by the next call. `_noting` is held."""
        try:
            for one in sorted(self._given - self._noted):
                self.host.journal.write(_key(one), phase=_PHASE, data={"card": one[0], "bytes": one[1]})
                self._noted.add(one)
            self._complaint = ""
        except PluginError as error:
            if str(error) != self._complaint:
                self.host.log.warning("after a reboot a container with a limit will not start: %s", error)
            self._complaint = str(error)

    def _publish(self, *, raises: bool = False) -> None:
        with self._lock:
            door = self.paths.on_node(self._door.path)
            described = spec.document(self._given, door, required=self.config.limits == "kernel")
            try:
                spec.write(spec_file(self.config), described)
            except OSError as error:
                text = f"the CDI spec of limits cannot be written: {error.filename}: {error.strerror or error}"
                if raises:
                    raise NotReady(text) from error
                self.host.log.warning("%s", text)

    def _serve(self) -> None:
        """Listen; again, if somebody has removed the socket."""
        fault = ""
        if not self._door.serves:
            try:
                self._door.open()
            except OSError as error:
                fault = f"{self._door.path} cannot be made: {error.strerror or error}"
        # What keeps new limits from being given does not close the door: who was given one starts again, or hears why.
        self._fault = self._node_fault() or fault

    def _node_fault(self) -> str:
        if not (self.paths.cgroups / "cgroup.controllers").exists():
            return f"cgroup v2 is not mounted at {self.paths.cgroups}: this node has cgroup v1, or both"
        if not self.paths.programs:
            return (
                f"its hook needs {spec.PYTHON} on the node, and what the node has is not seen from this pod: mount the "
                "node's root in it, read-only, and set node_root to where it is mounted"
            )
        if not os.access(self.paths.node / spec.PYTHON[1:], os.X_OK):
            return f"its hook needs {spec.PYTHON} on the node"
        return ""

    # --- a container starts -------------------------------------------------------------------------------------

    def limit(self, request: Request) -> str:
        """Limit a container that is being created; return why it has no limit, empty when it has."""
        with self._lock:
            known = (request.card, request.size) in self._given
        if not known:
            return f"{request.size} bytes of {request.card} were allocated to no container of this node"
        folder = self.paths.cgroups / request.cgroup.lstrip("/")
        if ".." in folder.parts or folder == self.paths.cgroups or not folder.is_dir():
            return f"{request.cgroup} is no cgroup of a container below {self.paths.cgroups}"
        with self.held.alone(request.container, request.card) as before:
            # A container has one limit of a card. The name of a neighbour's comes from NVIDIA's runtime, which takes
            # names of CDI devices from the container's environment.
            if before is not None and before.hard and request.size > before.size:
                return self._refused(request, before)
            return self._set(request, folder, before)

    def _refused(self, request: Request, before: Held) -> str:
        error = (
            f"it has a limit of {before.size} bytes, which is not raised to {request.size}: the container names a "
            f"second {spec.KIND}, which is not its own"
        )
        self.host.log.warning("container %s on %s: %s", request.container, request.card, error)
        return error

    def _set(self, request: Request, folder: Path, before: Held | None) -> str:
        answer = self.driver.limit(request.card, folder, request.size, _DRIVER_TIMEOUT)
        one = Held(request.container, request.card, str(folder), request.size, answer.hard, answer.error)
        if answer.error:
            self.host.log.warning("container %s on %s: no limit: %s", request.container, request.card, answer.error)
            if before is not None and before.hard:
                return answer.error  # the former limit holds, and is not to be forgotten: it could be raised then
        try:
            self.held.put(one)
        except OSError as error:
            return answer.error or f"{self.held.file} cannot be written: {error.strerror or error}"
        return answer.error

    def of_card(self, uuid: Uuid) -> Mapping[Container, Held]:
        """Return what holds on a card, by container; the latest where a container was started again."""
        containers = self.containers()
        found = [(containers.named(one.container), one) for one in self.held.of(uuid)]
        return {container: one for container, one in found if container is not None}


def asked_for(config: GpuConfig) -> bool:
    """Whether the configuration asks for limits, or would take them; some may be set otherwise, of former days."""
    return config.limits in {"auto", "kernel"}


def spec_file(config: GpuConfig) -> Path:
    """Return the path of the spec."""
    shared = [entry for entry in config.resources if _shared(entry)]
    return (shared or config.resources)[0].access.cdi_folder / spec.FILE


def _recorded(journal: Journal) -> Iterator[spec.Limit]:
    """Yield what was given before a reboot, to containers that start again."""
    for entry in journal.entries():
        if entry.phase == _PHASE:
            with suppress(KeyError, TypeError, ValueError):
                one = Uuid(str(entry.data["card"])), int(entry.data["bytes"])
                if entry.key == _key(one):  # in the journal of a former section there may be another plugin's
                    yield one


def _forget(journal: Journal, one: spec.Limit) -> None:
    with suppress(PluginError):  # it is offered to the runtime again after a reboot, for a minute
        journal.remove(_key(one))


def _shared(entry: Resource) -> bool:
    return isinstance(entry, Memory | Replicas)


def _size(entry: Resource, sharing: Sharing, card: Card, count: int) -> int:
    """Return the bytes of a card that so many of its units or replicas are, at most all that it has."""
    if isinstance(sharing, MemorySharing):
        return min(count * sharing.unit, card.memory)  # of a card that is advertised more than once there may be more
    return card.memory * count // entry.replicas if isinstance(entry, Replicas) else 0


def _key(one: spec.Limit) -> str:
    return f"limit {one[0]} {one[1]}"
