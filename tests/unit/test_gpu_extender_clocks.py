"""Nothing that the GPU extender decides depends on what a clock on a wall shows: its own, a node's, or the server's."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from nodeplug import ExtenderBind, ExtenderFilter, ExtenderPrioritize, TryAgain
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.testing import host
from nodeplug.testing.scheduler import pod as v1_pod
from nodeplug_gpu.extender.config import ExtenderConfig
from nodeplug_gpu.extender.plugin import GpuExtender
from nodeplug_gpu.free_memory import FreeCard, FreeMemory, encode

MEM = "aliyun.com/gpu-mem"
TIMES = ("1970-01-01T00:00:00Z", "2999-12-31T23:59:59Z", "", "yesterday")


class OddServer(ClusterScheduling):
    """A cluster in which a pod was bound at some time, by a node whose numbers begin somewhere."""

    def __init__(self, bound_at: str, seq: int) -> None:
        self.bound_at, self.seq, self.made = bound_at, seq, list[str]()

    def node(self, name: str) -> Mapping[str, Any]:
        said = FreeMemory(MEM, self.seq, 1 << 30, "binpack", (FreeCard("aaaaaaaa", "GPU-a", 0, 10, 10),))
        return {"metadata": {"name": name, "annotations": {"nodeplug.io/gpu-mem": encode(said)}}}

    def bound(self) -> Sequence[Mapping[str, Any]]:
        found = wanting("strange", 4)
        condition = {"type": "PodScheduled", "lastTransitionTime": self.bound_at}
        metadata = {**found["metadata"], "creationTimestamp": self.bound_at}
        return [
            {"metadata": metadata, "spec": {**found["spec"], "nodeName": "a"}, "status": {"conditions": [condition]}}
        ]

    def pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        return wanting(name, 4)

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        self.made.append(name)


def wanting(name: str, units: int) -> dict[str, Any]:
    return v1_pod(name, containers=[{"name": "c", "resources": {"limits": {MEM: str(units)}}}])


def broken() -> NoReturn:
    raise AssertionError("somebody looks at the clock on the wall")


@pytest.mark.parametrize("bound_at", TIMES)
@pytest.mark.parametrize("seq", [0, 1, 10**15])
def test_pods_are_placed_the_same_whatever_clocks_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound_at: str, seq: int
) -> None:
    server = OddServer(bound_at, seq)
    plugin = GpuExtender(ExtenderConfig(), host(tmp_path, scheduling=server))
    monkeypatch.setattr(time, "time", broken)
    monkeypatch.setattr(time, "time_ns", broken)
    nodes, one, two = {"a": None}, wanting("one", 4), wanting("two", 4)
    assert plugin.extender_filter(ExtenderFilter(claim="gpu-mem", pod=one, nodes=nodes)).nodes == ("a",)
    assert plugin.extender_prioritize(ExtenderPrioritize(claim="gpu-mem", pod=one, nodes=nodes)) == {"a": 8}
    uid = one["metadata"]["uid"]
    plugin.extender_bind(ExtenderBind(claim="gpu-mem", namespace="default", pod="one", uid=uid, node="a"))
    assert plugin.extender_filter(ExtenderFilter(claim="gpu-mem", pod=two, nodes=nodes)).nodes == ()
    uid = two["metadata"]["uid"]
    with pytest.raises(TryAgain, match="another pod has come first"):
        plugin.extender_bind(ExtenderBind(claim="gpu-mem", namespace="default", pod="two", uid=uid, node="a"))
    plugin._look()
    assert server.made == ["one"]
