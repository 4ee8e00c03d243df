"""Nodes without a machine: hundreds of them beside a real control plane, whose pods and cards are figures.

Owns: their Node objects, and what a kubelet and a daemon do there: admission of pods as kubelet's stand-in has it, with
the GPU plugin's own core as its device plugin, and the daemon's own publisher.
Refuses: containers: a pod that was admitted "runs" until somebody wants its end.

All of them live on one event loop, in the network namespace of the control plane.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from tests.gpu.core.gpu_node import MEM, GpuNode
from tests.real.consumers.control_plane import ControlPlane

from nodeplug import DeviceId
from nodeplug.cluster.publisher import Publisher
from nodeplug.config import ClusterSection
from nodeplug.contract.errors import InvalidRequest, NotFound
from nodeplug.contract.values import ClusterReport
from nodeplug.device.podresources import SETTLE
from nodeplug.hosting.registry import Registry
from nodeplug.kubeapi.client import Bounds, Client, Listed
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.refusals import Asked, Conflict
from nodeplug.kubeapi.resources import NODES, PODS, Object
from nodeplug.kubeapi.watch import Watch
from nodeplug.testing import AdmissionError
from nodeplug.testing.kubelet.admission import Container
from nodeplug.testing.kubelet.ledger import ContainerKey
from nodeplug_gpu.cluster import ClusterView
from nodeplug_gpu.extender.model import place
from nodeplug_gpu.extender.wants import Want, wants_of
from nodeplug_gpu.ids import CardKey, by_card
from nodeplug_gpu.overuse import OveruseWatch
from nodeplug_gpu.placement import Policy

if TYPE_CHECKING:
    from nodeplug.cluster.reports import ClusterReports
    from nodeplug.hosting.runner import Runner

POLICY: Final[Policy] = "binpack"
_GONE: Final = (NotFound, Conflict, InvalidRequest)
"""What the API server says of a pod that is gone, or whose name another one has by now."""
BOUNDS: Final = Bounds(at_once=32, request=120.0)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A pod that a kubelet has rejected.

    Attributes:
        pod: its name.
        wants: of its containers.
        why: in kubelet's words.
        elsewhere: nodes that had room for it then.
        scheduler: that has placed it.
        held: what each pod held there, by card.
        said: what the node had to say last.
    """

    pod: str
    wants: Sequence[Want]
    why: str
    elsewhere: Sequence[str]
    scheduler: str
    held: Mapping[str, Mapping[str, int]]
    said: str


@dataclass(slots=True)
class Told:
    """What the one plugin of a hollow node reports, as the publisher asks for it."""

    view: ClusterView
    settled: bool = True

    async def collect(self) -> Mapping[str, ClusterReport]:
        found = self.view.report()
        return {"gpu": found} if found is not None else {}


