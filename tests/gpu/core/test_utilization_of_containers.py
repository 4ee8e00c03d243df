"""How busy containers keep their cards, in the document, the chart and the metrics."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console

from nodeplug_gpu import report
from nodeplug_gpu.cards import GpuProcess, Telemetry, Utilization, Uuid
from nodeplug_gpu.chart import chart
from nodeplug_gpu.containers import Containers
from nodeplug_gpu.holders import Container
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.metrics import metrics as measured
from nodeplug_gpu.overuse import OveruseWatch

MEM, GIB, CARD = "aliyun.com/gpu-mem", 1 << 30, Uuid("GPU-0")
WEB = Container("default", "web", "main")


class OnePod(Containers):
    """Every process is one of a container."""

    def of(self, pid: int) -> Container | None:
        return WEB if pid < 100 else None


def watched(make_node: Callable[..., Any], card: Callable[..., Any], *shares: Utilization | None) -> Any:
    """A node whose only container has a process for each utilisation, beside a stranger's."""
    node = make_node([{"sharing": "memory"}], [card(0)])
    node.held = {MEM: {"web": [f"{card_key(CARD)}-0"]}}
    node.update()
    overuse = OveruseWatch({}, node.host, OnePod)
    stranger = GpuProcess(100, CARD, GIB, None, Utilization(90, 90, 0, 0))
    processes = (*(GpuProcess(n, CARD, GIB, None, one) for n, one in enumerate(shares)), stranger)
    inventory = node.tracker.inventory
    snapshot = replace(
        inventory.snapshot, processes=processes, telemetry={CARD: Telemetry(utilization=Utilization(95, 60))}
    )
    node.tracker.inventory = replace(inventory, snapshot=snapshot)
    overuse.reconcile(node.tracker.inventory)
    return node.config, node.tracker, overuse


def test_the_processes_of_a_container_count_together(make_node: Callable[..., Any], card: Callable[..., Any]) -> None:
    parts = watched(make_node, card, Utilization(25, 50, 0, 0), Utilization(5, 0, 0, 1))
    (found,) = report.document(*parts)["cards"]
    assert found["containers"][0]["utilization_percent"] == {"sm": 30, "memory": 50, "encoder": 0, "decoder": 1}
    assert found["utilization_percent"] == {"sm": 95, "memory": 60}


def test_metrics_are_ratios_by_engine(make_node: Callable[..., Any], card: Callable[..., Any]) -> None:
    parts = watched(make_node, card, Utilization(25, 50, 0, 0))
    metrics = {one.name: one.samples for one in measured(*parts)}
    used = metrics["gpu_container_utilization_ratio"]
    assert {one.labels["engine"]: one.value for one in used} == {"sm": 0.25, "memory": 0.5, "encoder": 0, "decoder": 0}
    labels = {"card": CARD, "namespace": "default", "pod": "web", "container": "main"}
    assert all(labels.items() <= one.labels.items() for one in used)
    assert {one.labels["engine"]: one.value for one in metrics["gpu_utilization_ratio"]} == {"sm": 0.95, "memory": 0.6}


def test_what_the_driver_does_not_tell_has_no_sample(make_node: Callable[..., Any], card: Callable[..., Any]) -> None:
    parts = watched(make_node, card, None)
    assert "gpu_container_utilization_ratio" not in {one.name for one in measured(*parts)}
    (found,) = report.document(*parts)["cards"]
    assert found["containers"][0]["utilization_percent"] is None


def test_the_chart_says_how_busy_a_container_is(make_node: Callable[..., Any], card: Callable[..., Any]) -> None:
    console = Console(width=120, record=True)
    console.print(chart(report.document(*watched(make_node, card, Utilization(25, 50, 0, 0)))))
    assert "default/web/main  1 (1Gi), 1Gi in use, busy 25 %" in console.export_text()
