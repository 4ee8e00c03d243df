"""Kubelet and the core of the GPU plugin in one process, without sockets or threads.

Owns: the direct way from kubelet's admission to the sharing, and the clock.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import grpc
import grpc.aio

from nodeplug import Device, DeviceId, Holding, NotFound, PluginError, ResourceName
from nodeplug.device import codec
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing import host
from nodeplug.testing.kubelet.admission import Admission, Container
from nodeplug.testing.kubelet.endpoint import Resource
from nodeplug.testing.kubelet.ledger import ContainerKey, DeviceAllocateInfo, Ledger
from nodeplug.testing.kubelet.plugins import Plugins
from nodeplug.testing.kubelet.timeouts import Switches, Timeouts
from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.cards import Card, GpuEvent, Snapshot, Telemetry, Uuid
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.ids import card_key
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
            self.told_held = self._told(
                (key, name, entry) for key, held in self.admission.listed() for name, entry in held.items()
            )
            self.update()

    def ask_kubelet(self) -> None:
        """Learn who holds what, also from kubelet's checkpoint: what init containers have left to their pods."""
        self.admission.forget_finished()
        self.told_held = self._told((key, name, entry) for (key, name), entry in self.admission.ledger.entries.items())
        self.update()

    @staticmethod
    def _told(held: Iterable[tuple[ContainerKey, str, DeviceAllocateInfo]]) -> Sequence[Holding]:
        return [
            Holding(
                resource=ResourceName(name),
                ids=tuple(map(DeviceId, sorted(entry.ids))),
                namespace=key.namespace,
                pod=key.pod,
                container=key.container,
            )
            for key, name, entry in held
        ]

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
