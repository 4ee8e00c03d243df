"""The extender that knows the cards, in a daemon, asked as kube-scheduler asks it."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.node.extender.conftest import asking

from nodeplug.testing import ScratchNode, Unschedulable
from nodeplug.testing.scheduler import ExtenderFailure, node, pod
from nodeplug_gpu.free_memory import FreeCard, FreeMemory, encode

MEM = "aliyun.com/gpu-mem"
PLUGIN = "[plugins.gpu-extender]\n"
OPTIONS: Mapping[str, Any] = {
    "node_cache_capable": False,
    "managed_resources": {MEM},
    "verbs": ("filter", "prioritize", "preempt"),
}
Make = Callable[..., ScratchNode]
pytestmark = pytest.mark.unprivileged


def gpu_node(name: str, *free: int, units: int = 24) -> dict[str, Any]:
    """Return a v1 Node whose annotation says so much of each card."""
    cards = tuple(FreeCard(f"{number:08x}", f"GPU-{number}", number, units, one) for number, one in enumerate(free))
    made = node(name, **{MEM: str(units * len(free))})
    made["metadata"]["annotations"] = {"nodeplug.io/gpu-mem": encode(FreeMemory(MEM, 1, 1 << 30, "binpack", cards))}
    return made


def wanting(name: str, *units: int) -> dict[str, Any]:
    containers = [{"name": f"c{number}", "resources": {"limits": {MEM: str(one)}}} for number, one in enumerate(units)]
    return pod(name, containers=containers)


def test_a_pod_goes_where_one_card_has_room_and_others_say_why_not(make_node: Make) -> None:
    nodes = {
        "full": gpu_node("full", 9, 9),
        "small": gpu_node("small", 8, 8, units=8),
        "plain": node("plain"),
        "odd": {"metadata": {"name": "odd", "annotations": {"nodeplug.io/gpu-mem": '{"v":9}'}}},
        "roomy": gpu_node("roomy", 2, 10),
    }
    with asking(make_node(PLUGIN), "gpu-mem", **OPTIONS) as scheduler:
        assert scheduler.schedule(wanting("ten", 10), nodes) == "roomy"
        verdict = scheduler.filter(wanting("ten", 10), nodes)
        assert verdict.nodes == ("roomy",)
        assert verdict.failed == {"full": f"no single card has enough free {MEM}"}
        assert verdict.unresolvable == {
            "small": f"no card is large enough for the {MEM} of a container",
            "plain": f"it publishes no free {MEM} by card",
            "odd": f"what it publishes of free {MEM} cannot be read",
        }
        with pytest.raises(Unschedulable, match=f"0/2 nodes are available: 2 no single card has enough free {MEM}"):
            scheduler.schedule(wanting("ten", 10), {name: gpu_node(name, 9, 9) for name in ("a", "b")})
        assert scheduler.schedule(wanting("two", 9, 9), {"full": nodes["full"]}) == "full"


def test_a_pod_without_gpu_memory_may_run_anywhere(make_node: Make) -> None:
    with asking(make_node(PLUGIN), "gpu-mem", **{**OPTIONS, "managed_resources": ()}) as scheduler:
        assert scheduler.filter(pod("web"), {"plain": node("plain")}).nodes == ("plain",)


@pytest.mark.parametrize(("score", "chosen"), [("binpack", "busy"), ("spread", "idle")])
def test_nodes_are_liked_by_the_card_that_the_pod_gets(make_node: Make, score: str, chosen: str) -> None:
    nodes = {"idle": gpu_node("idle", 24, 24), "busy": gpu_node("busy", 6, 24)}
    running = make_node(f'{PLUGIN}[plugins.gpu-extender.config]\nscore = "{score}"\n')
    with asking(running, "gpu-mem", **OPTIONS) as scheduler:
        assert scheduler.schedule(wanting("six", 6), nodes) == chosen


def test_a_scheduler_that_sends_names_alone_is_told_what_to_change(make_node: Make) -> None:
    options, told = {**OPTIONS, "node_cache_capable": True}, "add `follow = true` to the section .extender."
    with (
        asking(make_node(PLUGIN), "gpu-mem", **options) as scheduler,
        pytest.raises(ExtenderFailure, match=told),
    ):
        scheduler.filter(wanting("one", 1), ["a"])


def test_without_following_the_cluster_no_pod_is_bound(make_node: Make) -> None:
    with asking(make_node(PLUGIN), "gpu-mem", **OPTIONS) as scheduler:
        assert scheduler.preempt(wanting("one", 1), {"a": [wanting("victim", 1)]}) == {}
        with pytest.raises(ExtenderFailure, match="this daemon follows no cluster: add `follow = true`"):
            scheduler.bind(wanting("one", 1), "a")