class HollowNode:
    """One node.

    Args:
        name: of its Node object.
        fleet: to which it belongs.
        core: kubelet's admission and the plugin.

    Attributes:
        bound: pods that were bound to it, and those that are to end, in order.
        rejections: pods that its kubelet has rejected.
    """

    def __init__(self, name: str, fleet: "Fleet", core: GpuNode) -> None:
        self.name, self.fleet, self.core = name, fleet, core
        self.bound: asyncio.Queue[Object] = asyncio.Queue()
        self.rejections: list[Rejection] = []
        self._known: dict[str, str] = {}
        self._ended: set[str] = set()
        self._granted = asyncio.Event()
        self._dirty = True
        self._registry = Registry()
        self._view = ClusterView(core.config, core.tracker, OveruseWatch({}, core.tracker.host), name)
        section = ClusterSection(kubeconfig=fleet.kubeconfig, publish=("annotations",))
        self.publisher = Publisher(self._registry, cast("Runner", None), name, section, dict)
        self.publisher._reports = cast("ClusterReports", Told(self._view))

    async def run(self) -> None:
        """Be a kubelet and a daemon until cancelled."""
        self._look()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._admit_all(), name=f"kubelet of {self.name}")
            group.create_task(self._look_always(), name=f"looks of {self.name}")
            group.create_task(self.publisher.run(), name=f"publisher of {self.name}")

    def free(self) -> Mapping[CardKey, int]:
        """Return the units by card that kubelet could give now."""
        counted = Counter(_cards(self.core.free()))
        return {CardKey(card): counted[card] for card in self.core.cards}

    # --- kubelet

    async def _admit_all(self) -> None:
        """Take pods in as kubelet does: one after the other, in the order in which they were bound."""
        while True:
            pod = await self.bound.get()
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            if pod["metadata"].get("deletionTimestamp") or pod.get("status", {}).get("phase") == "Succeeded":
                if self._known.get(name) == uid:
                    await self._end(pod)
            elif self._known.get(name) != uid:
                self._known[name] = uid
                await self._admit(pod)

    async def _admit(self, pod: Object) -> None:
        name, wants = pod["metadata"]["name"], wants_of(pod, MEM)
        self.core.now = time.monotonic()
        try:
            for number, want in enumerate(wants):
                key = ContainerKey("default", name, str(number))
                await self.core.admission.admit(key, Container(want.kind, {MEM: want.units}))
        except AdmissionError as error:
            room = [one.name for one in self.fleet.nodes if place(one.free(), wants, POLICY)]
            who, said = pod["spec"]["schedulerName"], self._view.latest
            held = {one: _cards(ids) for one, ids in self.core.held().items()}
            known = said.annotations["nodeplug.io/gpu-mem"] if said is not None else ""
            self.rejections.append(Rejection(name, wants, str(error), room, who, held, known))
            status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": str(error)}
        else:
            status = {"phase": "Running"}
            self._check()
        self._dirty = True
        self._granted.set()
        self.fleet.soon(self._run(pod, status))

    def _check(self) -> None:
        """No unit may be of two pods."""
        for one, ids in (held := self.core.held()).items():
            others = {unit: pod for pod, units in held.items() if pod != one for unit in units}
            assert not ids & others.keys(), f"{self.name}: pods {one} and {others} have units in common"

    async def _run(self, pod: Object, status: Mapping[str, Any]) -> None:
        """Tell of a pod, and let its containers end by themselves if the command of the first one is a sleep."""
        await self.fleet.tell(pod, status)
        if pod["spec"]["restartPolicy"] != "Never" or status["phase"] != "Running":
            return
        await asyncio.sleep(float(pod["spec"]["containers"][0]["command"][-1]))
        if self._known.get(pod["metadata"]["name"]) == pod["metadata"]["uid"]:
            self.bound.put_nowait({**pod, "status": {"phase": "Succeeded"}})
            await self.fleet.tell(pod, {"phase": "Succeeded"})

    async def _end(self, pod: Object) -> None:
        """End a pod, once: its units are free when kubelet looks again, and its object goes if somebody wants that.

        One that has ended by itself is let go by the server alone; see `Fleet.let_go`.
        """
        if (uid := pod["metadata"]["uid"]) in self._ended:
            return
        self._ended.add(uid)
        self.core.remove(pod["metadata"]["name"])
        self._dirty = True
        if pod["metadata"].get("deletionTimestamp"):
            self.fleet.soon(self.fleet.let_go(pod))

    # --- the daemon

    async def _look_always(self) -> None:
        """Look at kubelet as the daemon does: in turns, and a little after each grant."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.fleet.poll):
                    await self._granted.wait()
                    await asyncio.sleep(SETTLE)
            self._granted.clear()
            if self._dirty:
                self._look()

    def _look(self) -> None:
        self._dirty, self.core.now = False, time.monotonic()
        self.core.ask_kubelet()
        if self._view.update():
            self._registry.cluster_news.set()


def _cards(ids: Iterable[str]) -> Mapping[str, int]:
    return {str(card): len(mine) for card, mine in by_card(map(DeviceId, ids)).items()}


@dataclass
class Fleet:
    """Nodes, and the one watch that tells all of them of their pods.

    Attributes:
        client: of all kubelets.
        kubeconfig: of all daemons.
        poll: seconds between two looks of a daemon at its kubelet.
        nodes: all of them.
    """

    client: Client
    kubeconfig: Path
    poll: float
    nodes: list[HollowNode] = field(default_factory=list)
    _group: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)

    @property
    def rejections(self) -> list[Rejection]:
        """What kubelets have rejected."""
        return [one for node in self.nodes for one in node.rejections]

    def soon(self, work: Any) -> None:
        """Do something beside: kubelet's status has a worker of its own."""
        self._group.create_task(work)

    async def tell(self, pod: Object, status: Mapping[str, Any]) -> None:
        """Write a pod's status, as its kubelet does."""
        about = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        with suppress(*_GONE):
            await self.client.patch(PODS, pod["metadata"]["name"], about, "default", "status")

    async def let_go(self, pod: Object) -> None:
        """Delete a pod that has ended, as only its kubelet may: at once.

        Never write its status after that. The server takes a write to what is to go at once for its deletion, and
        deletes what has its name by then, whatever its UID is (apiserver, registry.Store.deleteWithoutFinalizers).
        """
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        about = {"metadata": {"uid": uid}, "status": {"phase": "Succeeded"}}
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        with suppress(*_GONE):
            await self.client.patch(PODS, name, about, "default", "status")
        with suppress(*_GONE):
            await self.client._object(Asked("delete", PODS, "default", name), body=options)

    async def follow(self) -> None:
        """Tell nodes of their pods, for ever."""
        places = {one.name: one for one in self.nodes}
        async with aclosing(Watch(self.client, PODS, fields="spec.nodeName!=").changes()) as changes:
            async for change in changes:
                found = change if isinstance(change, Listed) else [change.object] * (change.how != "DELETED")
                for pod in found:
                    if (node := places.get(pod["spec"]["nodeName"])) is not None:
                        node.bound.put_nowait(pod)

    async def stir(self) -> None:
        """Change something every second, as somebody does in every cluster: pods that wait are tried again then."""
        for number in count():
            about = {"metadata": {"annotations": {"example.com/number": str(number)}}}
            await self.client.patch(NODES, self.nodes[0].name, about)
            await asyncio.sleep(1.0)

    async def create(self) -> None:
        """Create the Node objects, as kubelets would, and wait until all have said what is free."""

        async def one(node: HollowNode) -> None:
            labels = {"kubernetes.io/hostname": node.name}
            await self.client.create(NODES, {"metadata": {"name": node.name, "labels": labels}})
            room = {"cpu": "64", "memory": "64Gi", "pods": "250", MEM: str(len(node.core.devices))}
            status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
            await self.client.patch(NODES, node.name, {"status": status}, part="status")

        await asyncio.gather(*map(one, self.nodes))


