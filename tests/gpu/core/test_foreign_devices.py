"""A node that came from another device plugin without a drain: what its pods still use is not sold again."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.core.test_memory_units import MEM, entry

from nodeplug import NotReady
from nodeplug_gpu.ids import card_key

Make = Callable[..., Any]
SHARED = "nvidia.com/gpu.shared"
REPLICAS = {"sharing": "replicas", "resource": SHARED, "replicas": 2}


def healthy(node: Any, resource: str) -> set[str]:
    """Return the cards of which something is offered."""
    keys = {card_key(card.uuid): str(card.uuid) for card in node.cards}
    return {keys[name.partition("-")[0]] for name, reason in node.listed(resource).items() if not reason}


def test_units_that_do_not_tell_their_card_keep_all_cards_until_the_last_such_pod_ends(
    make_node: Make, card: Make
) -> None:
    node = make_node([entry()], [card(0), card(1)])
    node.held = {MEM: {"old": ["GPU-0-_-3", "GPU-0-_-4"]}}
    node.update()
    assert healthy(node, MEM) == set()
    with pytest.raises(NotReady, match=r"pod default/old has aliyun.com/gpu-mem from another device plugin.*drain"):
        node.allocate(MEM, f"{card_key(card(1).uuid)}-0")
    node.held = {}
    node.wait(50)
    assert healthy(node, MEM) == set()  # kubelet tells late
    node.wait(20)
    assert healthy(node, MEM) == {"GPU-0", "GPU-1"}


@pytest.mark.parametrize("name", ["GPU-0::1", "GPU-0"])
@pytest.mark.parametrize("config", [REPLICAS, entry(resource=SHARED)])
def test_a_replica_that_tells_its_card_keeps_that_one(
    config: dict[str, Any], name: str, make_node: Make, card: Make
) -> None:
    node = make_node([config], [card(0), card(1)])
    node.held = {SHARED: {"old": [name]}}
    node.update()
    assert healthy(node, SHARED) == {"GPU-1"}
    assert "from another device plugin" in node.listed(SHARED)[f"{card_key(card(0).uuid)}-0"]


def test_a_whole_card_that_others_share_is_not_given_to_one(make_node: Make, card: Make) -> None:
    node = make_node([{"sharing": "exclusive", "resource": "nvidia.com/gpu"}], [card(0), card(1)])
    node.held = {"nvidia.com/gpu": {"old": ["GPU-0::0"]}}
    node.update()
    assert [name for name, reason in node.listed("nvidia.com/gpu").items() if not reason] == ["GPU-1"]


def test_what_was_allocated_here_before_stays_healthy_meanwhile(make_node: Make, card: Make) -> None:
    node = make_node([entry()], [card(0)])
    own = f"{card_key(card(0).uuid)}-2"
    node.held = {MEM: {"old": ["GPU-0-_-3"], "own": [own]}}
    node.update()
    assert [name for name, reason in node.listed(MEM).items() if not reason] == [own]


@pytest.mark.parametrize(("replicas", "name"), [(1, "MIG-0-a0::0"), (2, "MIG-0-a0::2"), (2, "MIG-0-a0")])
def test_an_instance_that_was_shared_in_another_way_keeps_its_card(
    replicas: int, name: str, make_node: Make, divided: Make
) -> None:
    entry = {"sharing": "mig", "resource": SHARED, "replicas": replicas}
    node = make_node([entry], [divided(0, "1g.10gb"), divided(1, "1g.10gb")])
    node.held = {SHARED: {"old": [name]}}
    node.update()
    offered = {one.partition("::")[0] for one, reason in node.listed(SHARED).items() if not reason}
    assert offered == {"MIG-1-a0"}
