"""Bindings to one node go one after the other, those to different nodes side by side; pods keep the cards of them."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nodeplug import ExtenderBind, ExtenderFilter, TryAgain
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.testing import host
from nodeplug.testing.scheduler import pod as v1_pod
from nodeplug.testing.waiting import until
from nodeplug_gpu.extender import turns
from nodeplug_gpu.extender.config import ExtenderConfig
from nodeplug_gpu.extender.plugin import GpuExtender
from nodeplug_gpu.extender.turns import Turns
from nodeplug_gpu.free_memory import FreeCard, FreeMemory, encode

MEM = "aliyun.com/gpu-mem"


class SlowServer(ClusterScheduling):
    """A cluster whose API server keeps Bindings of some pods until it is let go."""

    def __init__(self, kept: str, *free: int) -> None:
        self.free = free or (10,)
        self.kept, self.asked, self.made = kept, list[str](), list[str]()
        self.let_go = threading.Event()

    def node(self, name: str) -> Mapping[str, Any]:
        cards = tuple(
            FreeCard(f"{number}" * 8, f"GPU-{number}", number, 10, one) for number, one in enumerate(self.free)
        )
        said = FreeMemory(MEM, 1, 1 << 30, "binpack", cards)
        return {"metadata": {"name": name, "annotations": {"nodeplug.io/gpu-mem": encode(said)}}}

    def bound(self) -> Sequence[Mapping[str, Any]]:
        return ()

    def pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        return v1_pod(name, containers=[{"name": "c", "resources": {"limits": {MEM: "2"}}}])

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        self.asked.append(name)
        if name == self.kept:
            self.let_go.wait(30)
        self.made.append(name)


def binding(plugin: GpuExtender, name: str, node: str) -> threading.Thread:
    uid = v1_pod(name)["metadata"]["uid"]
    request = ExtenderBind(claim="gpu-mem", namespace="default", pod=name, uid=uid, node=node)
    thread = threading.Thread(target=plugin.extender_bind, args=(request,))
    thread.start()
    return thread


def test_kubelet_meets_pods_in_the_order_in_which_they_were_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_PATIENCE", 30.0)
    server = SlowServer("first")
    plugin = GpuExtender(ExtenderConfig(), host(tmp_path, scheduling=server))
    first = binding(plugin, "first", "a")
    until(lambda: server.asked == ["first"])
    second, elsewhere = binding(plugin, "second", "a"), binding(plugin, "elsewhere", "b")
    elsewhere.join()
    second.join(0.2)  # it has every chance to come too early
    server.let_go.set()
    first.join()
    second.join()
    assert server.made == ["elsewhere", "first", "second"]


def test_a_pod_that_was_bound_keeps_its_card_though_another_one_suits_it_better_by_now(tmp_path: Path) -> None:
    server = SlowServer("", 3, 6)
    plugin = GpuExtender(ExtenderConfig(), host(tmp_path, scheduling=server))
    binding(plugin, "first", "a").join()
    server.free = (7, 6)  # four units of its card have become free
    pods = {
        units: v1_pod("x", containers=[{"name": "c", "resources": {"limits": {MEM: str(units)}}}]) for units in (6, 7)
    }
    fits = {
        units: plugin.extender_filter(ExtenderFilter(claim="gpu-mem", pod=pod, nodes={"a": None})).nodes
        for units, pod in pods.items()
    }
    assert fits == {6: ("a",), 7: ()}


def test_a_turn_that_does_not_come_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PATIENCE", 0.01)
    known = Turns()
    with known.of("a"), known.of("b"), pytest.raises(TryAgain, match="node a: another pod is being bound to it"):
        known.of("a").__enter__()
    with known.of("a"):
        pass