@asynccontextmanager
async def open_fleet(
    control: ControlPlane, folder: Path, number: int, cards: Sequence[int] = (16, 16, 16, 16), poll: float = 1.0
) -> AsyncIterator[Fleet]:
    """Have nodes until the end of a block. Use it in the namespace of the control plane.

    Args:
        control: where they are objects.
        folder: an existing folder for what plugins remember.
        number: how many.
        cards: memory of each card of a node, in GiB, which are units.
        poll: seconds between two looks of a daemon at its kubelet; a daemon that is not configured takes 10.
    """
    kubeconfig = control.folder / "kubeconfig"
    async with Client(Credentials(find(kubeconfig)), BOUNDS) as client, asyncio.TaskGroup() as group:
        fleet = Fleet(client, kubeconfig, poll, _group=group)
        for one in range(number):
            core = GpuNode(folder / f"h{one}", POLICY, one, cards)
            fleet.nodes.append(HollowNode(f"hollow-{one}", fleet, core))
        await fleet.create()
        tasks = [group.create_task(one.run(), name=one.name) for one in fleet.nodes]
        tasks += [group.create_task(fleet.follow()), group.create_task(fleet.stir())]
        async with asyncio.timeout(60):
            while not all(one.publisher.status()["annotations"] for one in fleet.nodes):
                await asyncio.sleep(0.05)
        yield fleet
        await _ended(tasks)
        await asyncio.gather(*(client.delete(NODES, one.name) for one in fleet.nodes))


async def _ended(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """End tasks, and say which do not end at once."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=5.0)
        for task in left:
            task.print_stack()
