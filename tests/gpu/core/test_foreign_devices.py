"""A node that came from another device plugin without a drain: what its pods still use is not sold again."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.gpu.core.test_memory_units import MEM, entry

from nodeplug import NotReady
from nodeplug_gpu.ids import card_key

Make = Callable[..., Any]
SHARED = "nvidia.com/gpu.shared"
MIG = {"sharing": "mig", "resource": SHARED, "replicas": 2}
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


@pytest.mark.parametrize("name", ["GPU-1", "GPU-1::0"])
def test_a_card_that_another_entry_has_now_waits_all_the_same(name: str, make_node: Make, card: Make) -> None:
    whole = {"sharing": "exclusive", "resource": "nvidia.com/gpu", "cards": {"index": [0]}}
    node = make_node([whole, entry(cards={"index": [1]})], [card(0), card(1)])
    node.held = {"nvidia.com/gpu": {"old": [name]}}
    node.update()
    assert healthy(node, MEM) == set()
    assert node.listed("nvidia.com/gpu")["GPU-0"] == ""


def test_a_card_whose_instances_are_devices_waits_for_the_pod_that_has_it_whole(make_node: Make, divided: Make) -> None:
    node = make_node([{"sharing": "mig"}], [divided(0, "1g.10gb"), divided(1, "1g.10gb")])
    node.held = {"nvidia.com/gpu": {"old": ["GPU-0"]}}
    node.update()
    assert [name for name, reason in node.listed("nvidia.com/gpu").items() if not reason] == ["MIG-1-a0"]


def test_a_card_that_is_a_device_waits_for_the_pod_that_has_an_instance_of_it(make_node: Make, divided: Make) -> None:
    node = make_node([{"sharing": "mig", "strategy": "none"}], [divided(0, "1g.10gb"), divided(1, "1g.10gb")])
    node.held = {"nvidia.com/gpu": {"old": ["MIG-0-a0"]}}
    node.update()
    assert [name for name, reason in node.listed("nvidia.com/gpu").items() if not reason] == ["GPU-1"]


@pytest.mark.parametrize("left", [0, 1])
def test_a_replica_of_an_instance_that_is_gone_keeps_no_other_card(left: int, make_node: Make, divided: Make) -> None:
    """Either the card is gone with it, or has one instance left."""
    node = make_node([MIG], [divided(0, "1g.10gb", "1g.10gb"), divided(1, "1g.10gb")])
    node.held = {SHARED: {"own": ["MIG-0-a1::0"]}}
    node.update()
    rest = [replace(node.cards[0], instances=node.cards[0].instances[:1])] if left else []
    node.cards[:1] = rest
    node.update()
    assert {"MIG-1-a0::0", "MIG-1-a0::1"} <= {name for name, reason in node.listed(SHARED).items() if not reason}


def test_nothing_is_kept_for_what_was_reported_while_the_driver_was_away(make_node: Make, divided: Make) -> None:
    node = make_node([MIG], [divided(0, "1g.10gb"), divided(1, "1g.10gb")])
    node.held = {SHARED: {"own": ["MIG-0-a0::0"]}}
    node.state = "absent"
    node.update()
    node.state = "running"
    node.update()
    assert set(node.listed(SHARED).values()) == {""}
