"""What is said about limits: whether anything enforces them, and why nothing does."""

from collections.abc import Callable
from typing import Any

import pytest

from nodeplug import NotReady
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


def test_a_card_without_limits_is_not_allocatable_where_they_are_required(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY | {"mps": {"require_limits": True}}], [card(0, **VOLTA), card(1, **PASCAL)])
    reasons = {name.partition("-")[0]: why for name, why in node.listed(MEM).items()}
    assert reasons[card_key(card(0).uuid)] == ""
    why = reasons[card_key(card(1).uuid)]
    assert why.startswith(
        f"{MEM} requires limits (mps.require_limits), and MPS can set none on it: compute capability 6"
    )
    with pytest.raises(NotReady, match=r"GPU-1 cannot be allocated.*compute capability 6.1.*require_limits = false"):
        node.allocate(MEM, f"{card_key(card(1).uuid)}-0")


def test_a_card_that_the_kernel_limits_needs_none_of_mps(make_node: Make, card: Make) -> None:
    node = make_node([MEMORY | {"mps": {"require_limits": True}}], [card(0, **PASCAL)])
    assert all("mps.require_limits" in why for why in node.listed(MEM).values())
    node.tracker.limited = lambda entry, uuid: (entry.resource, uuid) == (MEM, "GPU-0")
    node.update()
    assert not any(node.listed(MEM).values())


def test_replicas_may_require_limits_too(make_node: Make, card: Make) -> None:
    node = make_node([REPLICAS | {"mps": {"require_limits": True}}], [card(0)])
    assert all("compute capability unknown" in why for why in node.listed(SHARED).values())


def test_a_card_without_limits_is_logged_once_where_they_are_not_required(
    make_node: Make, card: Make, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node([MEMORY | {"mps": {}}], [card(0, **VOLTA), card(1)])
    node.wait()
    assert not any(node.listed(MEM).values())
    (said,) = [one.getMessage() for one in caplog.records if "can set no limits" in one.getMessage()]
    assert said.startswith("GPU-1: MPS can set no limits on it: compute capability unknown; each container of")
