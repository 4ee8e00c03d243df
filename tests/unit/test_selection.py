"""Which sections of one configuration are for a node."""

from pathlib import Path
from typing import Any

import pytest

from nodeplug.config import Configuration
from nodeplug.config.selection import NAME, Node, for_node, known, parse_labels, record
from nodeplug.contract.errors import InvalidRequest


def lacks(node: Node, **section: Any) -> str:
    configuration = Configuration.model_validate({"version": 1, "plugins": {"gpu": section}})
    chosen, reasons = for_node(configuration, node)
    assert chosen.plugins["gpu"].enabled == ("gpu" not in reasons)
    return reasons.get("gpu", "")


T4 = Node("gpu-7", {"card": "t4", "zone": "a"})


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"node_selector": {"card": "t4"}},
        {"node_selector": {"card": "t4", "zone": "a"}},
        {"node_names": ["gpu-*"]},
        {"node_names": ["edge-1", "gpu-?"]},
        {"node_names": ["gpu-7"], "node_selector": {"zone": "a"}},
    ],
)
def test_a_section_is_for_nodes_that_have_all_it_asks_for(section: dict[str, Any]) -> None:
    assert lacks(T4, **section) == ""


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"node_selector": {"card": "a100"}}, "node_selector asks for card=a100, and this node has card=t4"),
        ({"node_selector": {"rack": "1"}}, "node_selector asks for rack=1, and this node has no label rack"),
        ({"node_names": ["edge-*"]}, "node_names has no pattern for gpu-7"),
        ({"node_names": ["GPU-*"]}, "node_names has no pattern for gpu-7"),
    ],
)
def test_of_another_section_it_is_said_what_the_node_lacks(section: dict[str, Any], reason: str) -> None:
    assert lacks(T4, **section) == reason


def test_a_check_without_a_name_says_how_to_give_one() -> None:
    assert lacks(Node("", {}), node_names=["gpu-*"]).endswith("none was given: say --node-name")


def test_unknown_labels_are_said_to_be_so() -> None:
    assert "not known yet" in lacks(Node("gpu-7"), node_selector={"card": "t4"})


def test_a_section_that_is_not_enabled_stays_so() -> None:
    assert (
        not for_node(Configuration.model_validate({"version": 1, "plugins": {"gpu": {"enabled": False}}}), T4)[0]
        .plugins["gpu"]
        .enabled
    )


def test_labels_are_known_after_they_were_recorded(tmp_path: Path) -> None:
    record(tmp_path, T4)
    assert known(tmp_path, "gpu-7") == T4
    assert known(tmp_path, "gpu-8") == Node("gpu-8")


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"node": "gpu-7", "labels": null}', b"\xff"])
def test_a_damaged_record_is_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / NAME).write_bytes(damage)
    assert known(tmp_path, "gpu-7") == Node("gpu-7")


def test_labels_are_read_as_kubectl_takes_them() -> None:
    assert parse_labels("a=1, example.com/b=,") == {"a": "1", "example.com/b": ""}


@pytest.mark.parametrize("text", ["a", "=1", "a=1,b"])
def test_what_is_no_label_is_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no label; write NAME=VALUE"):
        parse_labels(text)
