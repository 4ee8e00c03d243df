"""Kubelet and the plugin's core in one process: lives of many steps, without sockets or threads.

Owns: the direct way from kubelet's admission to the sharing, and the clock.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from nodeplug import (
    Device,
    DeviceAllocate,
    DeviceId,
    Grant,
    Holding,
    NotFound,
    NotReady,
    PluginError,
    ResourceName,
)
from nodeplug.device import codec
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing import host
from nodeplug.testing.kubelet.admission import Admission, Container
from nodeplug.testing.kubelet.endpoint import Resource
from nodeplug.testing.kubelet.ledger import ContainerKey, Ledger
from nodeplug.testing.kubelet.plugins import Plugins
from nodeplug.testing.kubelet.timeouts import Switches, Timeouts
from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.cards import Card, DriverState, GpuEvent, MigInstance, Snapshot, Telemetry, Uuid
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.mps.record import Record
from nodeplug_gpu.tracker import InventoryTracker

MEM: Final = ResourceName("aliyun.com/gpu-mem")


class DirectEndpoint:
    """A plugin as kubelet's admission sees it, without a socket between: the daemon's codecs, then the sharing."""

    def __init__(self, node: "GpuNode") -> None:
        self.node, self.stub = node, self
        self.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)

    def refuse_stopped(self) -> None:
        """It never stops."""

    async def GetPreferredAllocation(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:  # noqa: N802 - gRPC's name
        (asked,) = codec.decode_prefer(MEM, request)
        sharing, pool = self.node.tracker.inventory.advertised(self.node.entry, MEM)
        return codec.encode_prefer([codec.usable_preference(asked, sharing.prefer(asked, pool)).ids])

    async def Allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:  # noqa: N802 - gRPC's name
        try:
            (asked,) = codec.decode_allocate(MEM, request, {one.id: one for one in self.node.devices})
            sharing, pool = self.node.tracker.inventory.advertised(self.node.entry, MEM)
            grant = sharing.allocate(asked, pool)
            self.node.tracker.allocated(MEM)
            return codec.encode_allocate([grant])
        except PluginError as error:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), error.message
            ) from error


class GpuNode:
    """Kubelet's admission and the plugin's core in one process, with a clock that is moved by hand.

    Args:
        folder: of what outlives the plugin.
        policy: of the memory entry.
        seed: of kubelet's choices.
        memory: bytes per card.
    """

    def __init__(self, folder: Path, policy: str, seed: int, memory: Sequence[int] = (8, 16, 16, 24)) -> None:
        self.folder, self.policy, self.now = folder, policy, 1000.0
        config = {"resources": [{"sharing": "memory", "policy": policy}], "driver": "nvml"}
        self.config = GpuConfig.model_validate(config)
        self.entry = self.config.resources[0]
        made = [Card(Uuid(f"GPU-{seed}-{n}"), n, len(memory) - n, "X", size << 30) for n, size in enumerate(memory)]
        self.cards = {str(card_key(card.uuid)): card for card in made}
        self.all = frozenset(card.uuid for card in made)
        self.present = set(self.all)
        self.told_held: Sequence[Holding] = ()
        self.devices: Sequence[Device] = ()
        self.plugins = Plugins(Switches(), Timeouts(), lambda: None)
        self.admission = Admission(self.plugins, Ledger(), Random(seed), lambda: None)
        self.plugins.resources[MEM] = Resource()
        self.restart_plugin()

    # --- the plugin

    def restart_plugin(self) -> None:
        self.folder.mkdir(exist_ok=True)
        given = host(self.folder, plugin="gpu", holders=self._holders)
        self.tracker = InventoryTracker(self.config, given, NodePaths(run=given.run_dir), clock=lambda: self.now)
        self.tracker.allocations.load()
        self.update()

    def update(self, *events: GpuEvent) -> None:
        self.tracker.update(self.snapshot(), events)
        try:
            self.devices = self.tracker.inventory.devices(self.entry, MEM)
        except NotFound:
            self.devices = ()
        self.plugins.resources[MEM].take(codec.encode_list(MEM, self.devices))
        self.plugins.resources[MEM].endpoint = DirectEndpoint(self)  # type: ignore[assignment] # has what is used

    def snapshot(self) -> Snapshot:
        here = [card for card in self.cards.values() if card.uuid in self.present]
        numbered = tuple(replace(card, index=index) for index, card in enumerate(here))
        return Snapshot("running", cards=numbered, telemetry={card.uuid: Telemetry() for card in here}, taken=self.now)

    def xid(self, uuid: Uuid, code: int) -> None:
        self.update(GpuEvent("xid", uuid, code, time=self.now))

    def pass_time(self, seconds: float) -> None:
        """Let time pass; kubelet is asked who holds what every ten seconds, as the daemon does."""
        while seconds > 0:
            self.now += min(seconds, 10.0)
            seconds -= 10.0
            self.told_held = [
                Holding(
                    resource=MEM,
                    ids=tuple(DeviceId(one) for one in sorted(entry.ids)),
                    namespace=key.namespace,
                    pod=key.pod,
                    container=key.container,
                )
                for key, entries in self.admission.listed()
                for entry in entries.values()
            ]
            self.update()

    def _holders(self, resource: ResourceName) -> Sequence[Holding]:
        return self.told_held if resource == MEM else ()

    # --- kubelet

    def restart_kubelet(self) -> None:
        """Its tables are empty until the plugin lists again, and it tells no holders at first."""
        self.plugins.resources[MEM] = Resource()
        self.told_held = ()
        self.update()

    async def admit(self, pod: str, container: str, size: int, *, init: bool = False) -> pb.ContainerAllocateResponse:
        key = ContainerKey("default", pod, container)
        await self.admission.admit(key, Container("init" if init else "app", {MEM: size}))
        return self.admission.ledger.of(key)[MEM].response

    def remove(self, pod: str) -> None:
        self.admission.remove("default", pod)

    def free(self) -> Collection[str]:
        """Return the ids that kubelet could give now."""
        self.admission.forget_finished()
        table = self.plugins.resources[MEM].table
        return table.healthy.keys() - self.admission.ledger.in_use.get(MEM, set()) if table is not None else ()

    def ids(self, pod: str, container: str) -> frozenset[str]:
        return self.admission.ledger.held(ContainerKey("default", pod, container), MEM)

    def held(self) -> Mapping[str, frozenset[str]]:
        """Return what each pod holds; an init container's ids that went on to the app count once."""
        self.admission.forget_finished()
        found: dict[str, frozenset[str]] = {}
        for (key, _), entry in self.admission.ledger.entries.items():
            found[key.pod] = found.get(key.pod, frozenset()) | entry.ids
        return found

    def listed(self) -> Mapping[str, bool]:
        return {one.id: one.healthy for one in self.devices}


