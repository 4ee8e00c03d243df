"""The plugin's core on machines and beside kubelets that a test changes, without sockets or threads; and whole plugins.

Owns: what a test changes, and the clock.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.core.gpu_node import MEM, GpuNode
from tests.gpu.core.gpu_plugins import GpuPlugins

from nodeplug import (
    Device,
    DeviceAllocate,
    DeviceId,
    Grant,
    Holding,
    NotFound,
    NotReady,
    ResourceName,
)
from nodeplug.testing import host
from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.cards import Card, CardPair, DriverState, GpuEvent, MigInstance, Snapshot, Telemetry, Uuid
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.mps.record import Record
from nodeplug_gpu.tracker import InventoryTracker


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
        pairs: how the cards are connected.
        more: keys of the configuration beside `resources`.
    """

    def __init__(
        self, folder: Path, resources: Sequence[Mapping[str, Any]], cards: Sequence[Card], more: Mapping[str, Any]
    ) -> None:
        self.folder, self.cards, self.now, self.more = folder, list(cards), 1000.0, dict(more)
        self.held: dict[str, dict[str, Sequence[str]]] | None = {}
        self.state: DriverState = "running"
        self.pairs: tuple[CardPair, ...] = ()
        self.configure(resources)

    def configure(self, resources: Sequence[Mapping[str, Any]], section: str = "gpu") -> None:
        """Start over with a configuration, as a new instance of the plugin, in a section of some name."""
        (self.folder / section).mkdir(exist_ok=True)
        former = [host(one) for one in self.folder.iterdir() if one.name != section]
        self.host = host(self.folder / section, plugin=section, holders=self._holders, former=former)
        self.config = GpuConfig.model_validate({"resources": resources, **self.more})
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
            Snapshot(self.state, reason, cards=cards, telemetry=telemetry, taken=self.now, pairs=self.pairs), events
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
    return lambda resources, cards, **more: TrackedNode(tmp_path, resources, cards, more)


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


@pytest.fixture
def plugins(tmp_path: Path) -> Iterator[GpuPlugins]:
    """Makes instances of the plugin, which have stopped at the end."""
    made = GpuPlugins(tmp_path)
    yield made
    for plugin in made.made:
        plugin.stop()


@pytest.fixture
def with_nodes(tmp_path: Path) -> str:
    """A root whose /dev has a card."""
    root = tmp_path / "nodes"
    (root / "dev").mkdir(parents=True)
    for name in ("nvidiactl", "nvidia0"):
        (root / "dev" / name).touch()
    return str(root)
