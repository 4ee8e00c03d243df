"""What the plugin says to the cluster: whoever reads the annotation knows which card kubelet will take.

Kubelet's rules are those of the stand-in; NODEPLUG_GPU_SEED=<seed> runs one life alone.
"""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nodeplug import DeviceId, DevicePrefer, NodeConfigMap, ResourceName
from nodeplug.testing import AdmissionError
from nodeplug_gpu import gpushare_objects
from nodeplug_gpu.cluster import ClusterView
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.free_memory import FreeMemory, annotation_of, decode
from nodeplug_gpu.gpushare_objects import Held
from nodeplug_gpu.holders import Container
from nodeplug_gpu.ids import by_card
from nodeplug_gpu.overuse import OveruseWatch, Usage
from nodeplug_gpu.placement import single_card

MEM = ResourceName("aliyun.com/gpu-mem")
SEED = os.environ.get("NODEPLUG_GPU_SEED")
SEEDS = (0, 1, *(pytest.param(seed, marks=pytest.mark.whole) for seed in range(2, 6)))
GIB = 1 << 30


def view_of(node: Any, *, gpushare: bool = False) -> ClusterView:
    config = GpuConfig.model_validate({**node.config.model_dump(exclude_unset=True), "gpushare": gpushare})
    return ClusterView(config, node.tracker, OveruseWatch({}, node.tracker.host), "node-1")


def published(view: ClusterView) -> FreeMemory:
    view.update()
    assert view.latest is not None
    return decode(view.latest.annotations[annotation_of(MEM)])


class Reader:
    """Whoever places pods elsewhere: it has the annotation, and the pods that are bound to the node."""

    def __init__(self, free: FreeMemory) -> None:
        self.policy = free.policy
        self.free = {one.key: one.free if one.healthy else 0 for one in free.cards}

    def place(self, size: int) -> str | None:
        """Return the card that a container gets, and count it; None if no card fits."""
        ids = [DeviceId(f"{card}-{number}") for card, left in self.free.items() for number in range(left)]
        request = DevicePrefer(resource=MEM, available=tuple(ids), must_include=(), size=size)
        chosen = by_card(single_card(request, "binpack" if self.policy == "binpack" else "spread"))
        if len(chosen) != 1 or len(next(iter(chosen.values()))) < size:
            return None
        (card,) = chosen
        self.free[card] -= size
        return card


@pytest.mark.parametrize("policy", ["binpack", "spread"])
@pytest.mark.parametrize("seed", [int(SEED)] if SEED else SEEDS)
def test_a_reader_knows_the_card_of_every_pod_before_kubelet_does(
    gpu_node: Any, tmp_path: Path, seed: int, policy: str
) -> None:
    random = Random(seed)

    async def live() -> tuple[int, int]:
        node, pods, placed, refused = gpu_node(tmp_path / "n", policy, seed), [], 0, 0
        view = view_of(node)
        for step in range(60):
            node.pass_time(10.0)
            reader, told = Reader(published(view)), {one.name for one in published(view).pods}
            assert told == set(node.held())
            for number in range(random.randrange(4)):  # bound, and not in the annotation yet
                name, size = f"p{step}-{number}", random.choice([1, 2, 3, 5, 8, 13])
                expected = reader.place(size)
                try:
                    await node.admit(name, "main", size)
                except AdmissionError:
                    assert expected is None
                    refused += 1
                    continue
                assert set(by_card(map(DeviceId, node.ids(name, "main")))) == {expected}
                pods.append(name)
                placed += 1
            for name in [one for one in pods if random.random() < 0.15]:
                pods.remove(name)
                node.remove(name)
        return placed, refused

    placed, refused = asyncio.run(live())
    assert placed > 40
    assert refused > 0


