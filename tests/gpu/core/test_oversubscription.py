"""More memory than there is: advertised where it is asked for, and labelled as such."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console
from tests.gpu.core.test_memory_units import MEM, entry, units

from nodeplug_gpu import labels, report
from nodeplug_gpu.cards import Snapshot
from nodeplug_gpu.chart import chart
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.driver.simulated import SimulatedCard
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.overuse import OveruseWatch

Make = Callable[..., Any]
MPS: dict[str, Any] = {"mps": {}}


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 16),
        ({"oversubscribe": 1.5}, 24),
        ({"oversubscribe": 2, "reserve": "1Gi"}, 30),
        ({"oversubscribe": 1.1}, 17),
    ],
)
def test_a_card_has_units_of_its_memory_as_many_times_as_is_asked_for(
    more: dict[str, Any], count: int, make_node: Make, card: Make
) -> None:
    assert list(make_node([entry(**more)], [card(0)]).listed()) == units(card(0), count)


def test_an_image_computes_its_part_of_the_memory_that_there_is(make_node: Make, card: Make) -> None:
    node = make_node([entry(oversubscribe=2)], [card(0)])
    key = card_key(card(0).uuid)
    env = node.allocate(MEM, *(f"{key}-{number}" for number in range(8))).env
    assert (env["ALIYUN_COM_GPU_MEM_CONTAINER"], env["ALIYUN_COM_GPU_MEM_DEV"]) == ("8", "16")
    assert env["NODEPLUG_GPU_MEMORY_BYTES"] == str(8 << 30)


def test_units_grow_where_more_memory_makes_too_many(make_node: Make, card: Make) -> None:
    node = make_node([entry(unit="1Gi", max_units_per_card=16, oversubscribe=2)], [card(0)])
    assert len(node.listed()) == 16
    assert node.tracker.sharings[MEM].unit == 2 << 30


def test_what_is_held_of_more_memory_than_is_advertised_now_is_not_allocated_again(make_node: Make, card: Make) -> None:
    node = make_node([entry(oversubscribe=2)], [card(0)])
    key = card_key(card(0).uuid)
    held = [f"{key}-{number}" for number in range(16, 32)]
    node.held = {MEM: {"pod": held}}
    node.update()
    node.configure([entry()])
    free = {reason for name, reason in node.listed().items() if name not in held}
    assert free == {"16 of its allocated units exceed the 16 configured now"}
    node.held = {}
    node.wait()
    assert set(node.listed().values()) == {""}


def test_it_is_told_wherever_somebody_looks(make_node: Make, card: Make, tmp_path: Path) -> None:
    node = make_node([entry(oversubscribe=1.5)], [card(0)])
    told = report.document(node.config, node.tracker, OveruseWatch({}, node.host))
    console = Console(file=io.StringIO(), width=120)
    console.print(chart(told))
    assert "0/24 of aliyun.com/gpu-mem, its memory 1.5 times" in console.file.getvalue()  # type: ignore[attr-defined]
    shown = labels.labels(Snapshot("running", cards=(card(0),)), node.config, tmp_path)
    assert shown["nodeplug.io/gpu-mem.oversubscribe"] == "1.5"


def test_nothing_of_it_is_said_where_nobody_has_asked(make_node: Make, card: Make, tmp_path: Path) -> None:
    node = make_node([entry()], [card(0)])
    assert not [
        key for key in labels.labels(Snapshot("running", cards=(card(0),)), node.config, tmp_path) if "over" in key
    ]


@pytest.mark.parametrize("times", [0.5, 0, -1, 17, float("nan"), float("inf")])
def test_less_memory_than_there_is_and_nonsense_are_refused(times: float) -> None:
    resources = [{"sharing": "memory", "oversubscribe": times}]
    with pytest.raises(ValidationError, match="oversubscribe"):
        GpuConfig.model_validate({"resources": resources, "driver": "simulated", "simulated": [SimulatedCard()]})
