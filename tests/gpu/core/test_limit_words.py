"""What is said about limits: whether anything enforces them, and why nothing does."""

from collections.abc import Callable
from typing import Any

import pytest

from nodeplug_gpu import report
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.overuse import OveruseWatch

MEM, SHARED = "aliyun.com/gpu-mem", "nvidia.com/gpu.shared"
MEMORY: dict[str, Any] = {"sharing": "memory"}
REPLICAS: dict[str, Any] = {"sharing": "replicas", "resource": SHARED, "replicas": 4}
VOLTA, PASCAL = {"compute_capability": (7, 0)}, {"compute_capability": (6, 1)}
Make = Callable[..., Any]


def told(node: Any) -> list[dict[str, Any]]:
    document = report.document(node.config, node.tracker, OveruseWatch({}, node.host))
    return list(document["cards"])


@pytest.mark.parametrize(
    ("entry", "more", "words"),
    [
        (MEMORY, VOLTA, "none"),
        (REPLICAS, VOLTA, "none"),
        (MEMORY | {"mps": {}}, VOLTA, "mps (a pod can raise them)"),
        (MEMORY | {"mps": {}}, PASCAL, "none: compute capability 6.1, below 7.0"),
        (REPLICAS | {"mps": {}}, {}, "none: compute capability unknown"),
        ({"sharing": "exclusive", "resource": "nvidia.com/gpu"}, {}, "the card"),
    ],
)
def test_the_document_says_of_each_card_what_its_limits_are_worth(
    entry: dict[str, Any], more: dict[str, Any], words: str, make_node: Make, card: Make
) -> None:
    (found,) = told(make_node([entry], [card(0, **more)]))
    assert found["limits"] == words


def test_the_document_says_it_of_each_container_whose_limits_are_those_of_its_card(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY | {"mps": {}}], [card(0, **VOLTA)])
    node.held = {MEM: {"pod": [f"{card_key(card(0).uuid)}-3"]}}
    node.update()
    (found,) = told(node)
    assert [use["limits"] for use in found["containers"]] == ["mps (a pod can raise them)"]
