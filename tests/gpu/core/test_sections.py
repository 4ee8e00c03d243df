"""Two sections of one daemon that look at the same cards: no card is advertised by both."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nodeplug import Device, DeviceId, DeviceList, Holding, Host, Journal, NotFound, NotReady, ResourceName
from nodeplug.testing.waiting import until
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.plugin import Gpu

MEM, WHOLE = ResourceName("aliyun.com/gpu-mem"), ResourceName("nvidia.com/gpu")
CARDS = [{"memory": "4Gi", "uuid": "GPU-0000"}, {"memory": "4Gi", "uuid": "GPU-1111"}]
MEMORY: dict[str, Any] = {"sharing": "memory"}
EXCLUSIVE: dict[str, Any] = {"sharing": "exclusive", "resource": WHOLE}


class Node:
    """One daemon's folders, and its sections."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, list[Gpu]()
        self.held: Sequence[Holding] = ()

    def start(self, section: str, *resources: Mapping[str, Any]) -> Gpu:
        config = {"driver": "simulated", "simulated": CARDS, "poll": "20ms", "resources": resources}
        log = logging.LoggerAdapter(logging.getLogger(f"nodeplug.plugin.{section}"), {})
        folder = self.folder / section
        folder.mkdir(exist_ok=True)
        host = Host(
            section, "n", "boot", log, Journal(folder / "journal", "boot"), folder, folder, lambda _: None,
            None, lambda name: [one for one in self.held if one.resource == name],  # type: ignore[arg-type] # no CNI here
        )  # fmt: skip
        self.made.append(Gpu(GpuConfig.model_validate(config), host))
        self.made[-1].start()
        return self.made[-1]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for plugin in made.made:
        plugin.stop()


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeplug_gpu.leases.RESERVATION", 0.0)


def devices(plugin: Gpu, resource: ResourceName) -> Sequence[Device]:
    try:
        return plugin.device_list(DeviceList(resource=resource))
    except NotFound:
        return ()


def reasons(plugin: Gpu, resource: ResourceName) -> Mapping[str, str]:
    return {one.id: one.reason for one in devices(plugin, resource)}


def test_a_card_that_another_section_advertises_is_not_advertised_again_and_both_are_named(node: Node) -> None:
    node.start("gpu", MEMORY | {"cards": {"index": [0]}})
    second = node.start("cards", EXCLUSIVE)
    assert reasons(second, WHOLE) == {"GPU-1111": ""}
    wanted = (
        f"section gpu advertises GPU-0000 as {MEM}, and this one would as {WHOLE}; give each section its own `cards`"
    )
    assert second.inspect()["conflict"] == wanted
    assert [(one["uuid"], one["reason"]) for one in second.inspect()["unadvertised"]] == [("GPU-0000", wanted)]
    with pytest.raises(NotReady, match="section gpu advertises GPU-0000"):
        second.health()


def test_sections_with_cards_of_their_own_do_not_meet(node: Node) -> None:
    one = node.start("gpu", MEMORY | {"cards": {"index": [0]}})
    other = node.start("cards", EXCLUSIVE | {"cards": {"index": [1]}})
    assert len(devices(one, MEM)) == 4
    assert reasons(other, WHOLE) == {"GPU-1111": ""}
    one.health()
    other.health()


def test_a_second_instance_of_a_section_takes_over_while_the_first_still_runs(node: Node) -> None:
    first = node.start("gpu", MEMORY)
    second = node.start("gpu", MEMORY)
    assert len(devices(second, MEM)) == 8
    first.stop()
    third = node.start("cards", EXCLUSIVE)
    assert devices(third, WHOLE) == ()
    assert len(devices(second, MEM)) == 8


def test_a_section_that_starts_again_finds_its_cards(node: Node) -> None:
    first = node.start("gpu", MEMORY)
    other = node.start("cards", EXCLUSIVE)
    first.stop()
    time.sleep(0.1)  # some looks
    assert devices(other, WHOLE) == () or all(reasons(other, WHOLE).values())
    again = node.start("gpu", MEMORY)
    assert [one.healthy for one in devices(again, MEM)] == [True] * 8


@pytest.mark.usefixtures("no_wait")
def test_a_section_that_has_ended_leaves_its_cards_to_another(node: Node) -> None:
    first = node.start("gpu", MEMORY)
    other = node.start("cards", EXCLUSIVE)
    first.stop()
    until(lambda: not other.inspect()["conflict"])
    assert set(reasons(other, WHOLE)) == {"GPU-0000", "GPU-1111"}


@pytest.mark.usefixtures("no_wait")
def test_a_card_that_containers_hold_by_a_section_that_has_ended_is_not_advertised_anew(node: Node) -> None:
    first = node.start("gpu", MEMORY)
    (unit, *_) = (one.id for one in devices(first, MEM))
    node.held = [Holding(resource=MEM, ids=(DeviceId(unit),), namespace="default", pod="pod", container="main")]
    first.stop()
    other = node.start("cards", EXCLUSIVE)
    until(lambda: set(reasons(other, WHOLE)) == {"GPU-0000", "GPU-1111"})
    assert f"it was advertised as {MEM} (memory), and it is allocated to default/pod" in reasons(other, WHOLE).values()


def test_a_card_that_a_section_gave_up_and_containers_hold_is_not_advertised_by_another(node: Node) -> None:
    first = node.start("gpu", MEMORY)
    (unit, *_) = (one.id for one in devices(first, MEM))
    node.held = [Holding(resource=MEM, ids=(DeviceId(unit),), namespace="default", pod="pod", container="main")]
    first.stop()
    node.start("gpu", MEMORY | {"cards": {"index": [1]}})
    other = node.start("cards", EXCLUSIVE | {"cards": {"index": [0]}})
    wanted = f"section gpu advertised it as {MEM}, and containers may still hold it"
    assert devices(other, WHOLE) == ()
    assert other.inspect()["unadvertised"][0]["reason"] == wanted
    other.health()


def test_a_section_that_is_renamed_goes_on_at_once(node: Node) -> None:
    first = node.start("gpu", MEMORY)
    first.stop()
    second = node.start("cards", MEMORY)
    assert [one.healthy for one in devices(second, MEM)] == [True] * 8


def test_daemons_of_other_nodes_do_not_meet(node: Node, tmp_path: Path) -> None:
    node.start("gpu", MEMORY)
    elsewhere = Node(tmp_path / "other")
    elsewhere.folder.mkdir()
    try:
        assert len(devices(elsewhere.start("cards", EXCLUSIVE), WHOLE)) == 2
    finally:
        elsewhere.made[0].stop()
