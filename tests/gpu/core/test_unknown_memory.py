"""Cards whose driver does not tell their memory, such as GB10: a configured size, or no units and the reason."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from nodeplug_gpu import gpushare, report
from nodeplug_gpu.chart import chart
from nodeplug_gpu.cluster import ClusterView
from nodeplug_gpu.driver.simulated import SimulatedCard, simulate
from nodeplug_gpu.ids import by_card, card_key
from nodeplug_gpu.metrics import metrics as measured
from nodeplug_gpu.overuse import OveruseWatch
from nodeplug_gpu.sizes import UNKNOWN

MEM, COUNT, SHARED = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "nvidia.com/gpu.shared"
MEMORY: dict[str, Any] = {"sharing": "memory"}
REPLICAS: dict[str, Any] = {"sharing": "replicas", "resource": SHARED, "replicas": 4}
SIZE = {"model": "*GB10*", "size": "96GiB"}
SPARK: dict[str, Any] = {"model": "NVIDIA GB10", "compute_capability": (12, 1)}
Make = Callable[..., Any]


def units(node: Any) -> dict[str, int]:
    keys = {card_key(card.uuid): str(card.uuid) for card in node.cards}
    return {keys[key]: len(ids) for key, ids in by_card(node.listed(MEM)).items()}


def told(node: Any) -> Any:
    return report.document(node.config, node.tracker, OveruseWatch({}, node.host))


def test_such_a_card_has_no_units_and_says_what_to_do(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 0, **SPARK)])
    assert node.why_nothing(MEM) == f"there is no device to advertise as {MEM}: GPU-0: {UNKNOWN}"
    (found,) = told(node)["cards"]
    assert (found["memory_bytes"], found["units"], found["allocatable"]) == (None, None, False)
    assert found["reason"] == UNKNOWN


def test_other_cards_of_the_entry_have_theirs(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 0, **SPARK), card(1, 8)])
    assert units(node) == {"GPU-1": 8}
    assert sorted(node.listed(COUNT).values()) == ["", ""]  # gpushare counts every card
    del node.cards[1]
    node.wait()
    assert UNKNOWN in node.why_nothing(MEM)


@pytest.mark.parametrize("size", [SIZE, {"uuid": "GPU-0*", "size": "96GiB"}, SIZE | {"uuid": "GPU-0"}])
def test_a_configured_size_makes_its_units(size: dict[str, Any], make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 0, **SPARK), card(1, 0), card(2, 8)], memory=[size])
    assert units(node) == {"GPU-0": 96, "GPU-2": 8}
    grant = node.allocate(MEM, f"{card_key(card(0).uuid)}-0")
    assert grant.env["ALIYUN_COM_GPU_MEM_DEV"] == "96"


def test_the_first_size_holds_and_none_corrects_the_driver(make_node: Make, card: Make) -> None:
    sizes = [SIZE, {"model": "*", "size": "1GiB"}]
    node = make_node([MEMORY], [card(0, 0, **SPARK), card(1, 8)], memory=sizes)
    assert units(node) == {"GPU-0": 96, "GPU-1": 8}


def test_small_units_grow_at_once_when_a_size_is_configured(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY | {"unit": "1Mi"}], [card(0, 0, **SPARK)])
    node.more["memory"] = [SIZE]
    node.configure([MEMORY | {"unit": "1Mi"}])
    assert 0 < units(node)["GPU-0"] <= 2000


def test_units_that_are_held_stay_known_when_the_size_goes(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 0, **SPARK)], memory=[SIZE])
    held = f"{card_key(card(0).uuid)}-3"
    node.held = {MEM: {"pod": [held]}}
    node.update()
    node.more.clear()
    node.configure([MEMORY])
    assert node.listed(MEM).keys() == {held}
    assert all(node.listed(MEM).values())
    (found,) = told(node)["cards"]
    assert [use["pod"] for use in found["containers"]] == ["pod"]


def test_no_limit_of_mps_is_made_of_a_size_that_is_not_known(make_node: Make, card: Make) -> None:
    node = make_node([REPLICAS | {"mps": {}}], [card(0, 0, **SPARK)])
    env = node.allocate(SHARED, f"{card_key(card(0).uuid)}-0").env
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in env
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    (found,) = told(node)["cards"]
    assert found["limits"] == "none: memory unknown"
    node.configure([REPLICAS | {"mps": {"require_limits": True}}])
    assert all("memory unknown" in why for why in node.listed(SHARED).values())


def test_what_is_printed_measured_and_told_has_no_card_of_no_units(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY], [card(0, 0, **SPARK), card(1, 8)])
    watch = OveruseWatch({MEM: node.config.resources[0]}, node.host)
    watch.reconcile(node.tracker.inventory)
    document = told(node)
    assert "GPU 0  NVIDIA GB10  memory unknown  healthy, not allocatable" in _text(document)
    assert "no units of aliyun.com/gpu-mem" in _text(document)
    assert "GPU0" not in gpushare.summary("n", "a", document["cards"])
    metrics = {one.name: one.samples for one in measured(node.config, node.tracker, watch)}
    for name in ("gpu_memory_bytes", "gpu_units"):
        assert [sample.labels["card"] for sample in metrics[name]] == ["GPU-1"]
    view = ClusterView(node.config, node.tracker, watch, "n")
    assert view.update()
    assert view.latest is not None
    free = json.loads(view.latest.annotations["nodeplug.io/gpu-mem"])
    assert [one["uuid"] for one in free["cards"]] == ["GPU-1"]
    assert view.latest.labels.get("nvidia.com/gpu.memory") != "0"


def test_a_simulated_card_may_not_tell_its_memory(make_node: Make) -> None:
    (one,) = simulate([SimulatedCard.model_validate({"memory": "0"})])
    assert one.memory == 0
    assert UNKNOWN in make_node([MEMORY], [one]).why_nothing(MEM)


def _text(document: Any) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(chart(document))
    return str(console.file.getvalue())  # type: ignore[attr-defined] # it is a StringIO