@pytest.fixture
def gpu_node() -> type[GpuNode]:
    """The core of the plugin, driven by kubelet's rules in this process."""
    return GpuNode


class TrackedNode:
    """The plugin's core on a machine and beside a kubelet that a test changes, with a clock that is moved by hand.

    Attributes:
        cards: what the driver shows.
        held: what kubelet tells, by resource and pod; None while it tells nothing.
        state: the driver's.
    """

    def __init__(self, folder: Path, resources: Sequence[Mapping[str, Any]], cards: Sequence[Card]) -> None:
        self.folder, self.cards, self.now = folder, list(cards), 1000.0
        self.held: dict[str, dict[str, Sequence[str]]] | None = {}
        self.state: DriverState = "running"
        self.configure(resources)

    def configure(self, resources: Sequence[Mapping[str, Any]], section: str = "gpu") -> None:
        """Start over with a configuration, as a new instance of the plugin, in a section of some name."""
        (self.folder / section).mkdir(exist_ok=True)
        former = [host(one) for one in self.folder.iterdir() if one.name != section]
        self.host = host(self.folder / section, plugin=section, holders=self._holders, former=former)
        self.config = GpuConfig.model_validate({"resources": resources})
        paths = NodePaths(run=self.host.run_dir, former=[one.run_dir for one in former])
        self.tracker = InventoryTracker(self.config, self.host, paths, clock=lambda: self.now)
        self.tracker.allocations.load()
        self.update()

    def update(self, *events: GpuEvent, after: float = 0.0) -> Inventory:
        """Update the inventory, some seconds later."""
        self.now += after
        cards = tuple(replace(card, index=index) for index, card in enumerate(self.cards))
        self._have_mps(cards)
        telemetry = {card.uuid: Telemetry() for card in cards}
        reason = "" if self.state == "running" else "as the test wants it"
        return self.tracker.update(
            Snapshot(self.state, reason, cards=cards, telemetry=telemetry, taken=self.now), events
        )

    def _have_mps(self, cards: Collection[Card]) -> None:
        """Note an MPS daemon for every card: an entry with `mps` grants nothing of a card that has none."""
        for card in cards if any(getattr(entry, "mps", None) for entry in self.config.resources) else ():
            record = Folders.of(self.host.run_dir, card.uuid, self.tracker.paths.former).record
            if not record.exists():
                record.parent.mkdir(parents=True)
                Record(1, "1", exclusive=True).write(record)

    def wait(self, seconds: float = 130.0) -> None:
        """Let time pass, with an update every ten seconds."""
        for _ in range(int(seconds // 10)):
            self.update(after=10.0)

    def _holders(self, resource: ResourceName) -> Sequence[Holding]:
        if self.held is None:
            raise NotReady("kubelet does not tell")
        told = self.held.get(resource, {})
        return [
            Holding(resource=resource, ids=tuple(map(DeviceId, ids)), namespace="default", pod=pod, container="main")
            for pod, ids in told.items()
        ]

    def listed(self, resource: str = MEM) -> Mapping[str, str]:
        """Return what kubelet would be told: the reason by id, empty for a healthy device."""
        name = ResourceName(resource)
        try:
            found = self.tracker.inventory.devices(self.tracker.entry_of(name), name)
        except NotFound:
            return {}
        assert len({one.id for one in found}) == len(found)
        assert all(one.healthy == (not one.reason) for one in found)
        return {one.id: one.reason for one in found}

    def allocate(self, resource: str, *ids: str) -> Grant:
        """Ask for ids, as the daemon does when its list has them."""
        name = ResourceName(resource)
        devices = {one.id: one for one in self.tracker.inventory.devices(self.tracker.entry_of(name), name)}
        found = tuple(devices.get(DeviceId(one), Device(DeviceId(one))) for one in ids)
        sharing, pool = self.tracker.inventory.advertised(self.tracker.entry_of(name), name)
        return sharing.allocate(DeviceAllocate(resource=name, ids=tuple(map(DeviceId, ids)), devices=found), pool)

    def why_nothing(self, resource: str) -> str:
        """Return why there is nothing of a resource."""
        with pytest.raises(NotFound) as caught:
            self.tracker.inventory.devices(self.tracker.entry_of(resource), ResourceName(resource))
        return caught.value.message


@pytest.fixture
def make_node(tmp_path: Path) -> Callable[..., TrackedNode]:
    """A node whose cards are advertised by the entries of a configuration."""
    return lambda resources, cards: TrackedNode(tmp_path, resources, cards)


@pytest.fixture
def card() -> Callable[..., Card]:
    """A card by its number."""

    def make(number: int, gib: int = 16, **more: Any) -> Card:
        usual: dict[str, Any] = {"uuid": f"GPU-{number}", "index": number, "minor": number, "model": "NVIDIA A10"}
        usual |= {"memory": gib << 30, "pci": f"0000:{number + 1:02x}:00.0"}
        return Card(**usual | more)

    return make


@pytest.fixture
def divided(card: Callable[..., Card]) -> Callable[..., Card]:
    """A card in MIG mode, with an instance for each profile."""

    def make(number: int, *profiles: str, batch: str = "a") -> Card:
        instances = tuple(
            MigInstance(Uuid(f"MIG-{number}-{batch}{place}"), profile, 10 << 30, place + 1, 0)
            for place, profile in enumerate(profiles)
        )
        return card(number, 80, mig=True, instances=instances)

    return make
