"""Units that no longer fit into one list while their size cannot change, because some are held."""

import logging
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from nodeplug import DeviceId, ResourceName
from nodeplug.device.codec import LIST_LIMIT, encode_list
from nodeplug_gpu import report
from nodeplug_gpu.cards import GpuEvent, Uuid
from nodeplug_gpu.ids import card_key, unit_id
from nodeplug_gpu.inventory import FEWER
from nodeplug_gpu.overuse import OveruseWatch
from nodeplug_gpu.sharing import memory

MEM = ResourceName("aliyun.com/gpu-mem")
Make = Callable[..., Any]
FINE = {"sharing": "memory", "unit": "1MiB", "max_units_per_card": 16000}


def name(number: int, unit: int) -> str:
    return unit_id(card_key(Uuid(f"GPU-{number}")), unit)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit that is soon reached."""
    monkeypatch.setattr(memory, "MAX_UNITS", 40)
    return 40


@pytest.mark.whole
def test_a_card_that_comes_while_units_are_held_leaves_out_free_units_alone(
    make_node: Make, card: Make, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node([FINE], [card(0, 15), card(1, 15)])
    unit = node.tracker.sharings[MEM].unit
    held = [name(0, number) for number in (0, 7_000, 15_359)]
    node.held = {MEM: {"pod": held}}
    node.wait(20)
    with caplog.at_level(logging.WARNING):
        node.cards.append(card(2, 15))
        node.wait(20)
        node.update(GpuEvent("xid", Uuid("GPU-0"), 79))
    devices = node.tracker.inventory.devices(node.config.resources[0], MEM)
    assert encode_list(MEM, devices).ByteSize() <= LIST_LIMIT
    assert node.tracker.sharings[MEM].unit == unit == 1 << 20
    listed = node.listed()
    assert all("XID 79" in listed[one] for one in held)
    by_card = [sum(one.startswith(card_key(Uuid(f"GPU-{number}"))) for one in listed) for number in range(3)]
    assert memory.MAX_UNITS - 3 <= sum(by_card) <= memory.MAX_UNITS
    assert max(by_card) - min(by_card) <= len(held)
    assert len([one for one in caplog.records if "not advertised" in one.getMessage()]) == 1
    (told,) = [one for one in document(node)["resources"] if one["resource"] == MEM]
    left = 3 * 15_360 - sum(by_card)
    why = (
        f"{left} of 46080 units are free and not advertised: a list has at most 32000, and units keep their size while"
    )
    assert told["notes"] == [f"{why} one is held; they become larger a minute after the last release"]
    assert [one["units"] for one in document(node)["cards"]] == by_card


def test_units_become_larger_and_all_are_advertised_once_nothing_is_held(
    make_node: Make, card: Make, small: int
) -> None:
    node = make_node([{"sharing": "memory"}], [card(0, 16), card(1, 16)])
    node.held = {MEM: {"pod": [name(0, 15)]}}
    node.wait(20)
    node.cards.append(card(2, 16))
    node.wait(20)
    assert len(node.listed()) <= small
    node.held = {}
    node.wait()
    assert node.tracker.sharings[MEM].unit == 2 << 30
    assert len(node.listed()) == 24


def test_what_is_told_to_the_cluster_is_what_is_advertised(make_node: Make, card: Make, small: int) -> None:
    node = make_node([{"sharing": "memory"}], [card(0, 16), card(1, 16)])
    node.held = {MEM: {"pod": [name(0, 15)]}}
    node.wait(20)
    node.cards.append(card(2, 16))
    node.wait(20)
    members = node.tracker.inventory.members_of(MEM)
    sharing = node.tracker.sharings[MEM]
    assert sum(sharing.advertised(member) for member in members) == len(node.listed())
    assert [sharing.units(member) for member in members] == [16, 16, 16]
    assert node.allocate(MEM, name(2, 0)).env["ALIYUN_COM_GPU_MEM_DEV"] == "16"


def test_before_kubelet_has_told_who_holds_what_nothing_is_left_out(make_node: Make, card: Make, small: int) -> None:
    node = make_node([{"sharing": "memory"}], [card(0, 16), card(1, 16)])
    node.held = None
    node.configure([{"sharing": "memory"}])
    node.cards.append(card(2, 16))
    node.update()
    assert len(node.listed()) == 48  # the daemon sends the ids of the last list, which has all that are held
    node.held = {}
    node.update()
    assert len(node.listed()) <= small


class Life:
    """Cards that come, go and fall ill, and pods that hold units of them; kubelet may be late, or tell nothing."""

    def __init__(self, node: Any, card: Make, seed: int) -> None:
        self.node, self.card, self.random = node, card, Random(seed)
        self.pods: dict[str, list[str]] = {}
        self.size: dict[str, int] = {}
        self.ill: set[Uuid] = set()
        self.short = 0

    def step(self) -> None:
        kinds = [self.come, self.go, self.hurt, self.admit, self.admit, self.remove, self.lag, self.reconfigure]
        self.random.choice(kinds)()
        self.check()

    def come(self) -> None:
        absent = [number for number in range(5) if f"GPU-{number}" not in {one.uuid for one in self.node.cards}]
        if absent:
            number = self.random.choice(absent)
            self.node.cards.append(self.card(number, 8 + 4 * number))
        self.tell()

    def go(self) -> None:
        if len(self.node.cards) > 1:
            self.node.cards.remove(self.random.choice(self.node.cards))
        self.tell()

    def hurt(self) -> None:
        self.node.update(GpuEvent("xid", self.random.choice(self.node.cards).uuid, 79), after=1)

    def admit(self) -> None:
        free: dict[str, list[str]] = {}
        taken = {one for ids in self.pods.values() for one in ids}
        for one, reason in self.node.listed().items():
            if not reason and one not in taken:
                free.setdefault(one.partition("-")[0], []).append(one)
        if free:
            mine = free[self.random.choice(sorted(free))]
            ids = self.random.sample(mine, min(len(mine), self.random.randint(1, 6)))
            self.node.allocate(MEM, *ids)
            self.node.tracker.allocated(MEM, [DeviceId(one) for one in ids])
            pod = f"p{self.random.random()}"
            self.pods[pod] = ids
            unit = self.node.tracker.sharings[MEM].unit
            assert all(self.size.setdefault(one, unit) == unit for one in ids)
        self.node.update(after=1)

    def remove(self) -> None:
        if self.pods:
            for one in self.pods.pop(self.random.choice(sorted(self.pods))):
                self.size.pop(one, None)
        self.tell()

    def reconfigure(self) -> None:
        """Reload with other limits; units of what is reserved from now on may be held."""
        self.tell()
        others: list[dict[str, Any]] = [{}, {"reserve": "4GiB"}, {"unit": "2GiB"}, {"max_units_per_card": 6}]
        chosen = self.random.choice(others)
        self.node.configure([{"sharing": "memory", **chosen}])

    def lag(self) -> None:
        """Kubelet tells nothing, or forgets all for a moment."""
        self.node.held = self.random.choice([None, {}])
        self.node.wait(30)
        self.check()
        self.tell()

    def tell(self) -> None:
        self.node.held = {MEM: dict(self.pods)}
        self.node.update(after=self.random.choice([1, 1, 200]))

    def check(self) -> None:
        listed = self.node.listed()
        assert len(listed) <= memory.MAX_UNITS
        unit = self.node.tracker.sharings[MEM].unit
        present = {str(card_key(one.uuid)): one for one in self.node.cards}
        for ids in self.pods.values():
            for one in ids:
                assert one in listed, f"{one} is held and not listed"
                assert self.size[one] == unit
                key = one.partition("-")[0]
                here = key in present and self.node.tracker.inventory.conditions[present[key].uuid].allocatable
                assert listed[one] == FEWER or (not listed[one]) == here, (one, listed[one])
                fewer = int(one.partition("-")[2]) >= self.sharing.units(self.member(key))
                assert (listed[one] == FEWER) <= fewer
        self.short += sum(self.sharing.units(one) for one in self.members) > memory.MAX_UNITS

    @property
    def sharing(self) -> Any:
        return self.node.tracker.sharings[MEM]

    @property
    def members(self) -> Any:
        return self.node.tracker.inventory.members_of(MEM)

    def member(self, key: str) -> Any:
        return next(one for one in self.members if card_key(one.card.uuid) == key)


@pytest.mark.parametrize("lives", [3, pytest.param(12, marks=pytest.mark.whole)])
def test_in_every_life_a_list_fits_and_has_what_is_held_as_it_is(
    lives: int, make_node: Make, card: Make, small: int
) -> None:
    short = 0
    for seed in range(lives):
        node = make_node([{"sharing": "memory"}], [card(0, 8), card(1, 12)])
        life = Life(node, card, seed)
        for _ in range(80):
            life.step()
        short += life.short
        node.held, node.cards = {}, [card(0, 8), card(1, 12)]
        node.wait(200)
    assert short > 8 * lives


def document(node: Any) -> Any:
    return report.document(node.config, node.tracker, OveruseWatch({}, node.host))
