"""ResourceSlices in a real API server: what is written is stored as it was sent, and what is not is told."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.real.consumers import ControlPlane

from nodeplug import AttributeValue, Counters, Device, DeviceId, Part, PluginError, ResourceName
from nodeplug.dra.pools import pool_of, without_overlapping, without_unusable
from nodeplug.dra.slices import slices_of
from nodeplug.dra.stored import changes, difference
from nodeplug.kubeapi.resources import RESOURCE_SLICES

Slices = list[dict[str, Any]]
PATH = RESOURCE_SLICES.path()
DRIVER = "gpu.nodeplug.io"
GI = 1 << 30
STRANGE = ["GPU-3f2a", "gpu-3f2a", "a_b", "a.b", "-a", "x" * 64, "ü", "_", "MIG-4f::3", "0000:3b:00.0"]
ATTRIBUTES: dict[str, AttributeValue] = {
    "model": "NVIDIA H100 80GB HBM3",
    "cores": 132,
    "on": False,
    "empty": "",
    "zero": 0,
    "lowest": -(1 << 63),
    "cuda-version": "13.0",
    "long": "ü" * 100,
    "odd": "a\ud800\x00b",
    **{f"more{number}": number for number in range(40)},
}
CAPACITY = {"nothing": 0, "odd": 1_500_000_001, "thousands": 7000, "most": (1 << 63) - 1}


def units(card: str, count: int, ill: Sequence[int] = (), size: int = GI) -> list[Device]:
    part = Part(DeviceId(card), {"memory": size})
    return [
        Device(
            DeviceId(f"{card}-{n}"), healthy=n not in ill, reason="XID 79: off the bus" if n in ill else "", part=part
        )
        for n in range(count)
    ]


def wholes(count: int, ill: range = range(0)) -> list[Device]:
    return [
        Device(DeviceId(f"d{n}"), healthy=n not in ill, reason="lost", capacity={"memory": n * GI})
        for n in range(count)
    ]


def cut(card: str, **more: int) -> list[Device]:
    """A card that is given away whole, shared, or by its seven instances."""
    has, takes = {"memory": 80 * GI, "slices": 7, **more}, {"memory": 10 * GI, "slices": 1, **dict.fromkeys(more, 0)}
    every, some = Counters(card, has, has), Counters(card, has, takes)
    part = Part(DeviceId(f"{card}-shared"), {"memory": GI})
    return [
        Device(DeviceId(card), counters=every),
        *(Device(DeviceId(f"{card}-shared-{n}"), part=part, counters=every) for n in range(80)),
        *(Device(DeviceId(f"{card}-mig-{n}"), counters=some) for n in range(7)),
    ]


LISTS: dict[str, list[Device]] = {
    "640 parts of 8 cards": [one for card in range(8) for one in units(f"card{card}", 80)],
    "200 devices that are all tainted": wholes(200, range(200)),
    "a card with one part": units("card", 1),
    "a card without a usable part": units("card", 4, range(4)),
    "parts of an odd size": units("card", 7, [2], 1_500_000_001),
    "attributes of each type": [Device(DeviceId("a"), attributes=ATTRIBUTES, capacity=CAPACITY, numa_nodes=(1,))],
    "ids that are no names": [Device(DeviceId(name)) for name in STRANGE],
    "an empty pool": [],
    "a card and its instances": cut("card"),
    "17 cards and their instances": [one for card in range(17) for one in cut(f"card{card}")],
    "counters of every size and name": cut("GPU-3f2a", Odd_Name=7000, **{"most": (1 << 63) - 1, "x" * 64: 1}),
    "as many counters as there may be": cut("card", **{f"c{n}": n for n in range(30)}),
}  # fmt: skip


def wanted(devices: Sequence[Device], node: str = "node-1", name: str = "gpu", taint: Any = "NoSchedule") -> Slices:
    return slices_of(
        DRIVER, node, f"uid-of-{node}", pool_of(node, ResourceName(f"example.com/{name}"), devices), 1, taint
    )


def stored(cluster: ControlPlane) -> Slices:
    found: Slices = cluster.call("GET", PATH)["items"]
    return found


def bring(cluster: ControlPlane, slices: Slices) -> Slices:
    """Do what is to be done, and return what was sent."""
    todo = changes(slices, stored(cluster))
    for one in todo.create:
        cluster.call("POST", PATH, one)
    for one in todo.replace:
        cluster.call("PUT", f"{PATH}/{one['metadata']['name']}", one)
    for name in todo.delete:
        cluster.call("DELETE", f"{PATH}/{name}")
    return [*todo.create, *todo.replace]


def capacities(slices: Slices) -> list[Any]:
    return [device.get("capacity") for one in slices for device in one["spec"].get("devices", [])]


@pytest.fixture
def nothing(control: ControlPlane) -> ControlPlane:
    """An API server without slices."""
    bring(control, [])
    assert stored(control) == []
    return control


@pytest.mark.parametrize("what", LISTS)
def test_what_is_written_is_stored_as_it_was_sent(nothing: ControlPlane, what: str) -> None:
    slices = wanted(LISTS[what])
    assert bring(nothing, slices) == slices
    assert not difference(slices, stored(nothing))
    assert capacities(stored(nothing)) == capacities(slices), "quantities are canonical"
    assert not changes(slices, stored(nothing))


@pytest.mark.parametrize("taint", ["NoSchedule", "NoExecute", "None"])
def test_every_effect_of_a_taint_is_taken(nothing: ControlPlane, taint: str) -> None:
    slices = wanted([*wholes(3, range(2)), *units("card", 2, range(2))], taint=taint)
    bring(nothing, slices)
    assert not difference(slices, stored(nothing))


def test_the_longest_names_are_taken(nothing: ControlPlane) -> None:
    slices = wanted(wholes(1), node=".".join(["n" * 63] * 2), name="g" * 63)
    bring(nothing, slices)
    assert not difference(slices, stored(nothing))


def test_a_health_that_changes_is_written_over_what_is_there(nothing: ControlPlane) -> None:
    bring(nothing, wanted(wholes(100)))
    sent = bring(nothing, wanted(wholes(100, range(70, 80))))
    assert [one["spec"]["pool"]["generation"] for one in sent] == [2, 2]
    assert not difference(sent, stored(nothing))
    assert bring(nothing, wanted(wholes(100, range(70, 80)))) == []


def test_an_older_version_is_not_written_over(nothing: ControlPlane) -> None:
    bring(nothing, wanted(wholes(1)))
    late = changes(wanted(wholes(2)), stored(nothing)).replace[0]
    bring(nothing, wanted(wholes(3)))
    with pytest.raises(PluginError, match="409"):
        nothing.call("PUT", f"{PATH}/{late['metadata']['name']}", late)


def test_counters_that_change_are_written_over_what_is_there(nothing: ControlPlane) -> None:
    bring(nothing, wanted([*cut("a"), *cut("b")]))
    sent = bring(nothing, wanted([*cut("a"), *cut("b", slots=4)]))
    assert [one["spec"]["pool"]["generation"] for one in sent] == [2, 2]
    assert not difference(sent, stored(nothing))
    sent = bring(nothing, wanted(wholes(100)))
    assert not difference(sent, stored(nothing)), "a slice of counters becomes one of devices"
    sent = bring(nothing, wanted(cut("a")))
    assert not difference(sent, stored(nothing)), "and the other way round"


@pytest.fixture
def older(nothing: ControlPlane) -> Iterator[ControlPlane]:
    """An API server as one of 1.34 and 1.35 is by default."""
    nothing.kill_api()
    nothing.start_api("--feature-gates=DRAConsumableCapacity=false,DRADeviceTaints=false,DRAPartitionableDevices=false")
    yield nothing
    nothing.kill_api()
    nothing.start_api()


def test_a_cluster_that_cannot_share_count_or_taint_is_told_by_a_dry_run(older: ControlPlane) -> None:
    slices = wanted([*units("card", 4), *wholes(2, range(1))])
    answers = [older.call("POST", f"{PATH}?dryRun=All", one) for one in slices]
    found = difference(slices, answers)
    assert sorted(found.dropped) == ["allowMultipleAllocations", "requestPolicy", "taints"]
    assert found.others == ()
    assert found.unshared
    assert "DRAConsumableCapacity" in found.sentence
    assert stored(older) == []
    # Whole devices are served there, without those that a taint would keep from claims.
    made = without_unusable(pool_of("node-1", ResourceName("example.com/gpu"), wholes(2, range(1))))
    healthy = slices_of(DRIVER, "node-1", "uid", made, 1, "NoSchedule")
    bring(older, healthy)
    assert not difference(healthy, stored(older))
    # So are devices that overlap no others.
    made = pool_of("node-1", ResourceName("example.com/gpu"), [wholes(1)[0], *cut("card")])
    bring(older, [])
    both = slices_of(DRIVER, "node-1", "uid", made, 1, "NoSchedule")
    found = difference(both, [older.call("POST", f"{PATH}?dryRun=All", one) for one in both])
    assert {"consumesCounters", "sharedCounters"} <= {*found.dropped}
    assert (found.uncounted, found.others) == (True, ())
    assert [one.name for one in without_overlapping(made).devices] == ["d0"]
