"""MIG instances as devices, and cards whose mode changes while they are used."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from nodeplug import DeviceId, DevicePrefer, InvalidRequest, NotFound, NotReady, ResourceName
from nodeplug_gpu import report
from nodeplug_gpu.cards import Card, GpuEvent, Uuid
from nodeplug_gpu.config import Mps
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.limits import Caps
from nodeplug_gpu.metrics import metrics as measured
from nodeplug_gpu.mps.cards import MpsDaemons, MpsReconciler
from nodeplug_gpu.overuse import OveruseWatch

MEM, MIG, LARGE = "aliyun.com/gpu-mem", "nvidia.com/mig", "nvidia.com/mig-3g"
Make = Callable[..., Any]
SINGLE = {"sharing": "mig", "resource": MIG}
MIXED = {"sharing": "mig", "strategy": "mixed", "profiles": {"1g.10gb": MIG, "3g.40gb": LARGE}}
SMALL, BIG = "1g.10gb", "3g.40gb"


def test_each_instance_is_a_device(make_node: Make, divided: Make) -> None:
    node = make_node([SINGLE], [divided(0, SMALL, SMALL)])
    assert node.listed(MIG) == {"MIG-0-a0": "", "MIG-0-a1": ""}
    assert node.allocate(MIG, "MIG-0-a1").env["NVIDIA_VISIBLE_DEVICES"] == "MIG-0-a1"


def test_single_with_two_profiles_advertises_nothing_and_names_them(make_node: Make, divided: Make) -> None:
    why = make_node([SINGLE], [divided(0, SMALL, BIG)]).why_nothing(MIG)
    assert "strategy 'single' needs one profile, there are 1g.10gb, 3g.40gb" in why


def test_mixed_advertises_each_profile_under_its_name(make_node: Make, divided: Make) -> None:
    node = make_node([MIXED], [divided(0, SMALL, BIG, "7g.80gb")])
    assert (list(node.listed(MIG)), list(node.listed(LARGE))) == (["MIG-0-a0"], ["MIG-0-a1"])
    notes = node.tracker.sharings[MIG].unadvertised(node.tracker.inventory.pools[MIG])
    assert notes == ["instances of profile 7g.80gb are not advertised: `profiles` has no resource for it"]


def test_cards_without_mig_go_to_the_other_entries(make_node: Make, card: Make, divided: Make) -> None:
    node = make_node([{"sharing": "memory"}, SINGLE], [card(0), divided(1, SMALL)])
    assert len(node.listed()) == 16
    assert list(node.listed(MIG)) == ["MIG-1-a0"]


def test_an_instance_that_was_destroyed_is_not_allocated(make_node: Make, divided: Make) -> None:
    node = make_node([SINGLE], [divided(0, SMALL, SMALL)])
    with pytest.raises(NotFound, match="MIG-0-a9 is not among the instances"):
        node.allocate(MIG, "MIG-0-a0", "MIG-0-a9")


def test_an_instance_that_was_destroyed_while_held_stays_listed(make_node: Make, divided: Make) -> None:
    node = make_node([SINGLE], [divided(0, SMALL, SMALL)])
    node.held = {MIG: {"pod": ["MIG-0-a1"]}}
    node.cards[0] = divided(0, SMALL, batch="b")
    node.wait()
    assert node.listed(MIG) == {"MIG-0-b0": "", "MIG-0-a1": "it is no longer present"}
    node.configure([SINGLE])
    assert node.listed(MIG) == {"MIG-0-b0": "", "MIG-0-a1": "it is no longer present"}


def test_the_last_instance_that_was_destroyed_while_held_stays_listed(make_node: Make, divided: Make) -> None:
    node = make_node([SINGLE], [divided(0, SMALL)])
    node.held = {MIG: {"pod": ["MIG-0-a0"]}}
    node.cards[0] = divided(0)
    node.update()
    assert node.listed(MIG) == {"MIG-0-a0": "it is no longer present"}


def test_units_that_are_held_stay_listed_when_their_card_is_divided(make_node: Make, card: Make, divided: Make) -> None:
    node = make_node([{"sharing": "memory"}, SINGLE], [card(0)])
    unit = f"{card_key(card(0).uuid)}-0"
    node.held = {MEM: {"pod": [unit]}}
    node.cards[0] = divided(0, SMALL)
    node.wait()
    assert node.listed()[unit] == "it is advertised as nvidia.com/mig now"
    assert node.listed(MIG) == {
        "MIG-0-a0": "it was advertised as aliyun.com/gpu-mem (memory), and it is allocated to default/pod"
    }
    node.held = {}
    node.wait()
    assert node.listed() == {}
    assert node.listed(MIG) == {"MIG-0-a0": ""}


def test_instances_that_are_held_stay_listed_when_their_card_becomes_whole(
    make_node: Make, card: Make, divided: Make
) -> None:
    node = make_node([{"sharing": "memory"}, SINGLE], [divided(0, SMALL)])
    node.held = {MIG: {"pod": ["MIG-0-a0"]}}
    node.cards[0] = card(0, 80)
    node.wait()
    assert node.listed(MIG)["MIG-0-a0"] == "it is advertised as aliyun.com/gpu-mem now"
    assert all(node.listed().values())


def test_a_card_that_is_divided_is_no_longer_served_by_mps(make_node: Make, card: Make, divided: Make) -> None:
    node = make_node([{"sharing": "memory", "mps": {}}], [card(0), card(1)])
    node.held = {MEM: {"pod": [f"{card_key(card(0).uuid)}-0"]}}
    kept: list[set[str]] = []

    class Daemons(MpsDaemons):
        def reconcile(
            self,
            wanted: Mapping[Uuid, tuple[Card, Mps]],
            held: Callable[[Uuid], bool] = lambda _: False,
            cards: Iterable[Card] = (),
            caps: Mapping[Uuid, Caps] = MappingProxyType({}),
        ) -> None:
            assert not held(Uuid("GPU-0")) or not node.tracker.inventory.snapshot.cards[0].mig
            kept.append(set(wanted))

    reconciler = MpsReconciler(Daemons(node.tracker.host, Path("/"), lambda: None), node.config)
    reconciler.reconcile(node.tracker.inventory)
    node.cards[0] = divided(0, SMALL)
    reconciler.reconcile(node.update())
    assert kept == [{"GPU-0", "GPU-1"}, {"GPU-1"}]


def contained(instance: int, card: int = 0) -> GpuEvent:
    """A fault that NVIDIA calls contained, of one instance."""
    return GpuEvent("xid", Uuid(f"GPU-{card}"), 94, instance, 0)


def test_faults_of_one_instance_leave_the_other_six_allocatable(make_node: Make, divided: Make) -> None:
    node = make_node([SINGLE], [divided(0, *[SMALL] * 7)])
    node.update(*[contained(3)] * 3)
    why = "XID 94 (contained ECC error) (3 faults in 300 s)"
    assert {one for one, reason in node.listed(MIG).items() if reason} == {"MIG-0-a2"}
    assert node.listed(MIG)["MIG-0-a2"] == why
    with pytest.raises(NotReady, match=re.escape(f"MIG-0-a2 cannot be allocated: {why}")):
        node.allocate(MIG, "MIG-0-a2")
    assert node.allocate(MIG, "MIG-0-a1").env["NVIDIA_VISIBLE_DEVICES"] == "MIG-0-a1"
    node.wait(90)
    assert not any(node.listed(MIG).values())


def test_a_fault_of_the_card_takes_out_all_its_instances(make_node: Make, divided: Make) -> None:
    node = make_node([SINGLE], [divided(0, SMALL, SMALL), divided(1, SMALL)])
    node.update(GpuEvent("xid", Uuid("GPU-0"), 95, 1, 0))
    assert {one for one, reason in node.listed(MIG).items() if reason} == {"MIG-0-a0", "MIG-0-a1"}


def test_a_whole_card_suffers_from_any_of_its_instances(make_node: Make, divided: Make) -> None:
    node = make_node([{"sharing": "mig", "strategy": "none", "resource": MIG}], [divided(0, SMALL, SMALL)])
    node.update(*[contained(2)] * 3)
    assert node.listed(MIG)["GPU-0"].startswith("its MIG instance MIG-0-a1: XID 94")
    with pytest.raises(NotReady, match="GPU-0 cannot be allocated: its MIG instance MIG-0-a1"):
        node.allocate(MIG, "GPU-0")


def test_an_ill_instance_is_told_by_the_document_and_the_metrics(make_node: Make, divided: Make) -> None:
    node = make_node([SINGLE], [divided(0, SMALL, SMALL)])
    node.update(*[contained(1)] * 3)
    overuse = OveruseWatch({}, node.host)
    (told,) = report.document(node.config, node.tracker, overuse)["cards"]
    assert (told["state"], told["allocatable"]) == ("healthy", True)
    states = {one["uuid"]: (one["state"], one["allocatable"], one["reason"]) for one in told["instances"]}
    assert states["MIG-0-a0"][:2] == ("unhealthy", False)
    assert states["MIG-0-a0"][2].startswith("XID 94")
    assert states["MIG-0-a1"] == ("healthy", True, "")
    metrics = {one.name: one.samples for one in measured(node.config, node.tracker, overuse)}
    assert {one.labels["instance"]: one.value for one in metrics["gpu_instance_allocatable"]} == {
        "MIG-0-a0": 0.0,
        "MIG-0-a1": 1.0,
    }
    assert {(one.labels["instance"], one.labels["state"]) for one in metrics["gpu_instance_state"] if one.value} == {
        ("MIG-0-a0", "unhealthy"),
        ("MIG-0-a1", "healthy"),
    }
    assert {one.labels["card"] for one in metrics["gpu_instance_state"]} == {"GPU-0"}


def test_single_with_a_card_that_is_not_divided_advertises_nothing_and_names_it(
    make_node: Make, card: Make, divided: Make
) -> None:
    node = make_node([SINGLE], [divided(0, SMALL), card(1)])
    assert "strategy 'single' needs all its cards in MIG mode, and GPU-1 is not" in node.why_nothing(MIG)
    node.configure([SINGLE, {"sharing": "exclusive", "resource": "nvidia.com/whole"}])
    assert (list(node.listed(MIG)), list(node.listed("nvidia.com/whole"))) == (["MIG-0-a0"], ["GPU-1"])
    node.configure([SINGLE | {"cards": {"uuid": ["GPU-0"]}}])
    assert list(node.listed(MIG)) == ["MIG-0-a0"]


def test_single_with_a_card_without_instances_advertises_nothing_and_names_it(make_node: Make, divided: Make) -> None:
    why = make_node([SINGLE], [divided(0, SMALL), divided(1)]).why_nothing(MIG)
    assert "strategy 'single' needs instances on each of its cards, and GPU-1 has none" in why


def test_mixed_has_the_names_of_nvidias_plugin_by_default(make_node: Make, divided: Make) -> None:
    node = make_node([{"sharing": "mig", "strategy": "mixed"}], [divided(0, SMALL, "1g.10gb+me", BIG)])
    listed = {name: list(node.listed(f"nvidia.com/mig-{name}")) for name in ("1g.10gb", "1g.10gb.me", "3g.40gb")}
    assert listed == {"1g.10gb": ["MIG-0-a0"], "1g.10gb.me": ["MIG-0-a1"], "3g.40gb": ["MIG-0-a2"]}
    told = report.document(node.config, node.tracker, OveruseWatch({}, node.host))
    assert [one["resource"] for one in told["resources"]] == [f"nvidia.com/mig-{name}" for name in listed]
    assert {one["policy"] for one in told["resources"]} == {None}


def test_profiles_are_named_by_patterns_and_the_first_one_holds(make_node: Make, divided: Make) -> None:
    names = {"1g.10gb+me": LARGE, "1g.*": MIG}
    node = make_node([MIXED | {"profiles": names}], [divided(0, SMALL, "1g.10gb+me", "1g.20gb", BIG)])
    assert (list(node.listed(MIG)), list(node.listed(LARGE))) == (["MIG-0-a0", "MIG-0-a2"], ["MIG-0-a1"])


def test_an_instance_is_several_replicas(make_node: Make, divided: Make) -> None:
    node = make_node([MIXED | {"replicas": {SMALL: 2}}], [divided(0, SMALL, BIG)])
    assert (list(node.listed(MIG)), list(node.listed(LARGE))) == (["MIG-0-a0::0", "MIG-0-a0::1"], ["MIG-0-a1"])
    assert node.allocate(MIG, "MIG-0-a0::1").env["NVIDIA_VISIBLE_DEVICES"] == "MIG-0-a0"
    with pytest.raises(InvalidRequest, match="wanted: one replica already shares the whole"):
        node.allocate(MIG, "MIG-0-a0::0", "MIG-0-a0::1")
    with pytest.raises(NotFound, match="MIG-0-a0::2 is not among the instances"):
        node.allocate(MIG, "MIG-0-a0::2")
    assert node.allocate(LARGE, "MIG-0-a1").env["NVIDIA_VISIBLE_DEVICES"] == "MIG-0-a1"


def test_replicas_of_different_instances_are_preferred(make_node: Make, divided: Make) -> None:
    node = make_node([SINGLE | {"replicas": 3, "refuse_more_than_one": False}], [divided(0, SMALL, SMALL)])
    sharing, pool = node.tracker.inventory.advertised(node.tracker.entry_of(MIG), ResourceName(MIG))
    available = tuple(map(DeviceId, node.listed(MIG)))
    asked = DevicePrefer(resource=ResourceName(MIG), available=available, must_include=(), size=2)
    assert {name.partition("::")[0] for name in sharing.prefer(asked, pool)} == {"MIG-0-a0", "MIG-0-a1"}
    assert node.allocate(MIG, "MIG-0-a0::0", "MIG-0-a0::2").env["NVIDIA_VISIBLE_DEVICES"] == "MIG-0-a0"


def test_who_holds_a_replica_is_shown_with_its_instance(make_node: Make, divided: Make) -> None:
    node = make_node([SINGLE | {"replicas": 2}], [divided(0, SMALL, SMALL)])
    node.held = {MIG: {"a": ["MIG-0-a1::0"], "b": ["MIG-0-a1::1"]}}
    node.update()
    (told,) = report.document(node.config, node.tracker, OveruseWatch({}, node.host))["cards"]
    assert [one["containers"] for one in told["instances"]] == [[], ["default/a/main", "default/b/main"]]
    assert (told["units"], told["allocated_units"]) == (4, 2)
    assert told["limits"] == "the instance, for all that share it"


def test_an_instance_that_one_container_has_is_not_shared_before_it_is_released(make_node: Make, divided: Make) -> None:
    node = make_node([SINGLE], [divided(0, SMALL)])
    node.held = {MIG: {"pod": ["MIG-0-a0"]}}
    node.update()
    node.configure([SINGLE | {"replicas": 2}])
    why = "it is allocated to default/pod under its former limits (whole instances); the new ones wait for its release"
    assert {node.listed(MIG)[f"MIG-0-a0::{n}"] for n in (0, 1)} == {why}
    node.held = {}
    node.wait()
    assert node.listed(MIG) == {"MIG-0-a0::0": "", "MIG-0-a0::1": ""}


def test_replicas_that_nvidias_plugin_has_allocated_are_known(make_node: Make, divided: Make) -> None:
    node = make_node([{"sharing": "exclusive", "resource": "nvidia.com/whole"}], [divided(0, SMALL)])
    node.held = {MIG: {"pod": ["MIG-0-a0::1"]}}
    node.configure([SINGLE | {"replicas": 2}])
    assert node.listed(MIG) == {"MIG-0-a0::0": "", "MIG-0-a0::1": ""}
    (told,) = report.document(node.config, node.tracker, OveruseWatch({}, node.host))["cards"]
    assert told["instances"][0]["containers"] == ["default/pod/main"]


@pytest.mark.parametrize(
    ("before", "held", "after", "name"),
    [
        ({"strategy": "mixed"}, "nvidia.com/mig-1g.10gb", {"strategy": "single"}, "nvidia.com/gpu"),
        (
            {"strategy": "mixed", "profiles": {"2g.*": "a.b/x", "1g.*": "a.b/y"}},
            "a.b/y",
            {"strategy": "mixed", "profiles": {"2g.*": "a.b/x", "1g.*": "a.b/z"}},
            "a.b/z",
        ),
    ],
)
def test_an_instance_that_is_held_by_a_former_name_is_not_allocated_by_another(
    before: dict[str, Any], held: str, after: dict[str, Any], name: str, make_node: Make, divided: Make
) -> None:
    node = make_node([{"sharing": "mig", **before}], [divided(0, "1g.10gb")])
    node.held = {held: {"pod": ["MIG-0-a0"]}}
    node.update()
    node.configure([{"sharing": "mig", **after}])
    node.wait()
    assert "allocated to default/pod" in node.listed(name)["MIG-0-a0"]
    node.held = {}
    node.wait()
    assert node.listed(name)["MIG-0-a0"] == ""