def test_it_is_told_which_pod_holds_what_of_each_card(gpu_node: Any, tmp_path: Path) -> None:
    node = gpu_node(tmp_path / "n", "spread", 1)

    async def fill() -> None:
        await node.admit("two", "a", 20)
        await node.admit("two", "b", 15)
        await node.admit("one", "main", 7)
        await node.admit("late", "early", 6, init=True)
        await node.admit("late", "main", 2)

    asyncio.run(fill())
    node.pass_time(10)
    free = published(view_of(node))
    told = {one.name: dict(held) for one, held in zip(free.pods, free.held, strict=True)}
    listed = {pod: by_card(map(DeviceId, node.ids(pod, "main"))) for pod in ("one", "late")}
    assert told["one"] == {card: len(ids) for card, ids in listed["one"].items()}
    assert told["late"] == {card: len(ids) for card, ids in listed["late"].items()}
    assert sorted(told["two"].values()) == [15, 20]
    assert sum(sum(held.values()) for held in free.held) == sum(one.units - one.free for one in free.cards)


def test_a_grant_that_kubelet_has_not_reported_is_not_in_the_figures(gpu_node: Any, tmp_path: Path) -> None:
    node = gpu_node(tmp_path / "n", "binpack", 1)
    view = view_of(node)
    before = published(view)
    asyncio.run(node.admit("early", "main", 5))
    node.update()
    assert published(view) == before
    node.pass_time(10)
    after = published(view)
    assert [str(one) for one in after.pods] == ["default/early"]
    assert sum(one.free for one in before.cards) - sum(one.free for one in after.cards) == 5
    assert after.seq > before.seq


def test_nothing_new_is_said_while_nothing_changes(gpu_node: Any, tmp_path: Path) -> None:
    node = gpu_node(tmp_path / "n", "binpack", 1)
    asyncio.run(node.admit("one", "main", 5))
    node.pass_time(10)
    view = view_of(node, gpushare=True)
    assert view.update()
    node.pass_time(30)
    assert not view.update()


def test_a_later_daemon_has_a_larger_number(gpu_node: Any, tmp_path: Path) -> None:
    node = gpu_node(tmp_path / "n", "binpack", 1)
    first = published(view_of(node)).seq
    assert published(view_of(node)).seq >= first


def test_while_kubelet_says_nothing_the_last_report_stays(gpu_node: Any, tmp_path: Path) -> None:
    node = gpu_node(tmp_path / "n", "binpack", 1)
    view = view_of(node)
    before = published(view)
    node.tracker.allocations.reported = type(node.tracker.allocations.reported)(unknown="kubelet is away")
    object.__setattr__(node.tracker.inventory, "allocations_unknown", "kubelet is away")
    assert not view.update()
    assert view.latest is not None
    assert decode(view.latest.annotations[annotation_of(MEM)]) == before


def test_a_card_that_is_not_healthy_is_shown_so_and_its_units_stay(gpu_node: Any, tmp_path: Path) -> None:
    node = gpu_node(tmp_path / "n", "binpack", 1)
    view = view_of(node, gpushare=True)
    lost = min(node.all)
    node.xid(lost, 79)
    cards = {one.uuid: one for one in published(view).cards}
    assert [uuid for uuid, one in cards.items() if not one.healthy] == [lost]
    assert view.latest is not None
    assert view.latest.config_maps == (
        NodeConfigMap(namespace="kube-system", name="unhealthy-gpu-node-1", data={"gpus": str(cards[lost].minor)}),
    )


# --- what gpushare's tools read


def annotations(view: ClusterView) -> Mapping[str, Mapping[str, str]]:
    view.update()
    assert view.latest is not None
    return {one.name: one.annotations for one in view.latest.pods}


def test_a_pod_has_gpushares_annotations_of_the_card_that_it_really_has(gpu_node: Any, tmp_path: Path) -> None:
    node = gpu_node(tmp_path / "n", "binpack", 1)
    asyncio.run(node.admit("web", "main", 5))
    node.pass_time(10)
    (card,) = by_card(map(DeviceId, node.ids("web", "main")))
    minor, units = node.cards[card].minor, node.cards[card].memory // GIB
    view = view_of(node, gpushare=True)
    assert annotations(view)["web"] == {
        "ALIYUN_COM_GPU_MEM_IDX": str(minor),
        "ALIYUN_COM_GPU_MEM_DEV": str(units),
        "ALIYUN_COM_GPU_MEM_POD": "5",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    }
    assert view.latest is not None
    (time,) = view.latest.pods[0].defaults.values()
    assert len(time) == 19
    assert view.latest.config_maps == (NodeConfigMap(namespace="kube-system", name="unhealthy-gpu-node-1"),)
    assert annotations(view_of(node)) == {}


