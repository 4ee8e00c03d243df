"""What the extender has placed is admitted, however the node's figures change meanwhile: nothing is told at once.

Time is simulated: a write of the node is seen late, kubelet meets a pod late, and pods end at any time.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.gpu.core.gpu_node import MEM, GpuNode

from nodeplug import ExtenderBind, ExtenderFilter, TryAgain
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.testing import AdmissionError, host
from nodeplug.testing.kubelet.admission import Container
from nodeplug.testing.kubelet.ledger import ContainerKey
from nodeplug.testing.scheduler import pod as v1_pod
from nodeplug_gpu.cluster import ClusterView
from nodeplug_gpu.extender.config import ExtenderConfig
from nodeplug_gpu.extender.model import place
from nodeplug_gpu.extender.plugin import GpuExtender
from nodeplug_gpu.extender.wants import Want
from nodeplug_gpu.ids import CardKey
from nodeplug_gpu.overuse import OveruseWatch

SIZES = (1, 2, 3, 5, 8, 11)
SHAPES = ("app", "app", "app app", "init app", "init app app", "sidecar app")


@dataclass(order=True)
class Event:
    at: float
    number: int
    do: Callable[[], Any] = field(compare=False)


class Cluster(ClusterScheduling):
    """An API server with one node: what it knows is what was written some time ago."""

    def __init__(self) -> None:
        self.annotations: Mapping[str, str] = {}
        self.pending: dict[str, Mapping[str, Any]] = {}
        self.pods: dict[str, Mapping[str, Any]] = {}
        self.binds: Callable[[str, str], None] = lambda name, uid: None

    def node(self, name: str) -> Mapping[str, Any]:
        return {"metadata": {"name": name, "annotations": dict(self.annotations)}}

    def bound(self) -> Sequence[Mapping[str, Any]]:
        return tuple(self.pending.values())

    def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self.pods.get(name)

    def begin(self, uid: str) -> None:
        self.pending.pop(uid, None)

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        self.binds(name, uid)


class Life:
    """Pods that come to one node and go."""

    def __init__(self, node: GpuNode, seed: int, folder: Path) -> None:
        self.node, self.random = node, Random(seed)
        self.view = ClusterView(node.config, node.tracker, OveruseWatch({}, node.tracker.host), "n")
        self.cluster, self.events, self.count = Cluster(), list[Event](), 0
        self.cluster.binds = self._bound
        folder.mkdir()
        self.plugin = GpuExtender(ExtenderConfig(), host(folder, scheduling=self.cluster), clock=lambda: self.node.now)
        self.admitted, self.rejected, self.waiting = 0, list[str](), dict[str, tuple[dict[str, Any], list[Want]]]()
        self.policy: Any = node.policy
        self.empty = {CardKey(key): card.memory >> 30 for key, card in node.cards.items()}
        self.last_write = self.last_admission = 0.0
        self.news = False

    def after(self, seconds: float, do: Callable[[], Any]) -> None:
        self.count += 1
        heapq.heappush(self.events, Event(self.node.now + seconds, self.count, do))

    async def run(self, pods: int) -> None:
        self.after(0, self._publish)
        self.after(2, self._look)
        for number in range(pods):
            self.after(self.random.uniform(3, 3 + pods / 3), partial(self._come, f"p{number}"))
        while self.events:
            event = heapq.heappop(self.events)
            self.node.now = max(self.node.now, event.at)
            if (done := event.do()) is not None:
                await done

    def _publish(self) -> None:
        """Look at kubelet every second, as the plugin does after a grant, and write what is new."""
        self.node.ask_kubelet()
        self.news |= self.view.update()
        if self.news and self.node.now >= self.last_write + self.random.choice([0, 1, 5]):
            self.news = False
            report = self.view.report()
            assert report is not None
            self.last_write, told = self.node.now, report.annotations
            self.after(self.random.uniform(0, 1.4), lambda: self._seen(told))
        if self.waiting or len(self.events) > 1:
            self.after(1.0, self._publish)

    def _look(self) -> None:
        self.plugin._look()
        if self.waiting or len(self.events) > 1:
            self.after(5.0, self._look)

    def _seen(self, told: Mapping[str, str]) -> None:
        self.cluster.annotations = told

    def _come(self, name: str) -> None:
        while True:  # until it is a pod that an empty node has cards for
            kinds: Sequence[Any] = self.random.choice(SHAPES).split()
            wants = [Want(kind, self.random.choice(SIZES)) for kind in kinds]
            if place(self.empty, wants, self.policy) is not None:
                break
        self.waiting[name] = (pod_of(name, wants), wants)
        self._schedule(name)

    def _schedule(self, name: str) -> None:
        pod, _ = self.waiting[name]
        try:
            if not self.plugin.extender_filter(ExtenderFilter(claim="gpu-mem", pod=pod, nodes={"n": None})).nodes:
                raise TryAgain("it does not fit")
            uid = pod["metadata"]["uid"]
            self.plugin.extender_bind(ExtenderBind(claim="gpu-mem", namespace="default", pod=name, uid=uid, node="n"))
        except TryAgain:
            self.after(self.random.uniform(0.2, 1.5), lambda: self._schedule(name))

    def _bound(self, name: str, uid: str) -> None:
        pod, wants = self.waiting.pop(name)
        self.cluster.pending[uid] = self.cluster.pods[name] = {**pod, "spec": {**pod["spec"], "nodeName": "n"}}
        at = max(self.node.now + self.random.uniform(0, 1.4), self.last_admission)  # kubelet keeps the order
        self.last_admission = at
        self.after(at - self.node.now, lambda: self._admit(name, uid, wants))

    async def _admit(self, name: str, uid: str, wants: Sequence[Want]) -> None:
        self.node.admission.forget_finished()
        free = sorted(self.node.free())
        try:
            for number, want in enumerate(wants):
                key = ContainerKey("default", name, str(number))
                await self.node.admission.admit(key, Container(want.kind, {MEM: want.units}))
        except AdmissionError:
            self.rejected.append(f"{name} {wants} at {self.node.now}, free {free}")
            self._gone(name, uid)
            return
        self.admitted += 1
        self.after(self.random.uniform(0, 0.4), partial(self.cluster.begin, uid))
        self.after(self.random.uniform(0.5, 8), lambda: self._gone(name, uid))

    def _gone(self, name: str, uid: str) -> None:
        self.node.remove(name)
        self.cluster.begin(uid)
        del self.cluster.pods[name]


def pod_of(name: str, wants: Sequence[Want]) -> dict[str, Any]:
    def container(number: int, want: Want) -> dict[str, Any]:
        return {"name": str(number), "resources": {"limits": {MEM: str(want.units)}}}

    pairs = list(enumerate(wants))
    init = [
        container(number, want) | ({"restartPolicy": "Always"} if want.kind == "sidecar" else {})
        for number, want in pairs
        if want.kind != "app"
    ]
    return v1_pod(name, initContainers=init, containers=[container(*one) for one in pairs if one[1].kind == "app"])


@pytest.mark.parametrize("policy", ["binpack", "spread"])
@pytest.mark.parametrize(
    ("seed", "pods"), [(0, 40), *(pytest.param(seed, 80, marks=pytest.mark.soak) for seed in range(5))]
)
def test_what_the_extender_has_placed_is_admitted_whatever_comes_between(
    gpu_node: Any, tmp_path: Path, policy: str, seed: int, pods: int
) -> None:
    life = Life(gpu_node(tmp_path / "n", policy, seed, (16, 16, 24)), seed, tmp_path / "e")
    asyncio.run(life.run(pods))
    assert not life.rejected
    assert life.admitted == pods