def inspected(pods: Mapping[str, Mapping[str, str]], limits: Mapping[str, int]) -> dict[int, int]:
    """Sum up units by card as `kubectl inspect gpushare` does (cmd/inspect, nodeinfo.go).

    Its newer annotation comes first; without it a pod has what the limits of its containers, less those that only
    initialize it, come to.
    """
    used: dict[int, int] = {}
    for name, pod in pods.items():
        newer = pod.get("scheduler.framework.gpushare.allocation")
        parts = (
            [item for one in json.loads(newer).values() for item in one.items()]
            if newer
            else [(pod["ALIYUN_COM_GPU_MEM_IDX"], limits[name])]
        )
        for index, units in parts:
            used[int(index)] = used.get(int(index), 0) + units
    return used


def test_inspect_sums_up_what_is_really_held_also_by_pods_on_two_cards(gpu_node: Any, tmp_path: Path) -> None:
    node = gpu_node(tmp_path / "n", "spread", 1)

    async def fill() -> None:
        await node.admit("two", "a", 20)
        await node.admit("two", "b", 15)
        await node.admit("one", "main", 7)

    asyncio.run(fill())
    node.pass_time(10)
    view = view_of(node, gpushare=True)
    assert inspected(annotations(view), {"two": 35, "one": 7}) == held_by_minor(view)
    assert len(json.loads(annotations(view)["two"]["scheduler.framework.gpushare.allocation"])) == 2
    assert "scheduler.framework.gpushare.allocation" not in annotations(view)["one"]


def held_by_minor(view: ClusterView) -> dict[int, int]:
    return {one.minor: one.units - one.free for one in published(view).cards if one.units != one.free}


@pytest.mark.parametrize("sizes", [(10, 4), (4, 10), (4, 2, 2), (20, 20, 15)])
def test_inspect_sums_up_what_an_init_container_has_left_to_others_once(
    gpu_node: Any, tmp_path: Path, sizes: Sequence[int]
) -> None:
    node = gpu_node(tmp_path / "n", "spread", 1)

    async def fill() -> None:
        await node.admit("pod", "prepare", sizes[0], init=True)
        for number, size in enumerate(sizes[1:]):
            await node.admit("pod", f"main{number}", size)

    asyncio.run(fill())
    node.ask_kubelet()
    view = view_of(node, gpushare=True)
    assert inspected(annotations(view), {"pod": sum(sizes[1:])}) == held_by_minor(view)


def test_inspect_knows_of_units_that_an_init_container_keeps() -> None:
    """As the daemon tells it, from kubelet's list and its checkpoint: each of the two has units of its own."""
    held = [
        Held(Container("default", "pod", name), 1, 8, frozenset(ids)) for name, ids in (("main", "a"), ("pre", "b"))
    ]
    (written, _) = gpushare_objects.annotations(held, {("default", "pod"): 0})["default", "pod"]
    assert inspected({"pod": written}, {"pod": 1}) == {1: 2}


def test_a_container_that_uses_too_much_is_a_warning_of_its_pod(gpu_node: Any, tmp_path: Path) -> None:
    node = gpu_node(tmp_path / "n", "binpack", 1)
    view = view_of(node)
    card = min(node.all)
    view.overuse.usage = {
        (Container("ml", "greedy", "main"), card): Usage(6 * GIB, 4 * GIB, (1,), over_since=0.0, warned=1.0),
        (Container("ml", "early", "main"), card): Usage(6 * GIB, 4 * GIB, (2,), over_since=0.0),
        (Container("ml", "stray", "main"), card): Usage(
            1 * GIB, None, (3,), unallocated=True, over_since=0.0, warned=1.0
        ),
    }
    view.update()
    assert view.latest is not None
    told = {one.name: [warning.reason for warning in one.warnings] for one in view.latest.pods}
    assert told == {"greedy": ["GpuMemoryOverused"], "stray": ["GpuUsedWithoutAllocation"]}
    (greedy,) = [one for one in view.latest.pods if one.name == "greedy"]
    assert greedy.warnings[0].note.startswith(f"container main uses 6Gi of {card} and was allocated 4Gi: ")
